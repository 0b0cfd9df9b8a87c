"""Build and test every point of the series; see each entry's test fail on the parent.

A header's `Proof:` names the test: a gtest fixture, or pytest's arguments. The entry's test
files alone are added to the parent, where the test must build and fail. `new-api` before
the name marks a test that cannot build there. Good results are kept by content in
docs/data/points.json, so that a walk goes on where one stopped, here or on another machine;
the table goes to docs/bisect.md.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import _checkout as checkout
from _commits import commit_series
from _git import git, git_ok
from _lock import hold
from _pin import BUILD, ROOT
from _report import Refusal, run
from _series import Entry, read_header, read_series
from _stuck import readable, refuse_locked

from build import GTEST, PYTHON

WORK = BUILD / "points"
POINT, TREE = WORK / "ucm", WORK / "tree-debug"
AGAIN = "the same again"
KNOWN = ROOT / "docs" / "data" / "points.json"
PROGRAM = WORK / "cmake-debug" / "ucm" / "store" / "test" / GTEST
TABLE = ROOT / "docs" / "bisect.md"
TESTS = ("ucm/store/test/", "test/")
CONNECTOR = Path("ucm/integration/sglang")
# Python's way not to compile: what the entry adds is not there yet.
ABSENT = re.compile(
    "ImportError|ModuleNotFoundError|AttributeError|"
    "TypeError.* (unexpected keyword|positional) argument"
)
IMPORT = """import importlib, sys
for name in sys.argv[1:]:
    print(name, flush=True)
    importlib.import_module(name)
"""
RED = ("fails", "hangs", "crashes")
CANNOT = ("does not build", "needs what the entry adds", "cannot be imported")
COUNTS = "{} entries were built and tested; the tests of {} fail on the parent.\n\n"
COLUMNS = (
    "| entry | its test | on the parent | on it | all | |\n|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True)
class Proof:
    """What a `Proof:` trailer says."""

    test: str
    new_api: bool

    @staticmethod
    def of(entry: Entry) -> "Proof":
        words = read_header(entry.path.read_bytes()).trailers.get("Proof", [""])[0]
        return Proof(words.removeprefix("new-api "), words.startswith("new-api "))

    @property
    def is_python(self) -> bool:
        return "/" in self.test

    @property
    def sources(self) -> bytes:
        """A Python test of this project, and the files of its folder that it may use."""
        path = ROOT / self.test.split(" ")[0]
        if not self.is_python or not path.is_file():
            return b""
        text = path.read_text()
        used = [
            file
            for file in sorted(path.parent.glob("*.py"))
            if not file.name.startswith("test_") or file.stem in text
        ]
        return b"\0".join(file.read_bytes() for file in [path, *used])


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    repo = checkout.find_checkout(None)
    entries, marks = read_series(), checkout.applied(repo)
    if not marks or commit_series(repo, marks[0], entries) != marks[1]:
        raise Refusal(
            "this series is not applied",
            expected=f"patches/ as commits in {repo}",
            found="another version, or none",
            next="make refresh to keep edits made there, or make apply",
        )
    prepare(repo, marks[0])
    known = json.loads(KNOWN.read_text()) if KNOWN.is_file() else {}
    commits = git(repo, "rev-list", "--reverse", f"{marks[0]}..{marks[1]}").split()
    KNOWN.parent.mkdir(parents=True, exist_ok=True)
    rows, parent = [], marks[0]
    for entry, commit in zip(entries, commits, strict=True):
        rows.append([entry.patch[:-6], *examine(entry, parent, commit, known)])
        print(" | ".join(rows[-1]), flush=True)
        KNOWN.write_text(json.dumps(known, indent=1) + "\n")
        write_table(rows, entries)
        parent = commit
    faults = sum(row[-1] != "ok" for row in rows)
    print(f"{'FAILED' if faults else 'ok'}  {len(rows)} points, {faults} findings")
    if faults:
        print(f"next: read {WORK}/log.txt; results that are ok are kept")
    return 1 if faults else 0


def write_table(rows: list[list[str]], entries: list[Entry]) -> None:
    """After every entry: what an interrupted walk has not reached is in the table, too."""
    red = sum(row[2].startswith(RED) and "new-api" not in row[1] for row in rows)
    todo = [[e.patch[:-6], "", "not run yet", "", "", ""] for e in entries[len(rows) :]]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows + todo)
    text = TABLE.read_text() if TABLE.is_file() else ""
    intro = re.split(r"^\d+ entries were built", text, maxsplit=1, flags=re.M)[0]
    TABLE.write_text(intro + COUNTS.format(len(rows), red) + COLUMNS + table)


def prepare(repo: Path, start: str) -> None:
    """One worktree for all points, so that each build is a small step from the last."""
    hold(
        WORK / "lock",
        "points of the series are built by another process",
        expected=f"nobody at work in {WORK}",
        found="make verify BUILD=1 or make pr, still running",
    )
    if not is_worktree_of(repo):
        shutil.rmtree(POINT, ignore_errors=True)
        # Twice: a record of this path that a killed git left, and locked, is ours.
        add = ("worktree", "add", "--quiet", "--force", "--force", "--detach")
        with readable(f"git -C {repo} fetch, then {AGAIN}"):
            git(repo, *add, str(POINT), start)
    refuse_locked(POINT, AGAIN)


def is_worktree_of(repo: Path) -> bool:
    """Asked of POINT itself: a record in `repo` outlives a POINT that is another's now."""
    ask = ("rev-parse", "--path-format=absolute", "--git-common-dir")
    if not (POINT / ".git").exists() or not git_ok(POINT, *ask):
        return False
    return git(POINT, *ask) == git(repo, *ask)


