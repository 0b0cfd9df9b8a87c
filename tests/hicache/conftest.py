"""Feature tests of the SGLang connector on the real PosixStore and SGLang's real host pools.

UCM_TREE   built tree under test (default build/tree)
"""

import gc
import json
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


def pytest_collection_finish() -> None:
    """A site collects garbage when it ends. It need not look at all that torch and SGLang made."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture
def tool(capsys):
    """Call the operators' command; its exit code and output, parsed where it is JSON."""

    def call(*args):
        from ucm.integration.sglang.hicache.__main__ import main

        args = [str(arg) for arg in args]
        capsys.readouterr()
        try:
            code = main(args)
        except SystemExit as e:
            code = e.code
        output = "".join(capsys.readouterr())
        return code, json.loads(output) if "--json" in args and code < 2 else output

    return call
