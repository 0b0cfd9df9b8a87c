"""make pr: a topic as a branch, its text, and what has to hold before it says ready."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from series_project import (
    ENGINE,
    LICENCE,
    REPOSITORY,
    STORE,
    Project,
    bare_series,
    commit_plain,
    git,
    message,
    refused,
    replace,
    snapshot,
    write,
)
from test_hostile import hooks, make_hostile  # noqa: F401

CC_LICENCE = "/**\n * MIT License\n * */\n"
GTEST = "ucm/store/test/case/posix/posix_short_test.cc"
MODULE = "ucm/integration/sglang/more_keys.py"
MISSPELT = f"{LICENCE}\n# teh keys\n"  # codespell:ignore
BUILD_FAILS = """import sys
GTEST = PYTHON = ""
if __name__ == "__main__":
    sys.exit(print("build: REFUSED", file=sys.stderr) or 2)
"""
TOPICS = """
[engine]
title = [Bugfix] Count what the engine moves
needs =
purpose = The engine's counts.
relation = #1 goes another way.

[keys]
title = [Feat] Keys for the engine
needs = engine
purpose = The keys.
relation = #1 has none.
"""


@pytest.fixture
def ucm(project: Project) -> Path:
    """Two topics: `engine`, two entries, and `keys`, which needs it."""
    subprocess.run([REPOSITORY / "ci" / "lint.sh", "tools"], check=True)
    ignore = shutil.ignore_patterns("vendor")
    shutil.copytree(REPOSITORY / "ci", project.root / "ci", ignore=ignore)
    (project.root / "build" / "lint").symlink_to(REPOSITORY / "build" / "lint")
    ucm = bare_series(project)
    write(project.root, "docs/topics.ini", TOPICS)
    test = f"// TEST UCPosixShortTest.Count {ENGINE} engine_line_20(int n\n"
    replace(ucm, ENGINE, "engine_line_20()", "engine_line_20(int n)")
    write(ucm, GTEST, CC_LICENCE + test)
    land(ucm, "[Bugfix] Count twenty", "engine", "UCPosixShortTest")
    write(ucm, MODULE, f"{LICENCE}\nVERSION = 3\n")
    replace(ucm, STORE, "store_line_10 = 10", "store_line_10 = 11")
    land(ucm, "[Feat] Number the keys", "keys", "UCPosixShortTest")
    replace(ucm, ENGINE, "engine_line_20(int n)", "engine_line_20(int n, int m)")
    replace(ucm, ENGINE, "engine_line_30()", "engine_line_30(int n)")
    land(ucm, "[Opt] Count thirty", "engine", "UCPosixShortTest")
    return ucm


def land(ucm: Path, subject: str, topic: str, proof: str) -> None:
    text = message(subject, topic, proof)
    git(ucm, "add", "-A")
    git(ucm, "commit", "-q", "-F", "-", text=text)


def make_pr(project: Project, ucm: Path, topic: str, *args, code: int = 0) -> str:
    """Refresh the series, make the branch in a fresh clone of the base."""
    base = git(project.base, "rev-parse", "HEAD")
    project.ok("refresh", "--ucm", ucm, "--base", base)
    clone = project.root.parent / "clone"
    if not clone.exists():
        git(project.root.parent, "clone", "-q", str(project.base), str(clone))
        replace(clone, "README.md", "# UCM", "# UCM, newer")
        commit_plain(clone, "Upstream moves on")
    done = project.run("pr", "--ucm", clone, "--topic", topic, *args)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_a_topic_that_stands_alone(project: Project, ucm: Path):
    theirs = git(project.base, "for-each-ref")
    out = make_pr(project, ucm, "engine")
    clone = project.root.parent / "clone"
    assert git(clone, "remote", "get-url", "origin") == str(project.base)
    assert git(project.base, "for-each-ref") == theirs  # nothing was pushed
    assert git(clone, "rev-parse", "pr-engine~2") == git(clone, "rev-parse", "HEAD")
    changed = git(clone, "diff", "--name-only", "HEAD", "pr-engine").splitlines()
    assert changed == sorted([ENGINE, GTEST])
    log = git(clone, "log", "-1", "--format=%B", "pr-engine")
    assert "Why: " in log and "Topic:" not in log and "Drop-When" not in log
    assert "\nready\n" in out and "FAIL" not in out
    assert "ok    tested here only: 0 of 2 entries\n" in out
    assert (project.root / "build" / "venv").is_dir()
    assert f"next: git -C {clone} push <your fork> pr-engine" in out
    text = (project.root / "out" / "pr-engine.md").read_text()
    assert text.startswith("[Bugfix] Count what the engine moves\n\n## Purpose\n")
    heads = [row for row in text.splitlines() if row.startswith("## ")]
    assert heads == ["## Purpose", "## Modifications", "## Test"]
    for phrase in (
        "- **Count twenty**: a user sees it go wrong.",
        "- **Count thirty**: it is changed.",
        "#1 goes another way.",
        "$ ucmstore.test --gtest_filter='UCPosix*'\n",
        "[==========] 1 tests from 1 test suite ran. (0 ms total)\n",
        "$ ucmstore.test --gtest_filter='UCPosixShortTest.*'\n",
        "`cmake -DCMAKE_BUILD_TYPE=Debug -DDOWNLOAD_DEPENDENCE=OFF "
        "-DRUNTIME_ENVIRONMENT=stub -DBUILD_UNIT_TESTS=ON`: dependencies",
    ):
        assert phrase in text
    assert "repository that this branch" not in text and "no test" not in text


def test_a_topic_above_the_one_it_needs(project: Project, ucm: Path):
    out = make_pr(project, ucm, "keys", "--issue", "https://example.invalid/7")
    clone = project.root.parent / "clone"
    assert git(clone, "rev-parse", "pr-keys~3") == git(clone, "rev-parse", "HEAD")
    changed = git(clone, "diff", "--name-only", "pr-keys~1", "pr-keys").splitlines()
    assert changed == sorted([MODULE, STORE])
    assert "1 commits above engine" in out
    text = (project.root / "out" / "pr-keys.md").read_text()
    assert (
        "Needs `[Bugfix] Count what the engine moves`" in text
        and "Closes https://example.invalid/7." in text
    )


def test_a_need_that_is_not_written_down(project: Project, ucm: Path):
    """The conflict tells which topic it is."""
    replace(project.root, "docs/topics.ini", "needs = engine", "needs =")
    replace(ucm, ENGINE, "engine_line_30(int n)", "engine_line_30(long n)")
    land(ucm, "[Opt] Count long", "keys", "UCPosixShortTest")
    base = git(project.base, "rev-parse", "HEAD")
    project.ok("refresh", "--ucm", ucm, "--base", base)
    clone = project.clone("other", "--no-hardlinks")
    before = snapshot(clone)
    done = project.run("pr", "--ucm", clone, "--topic", "keys")
    refused(done, "does not apply there", ENGINE, "it needs: engine")
    after = snapshot(clone)
    before.pop("worktrees"), after.pop("worktrees")
    assert after == before and not (project.root / "out").exists()


def test_dry_run(project: Project, ucm: Path):
    out = make_pr(project, ucm, "engine", "--dry-run")
    clone = project.root.parent / "clone"
    assert "## Purpose" in out and "nothing was changed" in out
    assert not git(clone, "branch", "--list", "pr-*")
    assert not (project.root / "out").exists()


@pytest.mark.parametrize(
    "what, path, text, words",
    [
        ("black", MODULE, f"{LICENCE}\nVERSION  =  3\n", "black"),
        ("isort", MODULE, f"{LICENCE}\nimport sys\nimport os\n", "isort"),
        ("codespell", MODULE, MISSPELT, "codespell"),
        ("licence", MODULE, "VERSION = 3\n", f"licence: {MODULE}"),
        (
            "format",
            "ucm/store/posix/cc/more.h",
            CC_LICENCE + "int a( );\n",
            "clang-format",
        ),
        (
            "workflow",
            ".github/workflows/x.yml",
            "on: push\n",
            "workflows: .github/workflows/x.yml",
        ),
        ("red", GTEST, CC_LICENCE + f"// TEST UCPosixA.B {ENGINE} none\n", "tests: "),
        ("build", GTEST, CC_LICENCE + f"// NEEDS {ENGINE} nothing\n", "build: "),
    ],
)
def test_not_ready(project: Project, ucm: Path, what, path, text, words):
    topic = "keys" if path == MODULE else "engine"
    write(ucm, path, text)
    subject = "[Feat] More of it"
    land(ucm, subject, topic, "UCPosixShortTest")
    out = make_pr(project, ucm, topic, code=1)
    failed = [row for row in out.splitlines() if row.startswith("FAIL")]
    assert len(failed) == 1 and words in failed[0], out
    assert "NOT READY" in out and "push" not in out


def test_a_test_of_time_is_run_again(project: Project, ucm: Path):
    """And the sender is told."""
    late = f"// FLAKY UCPosixLate.Test {ENGINE} {project.root.parent / 'tried'}\n"
    path = GTEST.replace("short", "late")
    write(ucm, path, CC_LICENCE + "// clang-format off\n" + late)
    land(ucm, "[Test] More of it", "engine", "UCPosixShortTest")
    out = make_pr(project, ucm, "engine")
    assert "ok    tests: all pass; " in out and "fails: 1 of 2, then run again" in out


def test_clang_format_looks_at_changed_lines_only(project: Project, ucm: Path):
    """Upstream has files that are not formatted; a branch does not mend them."""
    assert "engine_line_1();" in (ucm / ENGINE).read_text()
    base = project.base
    write(base, "ucm/ugly.h", "int  ugly( );\nint a();\nint b();\nint fine();\n")
    git(base, "add", "-A")
    git(base, "commit", "-q", "--amend", "--no-edit")
    pin = project.root / "UPSTREAM"
    new = git(base, "rev-parse", "HEAD")
    rows = [r for r in pin.read_text().splitlines() if not r.startswith("commit=")]
    pin.write_text("\n".join([*rows, f"commit={new}\n"]))
    git(ucm, "fetch", "-q", str(base), "HEAD")
    git(ucm, "rebase", "-q", "--onto", "FETCH_HEAD", "HEAD~3")
    replace(ucm, "ucm/ugly.h", "fine()", "fine(int n)")
    git(ucm, "commit", "-q", "-a", "--amend", "-C", "HEAD")
    assert "ok    clang-format" in make_pr(project, ucm, "engine")


def test_settings_and_attributes_of_the_checkout(
    project: Project, ucm: Path, hooks: Path  # noqa: F811
):
    """They would hide a diff from clang-format, which is content with what it cannot read."""
    write(ucm, "ucm/store/posix/cc/more.h", CC_LICENCE + "int a( );\n")
    land(ucm, "[Feat] More of it", "engine", "UCPosixShortTest")
    make_pr(project, ucm, "engine", "--dry-run", code=1)
    clone = project.root.parent / "clone"
    make_hostile(clone / ".git" / "config", hooks)
    write(clone, ".git/info/attributes", "*.h -diff\n")
    done = project.run("pr", "--ucm", clone, "--topic", "engine")
    failed = [row for row in done.stdout.splitlines() if row.startswith("FAIL")]
    assert len(failed) == 1 and "clang-format: --- " in failed[0], done.stdout
    assert "NOT READY" in done.stdout and not done.stderr


def test_two_clones_take_turns(project: Project, ucm: Path):
    """They share build/points; the first one's record of it outlives the second's turn."""
    make_pr(project, ucm, "engine", "--dry-run")
    clone = project.root.parent / "clone"
    other = project.clone("other", "--no-hardlinks")
    project.ok("pr", "--ucm", other, "--topic", "engine", "--dry-run")
    project.ok("pr", "--ucm", clone, "--topic", "engine")
    assert git(clone, "branch", "--list", "pr-*")


def test_a_gtest_that_nobody_wrote(project: Project, ucm: Path):
    replace(ucm, ENGINE, "engine_line_35()", "engine_line_35(int n)")
    land(ucm, "[Feat] More of it", "engine", "UCPosixNobodyTest")
    out = make_pr(project, ucm, "engine", "--dry-run", code=1)
    failed = [row for row in out.splitlines() if row.startswith("FAIL")]
    assert len(failed) == 1 and "UCPosixNobodyTest.*': no such test" in failed[0], out


def test_upstream_has_an_entry_already(project: Project, ucm: Path):
    """Its commit would be empty, and the text would tell of nothing."""
    base = git(project.base, "rev-parse", "HEAD")
    project.ok("refresh", "--ucm", ucm, "--base", base)
    clone = project.clone("clone", "--no-hardlinks")
    replace(clone, ENGINE, "engine_line_20()", "engine_line_20(int n)")
    write(clone, GTEST, git(ucm, "show", f"HEAD:{GTEST}") + "\n")
    commit_plain(clone, "Upstream counts twenty")
    done = project.run("pr", "--ucm", clone, "--topic", "engine")
    refused(done, "upstream has 0001-count-twenty.patch already", "make rebase TO=REF")
    assert not git(clone, "branch", "--list", "pr-*")


def test_linters_without_network(project: Project, ucm: Path):
    """Told before anything is built, in one block."""
    (project.root / "build" / "lint").unlink()
    base = git(project.base, "rev-parse", "HEAD")
    project.ok("refresh", "--ucm", ucm, "--base", base)
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
    nowhere |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    done = project.run("pr", "--ucm", project.base, "--topic", "engine", **nowhere)
    text = refused(done, "linters", "make lint where there is a network")
    assert text.startswith("pr: REFUSED")
    assert not (project.root / "build" / "points").exists()


@pytest.mark.parametrize("before", [(), ("--to", "HEAD")])
def test_no_network_for_a_clone_without_files(project, ucm: Path, before: tuple):
    """Where the worktree is made, and where it goes to another commit."""
    base = git(project.base, "rev-parse", "HEAD")
    project.ok("refresh", "--ucm", ucm, "--base", base)
    theirs = project.clone("theirs", "--no-hardlinks")
    replace(theirs, "README.md", "# UCM", "# UCM, newer")
    commit_plain(theirs, "Upstream moves on")
    git(theirs, "config", "uploadpack.allowFilter", "true")
    clone, no_files = theirs.with_name("clone"), ("--filter=blob:none", "--no-checkout")
    git(theirs.parent, "clone", "-q", *no_files, f"file://{theirs}", str(clone))
    git(clone, "checkout", "-q", "HEAD~1")
    theirs.rename(theirs.with_name("gone"))
    ask = ("--ucm", clone, "--topic", "engine", "--dry-run")
    if before:
        project.ok("pr", *ask, *before)
    state = snapshot(clone)
    done = project.run("pr", *ask, "--to", "main")
    refused(done, "git cannot read", "fetch, then the same again")
    after = snapshot(clone)
    assert after == state and not git(clone, "branch", "--list", "pr-*")


@pytest.mark.parametrize("place", ["worktree", "branch"])
def test_a_lock_that_a_killed_git_left(project: Project, ucm: Path, place: str):
    make_pr(project, ucm, "engine", "--dry-run")
    clone, point = project.root.parent / "clone", project.root / "build/points/ucm"
    lock = Path(git(point, "rev-parse", "--absolute-git-dir")) / "index.lock"
    if place == "branch":
        lock = clone / ".git/refs/heads/pr-engine.lock"
    lock.touch()
    done = project.run("pr", "--ucm", clone, "--topic", "engine")
    refused(done, str(lock), "then the same" if place == "worktree" else "then make pr")
    lock.unlink()
    assert "\nready\n" in make_pr(project, ucm, "engine")


def test_killed_at_the_end(project: Project, ucm: Path):
    """The branch is there with the mark that tells it is ours, or not at all."""
    trap = project.root.parent / "trap"
    kill = (
        f'[ $1 = update-ref ] && kill -9 $PPID && exit\nexec {shutil.which("git")} "$@"'
    )
    write(trap, "git", f"#!/bin/sh\n{kill}\n", 0o755)
    base = git(project.base, "rev-parse", "HEAD")
    project.ok("refresh", "--ucm", ucm, "--base", base)
    clone = project.clone("clone", "--no-hardlinks")
    path = {"PATH": f"{trap}:{os.environ['PATH']}"}
    done = project.run("pr", "--ucm", clone, "--topic", "engine", **path)
    assert done.returncode == -9
    assert "\nready\n" in project.ok("pr", "--ucm", clone, "--topic", "engine")


def test_an_entry_without_a_test(project: Project, ucm: Path):
    replace(ucm, ENGINE, "engine_line_35()", "engine_line_35(int n)")
    git(ucm, "add", "-A")
    text = message("[Bugfix] Count without a test", "engine", None)
    git(ucm, "commit", "-q", "-F", "-", text=text)
    out = make_pr(project, ucm, "engine", code=1)
    assert "FAIL  a test named: 0004-count-without-a-test.patch" in out


@pytest.mark.parametrize(
    "kind, gtest, bad",
    [("Feat", False, True), ("Feat", True, False), ("Doc", False, False)],
)
def test_behaviour_without_a_test(project, ucm: Path, kind: str, gtest: bool, bad):
    """A gtest among the entry's own files will do; what only tells or tests needs none."""
    replace(ucm, ENGINE, "engine_line_35()", "engine_line_35(int n)")
    if gtest:
        line = f"// TEST UCPosixB.B {ENGINE} engine_line_35(int n\n"
        write(ucm, GTEST.replace("short", "b"), CC_LICENCE + line)
    git(ucm, "add", "-A")
    text = message(f"[{kind}] Count more", "engine", None)
    git(ucm, "commit", "-q", "-F", "-", text=text)
    out = make_pr(project, ucm, "engine", "--dry-run", code=int(bad))
    word = (
        "FAIL  a test named: 0004-count-more.patch" if bad else "ok    a test named: "
    )
    assert word in out


