"""Tests of the benchmarks themselves, on few and small pages.

UCM_TREE   built tree under test (default build/tree)
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TREE = Path(os.environ.get("UCM_TREE", ROOT / "build" / "tree")).resolve()
sys.path[:0] = [str(HERE)]
