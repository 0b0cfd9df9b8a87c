"""Feature tests of the SGLang connector on the real PosixStore and SGLang's real host pools.

UCM_TREE   built tree under test (default build/tree)
"""

import logging
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TREE = Path(os.environ.get("UCM_TREE", HERE.parents[1] / "build" / "tree")).resolve()
sys.path[:0] = [str(HERE), str(TREE)]
os.environ.setdefault("UC_LOGGER_LEVEL", "off")

from hicache_kit import FaultStore, Site  # noqa: E402


@pytest.fixture
def site():
    """Two storage backends, and every store that a test attaches there."""
    with Site.temporary() as made:
        yield made
    FaultStore.faults.clear()


@pytest.fixture(autouse=True)
def keep_log_files_away(tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.getbasetemp())


@pytest.fixture
def messages(caplog):
    """The connector's own log lines so far, as text."""
    caplog.set_level(logging.INFO, logger="ucm.integration.sglang")
    return lambda: "\n".join(record.getMessage() for record in caplog.records)