def examine(entry: Entry, parent: str, commit: str, known: dict) -> list[str]:
    """Test, outcomes on the parent, on it and of all, and the verdict; `known` when good."""
    proof = Proof.of(entry)
    trees = git(POINT, "rev-parse", f"{parent}^{{tree}}", f"{commit}^{{tree}}")
    key = hashlib.sha256(
        f"{trees} {proof} {IMPORT}".encode() + proof.sources
    ).hexdigest()
    if key in known:
        name, before, own, every, _ = known[key]
        end = verdict(entry, proof, before, own, every)
        return [name, before, own, every, end]
    before = own = every = "-"
    if proof.test:
        switch(parent)
        added = [path for path in entry.overlay if path.startswith(TESTS)]
        if proof.is_python:
            added = [path for path in added if path in proof.test]
        if added:
            git(POINT, "checkout", "--quiet", commit, "--", *added)
        before = run_test(proof) if compile_point() else "does not build"
    switch(commit)
    if not compile_point():
        own = every = "does not build"
    else:
        own = run_test(proof) if proof.test else "-"
        every = run_all(known)
    name = f"{proof.test or 'none'}{' (new-api)' * proof.new_api}"
    row = [name, before, own, every, verdict(entry, proof, before, own, every)]
    if row[-1] == "ok":
        known[key] = row
    return row


def verdict(entry: Entry, proof: Proof, before: str, own: str, every: str) -> str:
    subject = read_header(entry.path.read_bytes()).subject
    if not every.startswith("passes") or not own.startswith(("passes", "-")):
        return "NOT GOOD at its point"
    if not proof.test:
        return "NO PROOF" if "[Bugfix]" in subject else "ok"
    excused = proof.new_api and before in CANNOT or "[Test]" in subject
    # What only gets faster must do as before, which a test that passes on both shows.
    excused |= before.startswith("passes") and subject.startswith("[Opt]")
    excused &= "[Bugfix]" not in subject
    return "ok" if excused or before.startswith(RED) else "PROVES NOTHING"


def switch(commit: str) -> None:
    with readable(f"git -C {POINT} fetch, then {AGAIN}"):
        git(POINT, "checkout", "--quiet", "--force", "--detach", commit)
        git(POINT, "clean", "-fdq")
    # The tests of other stores, and these stores, are half of what would be compiled.
    cmake = POINT / "ucm" / "store" / "test" / "CMakeLists.txt"
    if cmake.is_file():
        text = cmake.read_text().replace("cachestore fakestore pcstore", "")
        every, ours = '"./case/*.cc"', '"./case/posix/*.cc" "./case/detail/*.cc"'
        cmake.write_text(text.replace(every, ours))


def compile_point() -> bool:
    command = [sys.executable, ROOT / "scripts" / "build.py", "--ucm", POINT]
    command += ["--out", WORK, "--variant", "debug", "--gtest", "--only", "native"]
    return execute(command, 1800, ROOT)[0] == 0


def run_all(known: dict) -> str:
    """Every gtest of PosixStore, once for the same native code, and every module's import."""
    listed = git(POINT, "ls-tree", "-r", "HEAD").splitlines()
    native = [row for row in listed if row.endswith((".cc", ".h", "CMakeLists.txt"))]
    key = hashlib.sha256("\n".join(native).encode()).hexdigest()
    found = known.get(key) or run_gtest("UCPosix*", shards=4)
    if not found.startswith("passes"):
        return found
    known[key] = found
    modules = import_connector()
    return f"{found}; {modules}" if modules.endswith(" modules import") else modules


