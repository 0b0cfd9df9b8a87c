"""Every test runs in a process of its own, on the tree that UCM_TREE names.

UCM_TREE           built tree under test (default build/tree)
UCM_BASE_TREE      built tree of the unpatched base, for test_compat.py (default build/base/tree)
--conformance=FILE write each test's outcome as JSON; table.py makes the table from two of these
"""

import ctypes
import faulthandler
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
REPO = HERE.parents[1]
TREE = Path(os.environ.get("UCM_TREE", REPO / "build" / "tree")).resolve()
sys.path[:0] = [str(HERE), str(TREE)]
os.environ["UC_LOGGER_LEVEL"] = "off"

import faults as faults_module  # noqa: E402
import kit  # noqa: E402
from adapter import adapter as make_adapter  # noqa: E402

# ---- command line and results ----

_outcomes: dict[str, dict] = {}


def pytest_addoption(parser) -> None:
    parser.addoption("--conformance", type=Path, help="write outcomes to this file")


def pytest_configure(config) -> None:
    config.addinivalue_line("markers", "limit(seconds): a test that runs longer hangs")
    if not hasattr(config, "workerinput"):
        _preload(config)


def _preload(config) -> None:
    """Start pytest anew under the fault injector, which only the dynamic linker can load."""
    if faults_module.loaded() or os.environ.get("STORE_TESTS_PRELOADED"):
        return
    shim = faults_module.build()
    if shim is None:
        return
    config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
    before = os.environ.get("LD_PRELOAD", "")
    os.environ["LD_PRELOAD"] = f"{before}:{shim}".lstrip(":")
    os.environ["STORE_TESTS_PRELOADED"] = "1"
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if Path(item.path).parent == HERE:
            words = " ".join((item.obj.__doc__ or "").split("\n\n")[0].split())
            _outcomes[item.nodeid] = {"invariant": words, "outcome": "not run"}


def pytest_runtest_logreport(report) -> None:
    known = _outcomes.get(report.nodeid)
    if known is None or (report.when == "teardown" and report.passed):
        return
    if report.when == "call" or not report.passed:
        known["outcome"] = report.outcome


def pytest_sessionfinish(session) -> None:
    target = session.config.getoption("conformance", None)
    if target:
        target.write_text(json.dumps(_outcomes, indent=1))


# ---- one process per test ----

PR_SET_PDEATHSIG = 1


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem) -> bool:
    """A store that hangs, crashes or scribbles fails its test and no other."""
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    mark = pyfuncitem.get_closest_marker("limit")
    limit = mark.args[0] if mark else 15
    sys.stdout.flush()
    sys.stderr.flush()
    receive, send = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        _run_in_child(pyfuncitem, arguments, send, limit)
    send.close()
    outcome, text = _outcome(receive, pid, limit)
    if outcome == "skipped":
        pytest.skip(text)
    if outcome == "failed":
        pytest.fail(text, pytrace=False)
    return True


def _run_in_child(item, arguments: dict, send, limit: float) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.dump_traceback_later(max(1, limit - 1), file=sys.__stderr__)
    try:
        item.obj(**arguments)
        result = "passed", ""
    except pytest.skip.Exception as reason:
        result = "skipped", str(reason)
    except BaseException:
        result = "failed", str(item.repr_failure(pytest.ExceptionInfo.from_current()))
    sys.stdout.flush()
    sys.stderr.flush()
    send.send(result)
    os._exit(0)


def _outcome(receive, pid: int, limit: float) -> tuple[str, str]:
    try:
        if receive.poll(limit):
            return receive.recv()
        return "failed", f"hung: no result after {limit} s"
    except EOFError:
        time.sleep(0.05)
        done, status = os.waitpid(pid, os.WNOHANG)
        number = os.WTERMSIG(status) if done and os.WIFSIGNALED(status) else 0
        name = signal.Signals(number).name if number else f"status {status}"
        return "failed", f"the process died: {name}"
    finally:
        _end(pid)


def _end(pid: int) -> None:
    """The test's process and all that it started."""
    for stop in (lambda: os.killpg(pid, signal.SIGKILL), lambda: os.waitpid(pid, 0)):
        with suppress(ProcessLookupError, ChildProcessError, PermissionError):
            stop()


# ---- fixtures ----


class Site:
    """A folder for stores, and the stores opened on it. They live until the test ends."""

    def __init__(self, adapter, root: Path) -> None:
        self.adapter, self.root = adapter, root
        self._kept: list = []

    def open(self, spec: kit.StoreSpec, *roots: Path, keep: bool = True):
        store = self.adapter.open(spec, list(roots) or [self.root])
        if keep:
            self._kept.append(store)
        return store

    def path(self, block: bytes) -> Path:
        return self.adapter.path(self.root, block)

    def blocks(self) -> set[str]:
        return self.adapter.blocks(self.root)

    def temporaries(self) -> list[Path]:
        return self.adapter.temporaries(self.root)

    def folder(self, name: str) -> Path:
        """An empty folder beside the root."""
        path = self.root.parent / name
        path.mkdir()
        return path


@pytest.fixture(scope="session", autouse=True)
def tree() -> Path:
    """The tree under test. What tests import late is imported here, for each test's process."""
    if not (TREE / "ucm").is_dir():
        pytest.fail(f"there is no built tree at {TREE}; next: make build", False)
    import ucm.store.pipeline.connector as connector

    np.random.default_rng(0)
    if TREE not in Path(connector.__file__).resolve().parents:
        pytest.fail(f"UCM_TREE is {TREE}, but ucm is {connector.__file__}", False)
    return TREE


def _site(parent: str | None):
    folder = Path(tempfile.mkdtemp(prefix="store-", dir=parent))
    folder.chmod(0o755)
    (folder / "root").mkdir()
    yield Site(make_adapter(), folder / "root")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def site(tree):
    yield from _site(None)


@pytest.fixture
def fast_site(tree):
    """In memory, for thousands of folders."""
    yield from _site("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


@pytest.fixture(params=make_adapter().engines)
def engine(request) -> str:
    return request.param


@pytest.fixture
def spec(engine) -> kit.StoreSpec:
    return kit.StoreSpec(engine=engine)


@pytest.fixture
def plain() -> kit.StoreSpec:
    """For what the engine has no part in."""
    return kit.StoreSpec()


@pytest.fixture
def faults() -> faults_module.Faults:
    if not faults_module.loaded():
        pytest.skip("faults need gcc and LD_PRELOAD, on Linux")
    return faults_module.Faults()


@pytest.fixture
def no_sanitizer() -> None:
    """For what a sanitizer's runtime changes in the process: signals, uninstrumented code, and a
    fork beside a busy thread, which leaves the child the locks of the sanitizer's allocator.
    """
    if any(f"lib{kind}san" in os.environ.get("LD_PRELOAD", "") for kind in "at"):
        pytest.skip(
            "under a sanitizer signals, forks and uninstrumented code differ; make test runs it"
        )


@pytest.fixture
def base_tree(no_sanitizer) -> Path:
    path = Path(os.environ.get("UCM_BASE_TREE", REPO / "build/base/tree")).resolve()
    if not (path / "ucm").is_dir():
        pytest.skip("no built base: run make build/base/tree; make test does")
    return path
