"""Build and test every point of the series; see each entry's test fail on the parent.

A header's `Proof:` names the test: a gtest fixture, or pytest's arguments. The entry's test
files alone are added to the parent, where the test must build and fail. `new-api` before
the name marks a test that cannot build there. Results are kept by content in build/points,
so that a walk goes on where it stopped; the table goes to docs/bisect.md.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import _checkout as checkout
from _commits import commit_series
from _git import git
from _pin import BUILD, ROOT
from _report import Refusal, run
from _series import Entry, read_header, read_series

from build import GTEST, PYTHON

WORK = BUILD / "points"
POINT, TREE, KNOWN = WORK / "ucm", WORK / "tree-debug", WORK / "results.json"
PROGRAM = WORK / "cmake-debug" / "ucm" / "store" / "test" / GTEST
TABLE = ROOT / "docs" / "bisect.md"
TESTS = ("ucm/store/test/", "test/")
HEAD = """# Every entry at its point

Made by `make verify BUILD=1`: the series is built entry by entry. *On the parent* is the
entry's own test, its test files alone added to the commit before it; *on it* is the same test
on the entry; *all* is every gtest of PosixStore there. A test marked `new-api` uses what the
entry adds, so that it cannot build on the parent: that proves nothing and is not counted.

"""


@dataclass(frozen=True)
class Proof:
    """What a `Proof:` trailer says."""

    test: str
    new_api: bool

    @staticmethod
    def of(entry: Entry) -> "Proof":
        words = read_header(entry.path.read_bytes()).trailers.get("Proof", [""])[0]
        return Proof(words.removeprefix("new-api").strip(), words.startswith("new-api"))

    @property
    def is_python(self) -> bool:
        return "/" in self.test


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entry", metavar="NNNN", help="this one alone, no table")
    only = parser.parse_args().entry
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
    rows, parent = [], marks[0]
    for entry, commit in zip(entries, commits, strict=True):
        if not only or entry.patch.startswith(only):
            rows.append(examine(entry, parent, commit, known))
            print(" | ".join(rows[-1].values()), flush=True)
            KNOWN.write_text(json.dumps(known, indent=1))
        parent = commit
    faults = sum(row["verdict"] != "ok" for row in rows)
    if not only:
        write_table(rows)
    print(f"{'FAILED' if faults else 'ok'}  {len(rows)} points, {faults} findings")
    if faults:
        print(f"next: read {WORK}/log.txt; results that are ok are kept")
    return 1 if faults else 0


def prepare(repo: Path, start: str) -> None:
    """One worktree for all points, so that each build is a small step from the last."""
    git(repo, "worktree", "prune")
    if str(POINT) not in git(repo, "worktree", "list"):
        shutil.rmtree(POINT, ignore_errors=True)
        git(
            repo, "worktree", "add", "--quiet", "--force", "--detach", str(POINT), start
        )


def examine(entry: Entry, parent: str, commit: str, known: dict) -> dict[str, str]:
    """The table's row of one entry. Good results come from and go to `known`."""
    proof = Proof.of(entry)
    trees = git(POINT, "rev-parse", f"{parent}^{{tree}}", f"{commit}^{{tree}}")
    path = ROOT / proof.test.split(" ")[0]
    test = path.read_bytes() if proof.is_python and path.is_file() else b""
    key = hashlib.sha256(f"{trees} {proof}".encode() + test).hexdigest()
    if key in known:
        return known[key]
    row = {
        "entry": entry.patch.removesuffix(".patch"),
        "test": str(proof.test or "none"),
    }
    row["test"] += " (new-api)" * proof.new_api
    added = [path for path in entry.overlay if path.startswith(TESTS)]
    row["parent"] = on_parent(proof, parent, commit, added)
    row |= at_point(proof, commit, known)
    row["verdict"] = verdict(entry, proof, row)
    if row["verdict"] == "ok":
        known[key] = row
    return row


def verdict(entry: Entry, proof: Proof, row: dict[str, str]) -> str:
    subject = read_header(entry.path.read_bytes()).subject
    if not row["all"].startswith("passes") or not row["on it"].startswith(
        ("passes", "-")
    ):
        return "NOT GOOD at its point"
    if not proof.test:
        return "NO PROOF" if "[Bugfix]" in subject else "ok"
    red = row["parent"].startswith(("fails", "hangs", "crashes"))
    return "ok" if red or proof.new_api or "[Test]" in subject else "PROVES NOTHING"


