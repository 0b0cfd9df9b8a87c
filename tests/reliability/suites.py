"""Suites that have tests of their own, run and counted: UCM's C++ tests, security, sanitizers."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from _where import ROOT
from deployments import Wrong

GTEST = ["ci/gtest.sh", "release"]
PATCHES, OVERLAY = ROOT / "patches", ROOT / "ucm_overlay"

# What docs/reliability.md promises, and the tests that hold it: of pytest, and suites of gtest.
PROMISES = {
    "names cannot leave the root or collide": [
        "tests/hicache/test_security.py::test_a_pool_name_is_a_folder_name_or_refused",
        "tests/hicache/test_security.py::test_a_model_name_never_reaches_a_path",
        "tests/hicache/test_security.py::test_a_namespace_is_a_folder_name_or_refused",
        "tests/hicache/test_security.py::test_names_that_differ_in_case_share_no_block",
        "tests/hicache/test_markers.py::test_names_that_become_one_key_are_told_apart",
        "tests/hicache/test_markers.py::test_namespace",
        "tests/hicache/test_keys.py::test_names_that_are_no_folder",
        "tests/hicache/test_keys.py::test_suffixes_of_all_ranks_differ",
    ],
    "rights of files and folders": [
        "tests/hicache/test_security.py::test_rights_whatever_the_umask",
        "tests/store/test_lookup.py::test_another_user_of_the_group_hits",
        "UCPosixPermissionTest",
    ],
    "links are not followed": [
        "tests/hicache/test_security.py::test_a_link_in_a_blocks_place_is_not_followed",
        "tests/hicache/test_security.py::test_a_link_in_place_of_the_temporaries_is_not_swept",
        "tests/hicache/test_security.py::test_nothing_is_written_through_a_link",
        "tests/hicache/test_markers.py::test_a_link_in_place_of_the_markers_folder_is_refused",
        "tests/store/test_publish.py::test_planted_names_are_not_written_through",
        "tests/store/test_publish.py::test_link_in_place_of_a_block_is_not_written_through",
        "UCPosixLinkTest",
        "UCPosixLinkedFolderTest",
    ],
    "planted markers and file names": [
        "tests/hicache/test_markers.py::test_a_damaged_marker_is_refused",
        "tests/hicache/test_markers.py::test_what_is_no_file_is_no_marker",
        "tests/hicache/test_block_files.py::test_strangers_are_unknown",
        "tests/hicache/test_tool_disk.py::test_names_that_are_no_text",
    ],
    "sizes that no page can have": [
        "tests/hicache/test_pools.py::test_refused_pool_leaves_nothing_behind",
        "tests/hicache/test_pools.py::test_refused_anchor_leaves_nothing_behind",
        "UCPosixBlockLimitTest",
    ],
    "logs tell no secret and no content": [
        "tests/hicache/test_security.py::test_logs_tell_no_secret_and_no_content",
    ],
    "configuration is data": [
        "tests/hicache/test_security.py::test_configuration_is_data",
        "tests/hicache/test_security.py::test_module_path_is_sglangs_affair",
    ],
}

# Parts of the soak under each sanitizer, their size, and the figure that tells how much they did.
RACES = ("concurrency", {"seconds": 60, "processes": 4, "threads": 2}, "bytes compared")
SOAKS = {
    "asan": [
        ("oracle", {"operations": 20_000}, "operations"),
        ("metadata", {"tries": 5_000}, "tries"),
        RACES,
    ],
    "tsan": [RACES],
}
REPORT = re.compile(r"(?:ERROR|WARNING): \w+Sanitizer|\w+:\d+:\d+: runtime error:")
NOT_UNDER_SANITIZERS = "under a sanitizer"  # how tests/store/conftest.py begins a skip
END = 4000  # characters of a failed run's output to show


@dataclass(frozen=True)
class Test:
    """One result. suite: gtest's, or pytest's file. file: of gtest's source."""

    suite: str
    name: str
    outcome: str = "passed"
    why: str = ""
    file: str = ""

    @property
    def id(self) -> str:
        """As PROMISES has it, without the parameters of pytest's."""
        function = self.name.partition("[")[0]
        return f"{self.suite}::{function}" if self.suite.endswith(".py") else self.suite


def results(folder: Path) -> list[Test]:
    """What a folder of JUnit files tells; of a test that was tried again, the last try."""
    found = {}
    for path in sorted(folder.glob("*.xml"), key=lambda p: p.stat().st_mtime_ns):
        for case in ElementTree.parse(path).iter("testcase"):
            # gtest says so of a disabled one; what a build lists has no class.
            if case.get("status") != "notrun" and case.get("classname"):
                test = _test(case)
                found[test.suite, test.name] = test
    return list(found.values())


def _test(case: ElementTree.Element) -> Test:
    suite, file = case.get("classname"), case.get("file") or ""
    if not file:  # pytest gives its file as a module
        suite = suite.replace(".", "/") + ".py"
    for kind in ("failure", "error", "skipped"):
        mark = case.find(kind)
        if mark is not None:
            outcome = "skipped" if kind == "skipped" else "failed"
            return Test(suite, case.get("name"), outcome, mark.get("message"), file)
    return Test(suite, case.get("name"), file=file)


