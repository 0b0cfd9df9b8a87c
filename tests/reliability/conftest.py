"""Tests of the soak itself: each part must notice what it is there for.

UCM_TREE   built tree under test (default build/tree)
"""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent)]

import _where  # noqa: E402, F401
from deployments import alone  # noqa: E402


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem) -> bool:
    """In a process of its own, as a part runs."""
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    alone(lambda: pyfuncitem.obj(**arguments), 60)
    return True
