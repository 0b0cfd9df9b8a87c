"""make matrix on two made-up releases: refusals, the interface probe, red and green rows."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from series_project import REPOSITORY, environment, refused, replace, write

STORAGE = "sglang/srt/mem_cache/hicache_storage.py"
CONTROLLER = "sglang/srt/mem_cache/hybrid_cache/hybrid_cache_controller.py"
FACTORY = "sglang/srt/mem_cache/storage/backend_factory.py"
BASE = """
class PoolName:
    KV = "kv"

class HiCacheStorage:
    def batch_exists_v2(self, keys, pool_transfers=None): ...
"""
CALLER = "def f(self):\n    self.storage_backend.batch_exists_v2(1, pool_transfers=2)\n"
MAKER = "def _create_dynamic_backend():\n    return backend_class(config, kwargs)\n"
NEWER = BASE + "    def evict(self, count): ...\n"
TEST = """
def test_a_page(record_property):
    record_property("mix", "KV")
    record_property("verdict", "pass")
    assert {claim}
"""


class Matrix:
    """A project with the real scripts, its own releases and its own package index."""

    def __init__(self, root: Path):
        self.root, self.home, self.index = root, root.parent / "home", root / "wheels"
        shutil.copytree(REPOSITORY / "scripts", root / "scripts")
        self.index.mkdir()
        self.hashes = {"0.5.8": self.wheel("0.5.8"), "0.5.9": self.wheel("0.5.9")}
        self.write_data()
        write(root, "ci/matrix/packages/one.txt", "# a pin\nnumpy==1.0\n")
        write(root, "ci/matrix/packages/other.txt", "numpy==2.0\n")
        write(root, "ci/matrix/interface.txt", "")
        write(root, "build/tree/ucm/__init__.py", "")
        write(root, "tests/matrix/test_contract.py", TEST.format(claim="True"))
        (root / "docs").mkdir()

    def write_data(self) -> None:
        rows = []
        for version, sha256 in self.hashes.items():
            row = {
                "version": version,
                "sha256": sha256,
                "tier": "supported",
                "packages": [],
                "tests": ["contract"],
                "registers": "anchor",
                "l3": ["KV"],
            }
            rows.append("[[release]]")
            rows += [f"{key} = {json.dumps(value)}" for key, value in row.items()]
        write(self.root, "ci/matrix/releases.toml", "\n".join(rows) + "\n")

    def wheel(self, version: str, base: str = BASE, **more: str) -> str:
        """Put a release on the index; returns the hash of its wheel."""
        path = self.index / f"sglang-{version}-py3-none-any.whl"
        files = {STORAGE: base, CONTROLLER: CALLER, FACTORY: MAKER, **more}
        folders = {str(folder) for name in files for folder in Path(name).parents}
        files |= {f"{folder}/__init__.py": "" for folder in folders - {"."}}
        info = f"sglang-{version}.dist-info"
        meta = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
        files[f"{info}/METADATA"] = meta
        files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nTag: py3-none-any\n"
        files[f"{info}/RECORD"] = ""
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(zipfile.ZipInfo(name), text)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def edit(self, old: str, new: str) -> None:
        replace(self.root, "ci/matrix/releases.toml", old, new)

    def run(self, *args: str) -> subprocess.CompletedProcess:
        env = environment(self.home, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(self.index))
        tool = [sys.executable, str(self.root / "scripts/matrix.py"), *args]
        return subprocess.run(
            tool, cwd=self.root, env=env, capture_output=True, text=True
        )

    def recorded(self) -> "Matrix":
        assert self.run("--probe", "--record").returncode == 0
        return self


@pytest.fixture
def matrix(tmp_path) -> Matrix:
    return Matrix(tmp_path / "project")


EDIT = "edit ci/matrix/releases.toml"


def test_unknown_release(matrix):
    refused(matrix.run("--sglang", "0.5.7"), "0.5.7 is not pinned", "0.5.8 0.5.9", EDIT)


def test_missing_wheel(matrix):
    matrix.edit('version = "0.5.9"', 'version = "0.5.10"')
    refused(matrix.run("--probe"), "SGLang 0.5.10 cannot be fetched", EDIT)


def test_another_hash(matrix):
    good = matrix.hashes["0.5.9"]
    matrix.edit(good, "ab" * 32)
    refused(matrix.run("--probe"), "0.5.9 has another hash", "ab" * 32, good, EDIT)
    assert not (matrix.root / "build/matrix/sglang/0.5.9").exists()


def test_a_wheel_that_was_replaced_is_fetched_again(matrix):
    matrix.recorded()
    old, new = matrix.hashes["0.5.9"], matrix.wheel("0.5.9", NEWER)
    matrix.edit(old, new)
    refused(
        matrix.run("--probe"), "interface.txt is not", "+ method evict(self, count)"
    )


def test_packages_conflict(matrix):
    matrix.edit("packages = []", 'packages = ["one", "other"]')
    done = matrix.run("--probe")
    refused(done, "one version of numpy", "1.0 in one.txt, 2.0 in other.txt")
    assert "next: edit ci/matrix/packages/other.txt" in done.stderr


def test_packages_that_are_not_there(matrix):
    matrix.recorded()
    matrix.edit("packages = []", 'packages = ["none"]')
    refused(matrix.run("--probe"), "ci/matrix/packages/none.txt", EDIT)
    matrix.edit('packages = ["none"]', 'packages = ["one"]')
    done = matrix.run("--probe")
    refused(done, "packages of SGLang 0.5.8 cannot be installed", "numpy==1.0")
    assert "next: edit ci/matrix/packages/one.txt" in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "phrase"),
    [
        ('tier = "supported"', 'tier = "maybe"', "supported or canary"),
        ('tier = "supported"\n', "", "'tier'"),
        ('tier = "supported"', 'tiers = "supported"', "'tiers'"),
        ('version = "0.5.8"', 'version = "0.5.11"', "oldest first"),
        ('version = "0.5.8"', 'version = "0.5.9"', "each release once"),
        ("[[release]]", "[[release]", "cannot be read"),
    ],
)
def test_data_that_is_wrong(matrix, old, new, phrase):
    matrix.edit(old, new)
    refused(matrix.run("--probe"), phrase, EDIT, code=2)


def test_no_wheel_hash(matrix):
    matrix.edit(matrix.hashes["0.5.8"], "")
    refused(matrix.run("--probe"), "SGLang 0.5.8: no wheel hash", EDIT, code=2)


def test_nothing_built(matrix):
    shutil.rmtree(matrix.root / "build")
    refused(matrix.run(), "no built UCM", "next: make build")


def test_a_release_that_does_not_load(matrix):
    broken = matrix.wheel("0.5.9", **{CONTROLLER: "import no_such_package\n"})
    matrix.edit(matrix.hashes["0.5.9"], broken)
    matrix.recorded()
    done = matrix.run()
    assert done.returncode == 1
    assert "no_such_package" in done.stdout and EDIT in done.stdout
    rows = {
        line.split()[0]: line
        for line in done.stdout.splitlines()
        if "supported" in line
    }
    assert "cannot be imported" in rows["0.5.9"] and rows["0.5.8"].endswith("ok")


def test_the_record_is_checked(matrix):
    done = matrix.run("--probe")
    refused(done, "interface.txt is not", "+ call batch_exists_v2(_, pool_transfers=_)")
    matrix.recorded()
    assert matrix.run("--probe").returncode == 0


def test_the_probe_says_what_is_new(matrix):
    matrix.edit(matrix.hashes["0.5.9"], matrix.wheel("0.5.9", NEWER))
    done = matrix.run("--probe", "--record")
    assert "== SGLang 0.5.9: 1 new in its interface\n   + method evict" in done.stdout
    assert "0.5.9         supported      1" in done.stdout


def test_a_green_run_writes_the_table(matrix):
    done = matrix.recorded().run()
    assert done.returncode == 0, done.stdout + done.stderr
    table = (matrix.root / "docs/support.md").read_text()
    assert "| SGLang | KV |\n| --- | --- |\n| 0.5.9 | pass |\n| 0.5.8 | pass |" in table
    done = matrix.run("--sglang", "0.5.8,newest,0.5.9")
    assert done.returncode == 0
    head, *rows = [line.split() for line in done.stdout.splitlines()[-3:]]
    assert head[0] == "release"
    assert [(row[0], row[-1]) for row in rows] == [("0.5.8", "ok"), ("0.5.9", "ok")]


def test_a_red_row_names_its_first_difference(matrix):
    matrix.recorded()
    claim = "'0.5.9' not in __import__('os').environ['SGLANG_ROW'], 'a page is gone'"
    write(matrix.root, "tests/matrix/test_contract.py", TEST.format(claim=claim))
    done = matrix.run()
    assert done.returncode == 1
    assert "test_contract::test_a_page: AssertionError: a page is gone" in done.stdout
    assert "next: read build/matrix/results/0.5.9.txt" in done.stdout


def test_a_row_that_disagrees_with_the_table_is_red(matrix):
    assert matrix.recorded().run().returncode == 0
    replace(matrix.root, "docs/support.md", "| 0.5.8 | pass |", "| 0.5.8 | no L3 |")
    done = matrix.run("--sglang", "0.5.8")
    assert done.returncode == 1
    assert "docs/support.md is not: | 0.5.8 | pass |" in done.stdout


CRASH = "import atexit, os\natexit.register(os._exit, 7)\n"


def test_a_crash_after_the_last_test_is_red(matrix):
    write(
        matrix.recorded().root,
        "tests/matrix/test_contract.py",
        CRASH + TEST.format(claim="True"),
    )
    done = matrix.run("--sglang", "0.5.9")
    assert done.returncode == 1 and "pytest ended with 7" in done.stdout


def test_a_row_without_a_test_that_ran_is_red(matrix):
    write(matrix.recorded().root, "tests/matrix/test_contract.py", "")
    done = matrix.run("--sglang", "0.5.9")
    assert done.returncode == 1 and "pytest ended with 5" in done.stdout


def test_a_red_run_leaves_the_table(matrix):
    write(matrix.recorded().root, "docs/support.md", "as it was")
    write(matrix.root, "tests/matrix/test_contract.py", TEST.format(claim="False"))
    assert matrix.run().returncode == 1
    assert (matrix.root / "docs/support.md").read_text() == "as it was"


def test_names_of_tests(matrix):
    """An unknown one would leave pytest without a file, and it would run everything."""
    matrix.recorded()
    refused(
        matrix.run("--tests", "contracts"), "TESTS=", "some of contract", "contracts"
    )
    matrix.edit('tests = ["contract"]', "tests = []")
    refused(matrix.run(), "tests of 0.5.8", "some of contract", "none", EDIT)


def test_canary(matrix):
    """Green while nothing is new; red, with the first new thing, once there is."""
    assert (
        "no SGLang newer than 0.5.9 is out" in matrix.recorded().run("--canary").stdout
    )
    matrix.wheel("0.5.10", NEWER)
    done = matrix.run("--canary")
    assert done.returncode == 1
    assert "0.5.10        canary" in done.stdout
    assert "interface: + method evict(self, count)" in done.stdout
    assert "test_contract" not in done.stdout


def test_list_is_json(matrix):
    assert json.loads(matrix.run("--list").stdout) == ["0.5.8", "0.5.9"]


def test_every_row_of_this_project_is_well_formed():
    """And the table in docs has a line for it."""
    tool = [sys.executable, str(REPOSITORY / "scripts/matrix.py"), "--list"]
    versions = json.loads(subprocess.check_output(tool, text=True))
    table = (REPOSITORY / "docs/support.md").read_text()
    assert versions and all(f"| {version} |" in table for version in versions)
    assert os.access(REPOSITORY / "ci/matrix/interface.txt", os.R_OK)
