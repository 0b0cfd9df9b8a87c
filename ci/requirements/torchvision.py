"""Stand-in that scripts/build.py puts into build/venv: importable, and of no other use.

SGLang's and transformers' image code names torchvision when it is imported, and a real one
needs the very torch it was built with. No cache module ever calls what is named.
"""

import sys
from unittest.mock import MagicMock

__path__: list[str] = []
__version__ = "0"

for _name in ("functional", "v2", "v2.functional"):
    sys.modules[f"{__name__}.transforms.{_name}"] = MagicMock(name=_name)
for _name in ("io", "transforms"):
    sys.modules[f"{__name__}.{_name}"] = MagicMock(name=_name)