def import_connector() -> str:
    """Import every module that the connector has here, in one process."""
    paths = (path.relative_to(TREE) for path in (TREE / CONNECTOR).rglob("*.py"))
    dotted = (".".join(path.with_suffix("").parts) for path in paths)
    names = sorted(name.removesuffix(".__init__") for name in dotted)
    names = [name for name in names if not name.endswith(".__main__")]
    command = [PYTHON, "-c", IMPORT, *names]
    failed, text = execute(command, 300, TREE, PYTHONPATH=str(TREE))
    if failed:
        begun = [row for row in text.splitlines() if row in names] or ["Python"]
        return f"{begun[-1]} does not import"
    return f"{len(names)} modules import"


def run_test(proof: Proof) -> str:
    """Outcome in words, which begin with passes or one of RED if the test ran."""
    if proof.is_python:
        return run_pytest(proof.test)
    return run_gtest(fixtures(proof), 120)


def fixtures(proof: Proof) -> str:
    return ":".join(f"{word}.*" for word in proof.test.split())


def run_gtest(chosen: str, limit: int = 600, shards: int = 1) -> str:
    """Tests in `shards` processes at a time: most of them wait. Those that then fail get
    one more try alone, for tests of time fail on a busy machine, and the outcome says so.
    """

    def shard(index: int) -> tuple[int, str]:
        env = {"GTEST_TOTAL_SHARDS": f"{shards}", "GTEST_SHARD_INDEX": f"{index}"}
        with tempfile.TemporaryDirectory() as scratch:
            os.chmod(scratch, 0o755)  # one test reads as another user
            command = [PROGRAM, f"--gtest_filter={chosen}"]
            return execute(command, limit, Path(scratch), **env)

    with ThreadPoolExecutor(shards) as pool:
        runs = [*pool.map(shard, range(shards))]
    total, failed = 0, set()
    for code, text in runs:
        begun = re.findall(r"\[ RUN      \] (\S+)", text)
        if (
            begun
            and f"[==========] {len(begun)} test" not in text.partition(" RUN ")[2]
        ):
            return (
                f"{'hangs' if code == 137 else 'crashes'} in {begun[-1].split('.')[1]}"
            )
        failed |= {*re.findall(r"\[  FAILED  \] (\w+\.[\w/]+)", text)}
        total += len(begun)
    if failed and shards > 1 and run_gtest(":".join(failed), limit)[:6] == "passes":
        return f"passes: {total}, {len(failed)} of them when run again"
    if any(code for code, _ in runs):
        return f"fails: {len(failed)} of {total}"
    return f"passes: {total}" if total else "no such test"


def run_pytest(words: str) -> str:
    """Tests of a UCM tree run there, those of this project here, on the same tree."""
    where = TREE if (TREE / shlex.split(words)[0]).exists() else ROOT
    with tempfile.TemporaryDirectory() as scratch:
        command = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [f"--basetemp={scratch}/pytest", f"--rootdir={ROOT}"]
        report = Path(scratch) / "report.xml"
        env = {"UCM_TREE": str(TREE), "PYTHONPATH": str(TREE)}
        command += [f"--junitxml={report}", *shlex.split(words)]
        code, text = execute(command, 600, where, **env)
        found = xml.parse(report).iter("failure") if report.is_file() else []
        reasons = [failure.get("message", "") for failure in found]
    count = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed)", text)}
    passed, failed = count.get("passed", 0), count.get("failed", 0)
    if code == 0 and passed:
        return f"passes: {passed}"
    if code == 1 and failed and all(map(ABSENT.match, reasons)):
        return "needs what the entry adds"
    if code == 1 and failed:
        return f"fails: {failed} of {failed + passed}"
    return "hangs" if code == 137 else "cannot be imported"


def execute(command: list, limit: int, where: Path, **env: str) -> tuple[int, str]:
    """Exit code, 137 past the limit in seconds, and output, which a log keeps."""
    words = ["timeout", "--signal=KILL", *map(str, [limit, *command])]
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(words, cwd=where, env={**os.environ, **env}, **out)
    text = done.stdout.decode("utf-8", "replace")
    with open(WORK / "log.txt", "a") as log:
        log.write(f"$ {shlex.join(words)}\n{text}")
    return 137 if done.returncode == -9 else done.returncode, text


def last_output(rows: int) -> str:
    """The last lines of what the last command said."""
    return "\n".join((WORK / "log.txt").read_text().strip().splitlines()[-rows:])


if __name__ == "__main__":
    run("prove", main)
