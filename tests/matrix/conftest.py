"""Tests that run on every pinned SGLang release; `make matrix` puts one on the path."""

import os
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TREE = Path(os.environ.get("UCM_TREE", HERE.parents[1] / "build" / "tree")).resolve()
sys.path[:0] = [str(HERE), str(TREE)]
os.environ.setdefault("UC_LOGGER_LEVEL", "off")
warnings.filterwarnings("ignore")

import controller  # noqa: E402
import recorded_store  # noqa: E402
import torch  # noqa: E402
from mixes import MIXES  # noqa: E402
from storage import storage_folder, storage_options  # noqa: E402


def _release() -> dict:
    """The row that runs; a release that is not pinned counts as the newest."""
    text = (HERE.parents[1] / "ci" / "matrix" / "releases.toml").read_text()
    rows = {row["version"]: row for row in tomllib.loads(text)["release"]}
    newest = list(rows.values())[-1]
    version = os.environ.get("SGLANG_ROW", newest["version"])
    row = rows.get(version) or {**newest, "version": version}
    number = [int(part) for part in row["version"].partition(".post")[0].split(".")]
    return {**row, "newest": row["version"] == newest["version"], "number": number}


RELEASE = _release()


@pytest.fixture(scope="session", autouse=True)
def one_rank(tmp_path_factory):
    """This process is rank 0 of 1."""
    meeting = f"file://{tmp_path_factory.mktemp('gloo')}/meeting"
    torch.distributed.init_process_group(
        "gloo", init_method=meeting, rank=0, world_size=1
    )
    controller.prepare(0, 1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def no_calls_yet():
    recorded_store.CALLS.clear()
    recorded_store.BEFORE_READ.clear()


@pytest.fixture(scope="session")
def release():
    """The facts of ci/matrix/releases.toml about the release on the path."""
    return RELEASE


@pytest.fixture
def needs_l3():
    """Skips where the release brings this mix to no storage, or the connector refuses it."""

    def check(mix):
        if mix not in RELEASE["l3"]:
            pytest.skip(f"no L3 in SGLang {RELEASE['version']}: see test_tree.py")
        if mix in RELEASE.get("refused", {}):
            pytest.skip(f"refused on SGLang {RELEASE['version']}: see test_tree.py")

    return check


@pytest.fixture(params=MIXES)
def supported_mix(request, needs_l3):
    needs_l3(request.param)
    return request.param


@pytest.fixture
def folder():
    with storage_folder() as root:
        yield root


@pytest.fixture
def extra_config(folder):
    return storage_options(folder)