def test_behaviour_that_is_tested_here_only(project: Project, ucm: Path):
    """Named with its test; neither one that brings a test, too, nor one whose test lands."""
    here, there = "tests/store/test_line.py", "test/test_line.py"
    write(project.root, here, "def test_line():\n    pass\n")
    proofs = {11: here, 12: f"{here} -k line", 13: there, 14: f"{there} -k line"}
    for number, proof in proofs.items():
        replace(ucm, ENGINE, f"engine_line_{number}()", f"engine_line_{number}(int n)")
        if number == 12:
            line = f"// TEST UCPosixB.B {ENGINE} engine_line_12(int n\n"
            write(ucm, GTEST.replace("short", "b"), CC_LICENCE + line)
        if number == 13:
            text = f"{LICENCE}\n\ndef test_line():\n    pass\n"
            write(ucm, there, text)
        land(ucm, f"[Feat] Count {number}", "engine", proof)
    out = make_pr(project, ucm, "engine")
    told = f"warn  tested here only: 1 of 6 entries\n      [Feat] Count 11 ({here})\n"
    assert told in out and "\nready\n" in out, out
    text = (project.root / "out" / "pr-engine.md").read_text()
    assert (
        f"no test in the branch, only there:\n\n- [Feat] Count 11: `{here}`\n\n" in text
    )
    assert f"$ python -m pytest {here} -k line\n" in text