def call(words: Sequence[object], folder: Path, clean: bool = True) -> tuple[list, str]:
    """Run a suite; its tests and its output. Raises Wrong with the names of those that failed.

    clean: without what a sanitized or outer run has put into the environment.
    """
    folder = folder.resolve()  # suites change theirs
    folder.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ)
    for name in env.keys() & OF_THE_CALLER if clean else ():
        del env[name]
    env["GTEST_OUTPUT"] = f"xml:{folder}/"
    env["PYTEST_ADDOPTS"] = f"--junitxml={folder}/pytest.xml"
    words = [str(word) for word in words]
    print("   ", *words[:6], flush=True)
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    run = subprocess.run(words, cwd=ROOT, env=env, errors="replace", **output)
    tests = results(folder)
    failed = [f"{t.suite} {t.name}" for t in tests if t.outcome == "failed"]
    if failed or run.returncode or REPORT.search(run.stdout):
        names = "".join(f"\n{name}" for name in failed)
        raise Wrong(
            f"{' '.join(words)} ended with {run.returncode}; failed: {len(failed)}"
            f"{names}\n{run.stdout[-END:]}"
        )
    return tests, run.stdout


# `make` hands its variables on, ci/conformance.sh a sanitizer's, and the soak is silent.
OF_THE_CALLER = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "VARIANT", "SANITIZE", "UCM_TREE"}
OF_THE_CALLER |= {"SHORT", "PUBLISH", "ONLY", "SEED", "SIZE", "SKIP", "LD_PRELOAD"}
OF_THE_CALLER |= {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "UC_LOGGER_LEVEL"}


def no_skips(tests: list[Test], but: str | None = None) -> int:
    """The number of tests that were skipped for this reason. Raises Wrong for any other."""
    skipped = [test for test in tests if test.outcome == "skipped"]
    for test in skipped:
        if but is None or but not in test.why:
            raise Wrong(f"{test.suite} {test.name} was skipped: {test.why}")
    return len(skipped)


# ---- UCM's C++ tests ----


def gtests(seed: int, folder: Path) -> dict:
    """Raises Wrong. Upstream's own tests and the series', which live in files of the overlay."""
    tests, _ = call(GTEST, folder)
    no_skips(tests)
    ours = {path.name for path in OVERLAY.rglob("*_test.cc")}
    whose = Counter(Path(test.file).name in ours for test in tests)
    if not whose[True] or not whose[False]:
        raise Wrong(f"only {dict(whose)} tests of the series and of upstream ran")
    return {
        "upstream's own tests passed": whose[False],
        "upstream's own tests failed": 0,
        "tests of the series passed": whose[True],
        "tests of the series failed": 0,
        **changed_expectations(),
    }


def changed_expectations(patches: Path = PATCHES) -> dict:
    """Upstream's test files that the series changes. Raises Wrong where an entry does not say so."""
    changes = {}
    for patch in sorted(patches.glob("*.patch")):
        message, _, diff = patch.read_text().partition("\ndiff --git ")
        for path in re.findall(r"^--- a/(\S+_test\.cc)$", diff, re.M):
            suite = "uc" + Path(path).stem.replace("_", "")
            if suite not in message.lower():
                raise Wrong(f"{patch.name} changes {path}, and does not say so")
            changes.setdefault(Path(path).name, []).append(patch.name[:4])
    told = (f"{name} ({', '.join(by)})" for name, by in changes.items())
    return {
        "upstream's test files with changed expectations": len(changes),
        "of them, by entries that say why": ", ".join(told),
    }


# ---- security ----


def security(seed: int, folder: Path) -> dict:
    """Raises Wrong. The tests that passed for each promise."""
    wanted = [test for tests in PROMISES.values() for test in tests]
    files = [test for test in wanted if "::" in test]
    suites = ":".join(f"{test}.*" for test in wanted if "::" not in test)
    tests, _ = call([*GTEST, suites], folder / "gtest")
    for name in {test.split("/")[1] for test in files}:  # of a conftest.py each
        mine = [test for test in files if test.startswith(f"tests/{name}/")]
        words = [sys.executable, "-m", "pytest", "-q", *mine]
        tests += call(words, folder / name, clean=False)[0]
    no_skips(tests)
    passed = Counter(test.id for test in tests)
    missing = [test for test in wanted if not passed[test]]
    if missing:
        raise Wrong(f"did not run: {', '.join(missing)}")
    told = {what: sum(passed[t] for t in names) for what, names in PROMISES.items()}
    return {f"{what}: passed": n for what, n in told.items()} | {"failed": 0}


# ---- sanitizers ----


def sanitizers(seed: int, folder: Path, variants: Sequence[str] = tuple(SOAKS)) -> dict:
    """Raises Wrong. The table of docs/reliability.md, by the same commands, counted."""
    told = {}
    for variant in variants:
        for target in ("gtest", "conformance"):
            told |= _sanitized(target, variant, folder / variant / target)
        for part, size, what in SOAKS[variant]:
            found = _sanitized_soak(variant, part, size, seed, folder / variant)
            told[f"{variant}, {part}: {what}"] = found[what]
    return told | {"reports": 0}


def _sanitized(target: str, variant: str, folder: Path) -> dict:
    tests, _ = call(["make", target, f"VARIANT={variant}"], folder)
    skipped = no_skips(tests, NOT_UNDER_SANITIZERS)
    if len(tests) == skipped:
        raise Wrong(f"make {target} VARIANT={variant} ran no test")
    told = {f"{variant}, make {target}: passed": len(tests) - skipped}
    if skipped:
        told[f"{variant}, make {target}: left to make test"] = skipped
    return told


def _sanitized_soak(variant: str, part: str, size: dict, seed: int, folder) -> dict:
    """The part's own figures."""
    words = ["make", "soak", f"VARIANT={variant}", f"ONLY={part}", f"SEED={seed}"]
    _, output = call([*words, f"SIZE={json.dumps(size)}"], folder / "soak")
    (raw,) = re.findall(r"^raw +(\S+)$", output, re.M)
    return json.loads(Path(raw).read_text())[part]["figures"]