def on_parent(proof: Proof, parent: str, commit: str, added: list[str]) -> str:
    if not proof.test:
        return "-"
    switch(parent)
    if added:
        git(POINT, "checkout", "--quiet", commit, "--", *added)
    return run_test(proof) if compile_point() else "does not build"


def at_point(proof: Proof, commit: str, known: dict) -> dict[str, str]:
    switch(commit)
    if not compile_point():
        return {"on it": "does not build", "all": "does not build"}
    found = {"on it": run_test(proof) if proof.test else "-"}
    listed = git(POINT, "ls-tree", "-r", "HEAD").splitlines()
    native = [row for row in listed if row.endswith((".cc", ".h", "CMakeLists.txt"))]
    key = hashlib.sha256("\n".join(native).encode()).hexdigest()
    if key not in known:
        result = run_gtest("UCPosix*", 600)
        if not result.startswith("passes"):
            return found | {"all": result}
        known[key] = result
    return found | {"all": known[key]}


def switch(commit: str) -> None:
    git(POINT, "checkout", "--quiet", "--force", "--detach", commit)
    git(POINT, "clean", "-fdq")


def compile_point() -> bool:
    command = [sys.executable, ROOT / "scripts" / "build.py", "--ucm", POINT]
    command += ["--out", WORK, "--variant", "debug", "--gtest", "--only", "native"]
    return execute(command, 1800, ROOT)[0] == 0


def run_test(proof: Proof) -> str:
    """Outcome in words, which begin with passes, fails, hangs or crashes if it ran."""
    if proof.is_python:
        return run_pytest(proof.test)
    filters = [f"{word}.*" if "." not in word else word for word in proof.test.split()]
    return run_gtest(":".join(filters), 120)


def run_gtest(chosen: str, limit: int) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)  # one test reads as another user
        code, text = execute(
            [PROGRAM, f"--gtest_filter={chosen}"], limit, Path(scratch)
        )
    begun, failed = re.findall(r"\[ RUN      \] (\S+)", text), failures(text)
    if not begun:
        return "no such test"
    if (
        code is None
        or code < 0
        or f"{len(begun)} test" not in text.split("ran. (")[0][-60:]
    ):
        return f"{'hangs' if code is None else 'crashes'} in {begun[-1].split('.')[1]}"
    if code:
        return f"fails: {len(failed)} of {len(begun)}"
    return f"passes: {len(begun)}"


def failures(text: str) -> set[str]:
    return set(re.findall(r"\[  FAILED  \] (\w+\.[\w/]+)", text))


def run_pytest(words: str) -> str:
    """Tests of a UCM tree run there, those of this project here, on the same tree."""
    where = TREE if (TREE / shlex.split(words)[0]).exists() else ROOT
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            PYTHON,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *shlex.split(words),
        ]
        command += [f"--basetemp={scratch}/pytest", f"--rootdir={ROOT}"]
        code, text = execute(
            command, 600, where, UCM_TREE=str(TREE), PYTHONPATH=str(TREE)
        )
    count = {
        word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", text)
    }
    if code == 0 and count.get("passed"):
        return f"passes: {count['passed']}"
    if code == 1 and (bad := count.get("failed", 0)):
        return f"fails: {bad} of {bad + count.get('passed', 0)}"
    return "hangs" if code is None else "cannot be imported"


def execute(
    command: list, limit: int, where: Path, **env: str
) -> tuple[int | None, str]:
    """Exit code, None past the limit in seconds, and output, which a log keeps."""
    words = [str(word) for word in command]
    with open(WORK / "log.txt", "ab+") as log:
        start = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            words,
            cwd=where,
            env={**os.environ, **env},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(start)
        return code, log.read().decode("utf-8", "replace")


def write_table(rows: list[dict[str, str]]) -> None:
    fixes = [
        row for row in rows if row["parent"].startswith(("fails", "hangs", "crash"))
    ]
    words = f"{len(rows)} entries; the tests of {len(fixes)} fail on the parent.\n\n"
    titles = {
        "test": "its test",
        "parent": "on the parent",
        "all": "all",
        "verdict": "",
    }
    keys = ("entry", "test", "parent", "on it", "all", "verdict")
    lines = [
        " | ".join(titles.get(key, key) for key in keys),
        "|".join("---" for _ in keys),
    ]
    lines += [" | ".join(row[key] for key in keys) for row in rows]
    TABLE.write_text(HEAD + words + "".join(f"| {line} |\n" for line in lines))


if __name__ == "__main__":
    run("prove", main)