@pytest.mark.parametrize("how", ["theirs", "checked out", "ours"])
def test_the_branch_is_taken(project: Project, ucm: Path, how: str):
    clone = project.root.parent / "clone"
    if how != "theirs":
        make_pr(project, ucm, "engine")
    else:
        git(project.root.parent, "clone", "-q", str(project.base), str(clone))
        git(clone, "branch", "pr-engine")
    if how == "checked out":
        git(clone, "switch", "-q", "pr-engine")
    if how == "ours":
        make_pr(project, ucm, "engine")
        return
    base = git(project.base, "rev-parse", "HEAD")
    project.ok("refresh", "--ucm", ucm, "--base", base)
    before = snapshot(clone)
    found = "it is checked out" if how == "checked out" else "made by somebody else"
    done = project.run("pr", "--ucm", clone, "--topic", "engine")
    refused(done, found, "branch --move pr-engine", "then make pr")
    assert snapshot(clone) == before


def test_a_large_one_is_warned_about(project: Project, ucm: Path):
    rows = "".join(f"ROW_{n} = {n}\n" for n in range(401))
    write(ucm, "ucm/integration/sglang/many.py", f"{LICENCE}\n{rows}")
    land(ucm, "[Feat] Many rows", "keys", "UCPosixShortTest")
    out = make_pr(project, ucm, "keys")
    assert "warn  size: " in out and "\nready\n" in out


@pytest.mark.parametrize("topic", ["", "nothing", "--all"])
def test_unknown_topic(project: Project, ucm: Path, topic: str):
    done = project.run("pr", "--ucm", ucm, f"--topic={topic}")
    refused(done, "there is no topic", "hicache-v2, posix-store", code=2)
    assert not (project.root / "build" / "venv").exists()


def test_unknown_ref(project: Project, ucm: Path):
    replace(project.root, "docs/topics.ini", "[engine]", "[posix-store]")
    done = project.run("pr", "--ucm", ucm, "--topic=posix-store", "--to=nowhere")
    refused(done, "there is no commit nowhere", code=2)
    assert not (project.root / "build" / "venv").exists()


def test_what_it_runs_with_cannot_be_made(project: Project, ucm: Path):
    """scripts/build.py tells why, and nothing else is told."""
    write(project.root, "scripts/build.py", BUILD_FAILS)
    base = git(project.base, "rev-parse", "HEAD")
    project.ok("refresh", "--ucm", ucm, "--base", base)
    done = project.run("pr", "--ucm", project.base, "--topic", "engine")
    assert (
        done.returncode == 2 and done.stderr == "build: REFUSED\n" and not done.stdout
    )
    assert not (project.root / "build" / "points").exists()
