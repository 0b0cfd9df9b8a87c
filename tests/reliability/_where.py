"""Where the tree under test and the other tests' helpers are; imported before any of them."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TREE = Path(os.environ.get("UCM_TREE", ROOT / "build" / "tree")).resolve()
sys.path[:0] = [str(TREE), *(str(ROOT / "tests" / n) for n in ("hicache", "store"))]
sys.path += [str(ROOT / "scripts"), str(ROOT / "tests" / "bench")]
os.environ.setdefault("UC_LOGGER_LEVEL", "off")
