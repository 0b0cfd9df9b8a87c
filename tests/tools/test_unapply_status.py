"""make unapply goes back or refuses; make status only looks."""

from pathlib import Path

import pytest
from series_project import (
    CASE,
    ENGINE,
    KEYS,
    SCRIPT,
    STORE,
    Project,
    commit,
    commit_plain,
    git,
    refused,
    replace,
    snapshot,
    write,
)


def test_unapply_goes_back_and_twice_is_fine(project: Project):
    ucm = project.clone()
    before = snapshot(ucm, times=False)
    project.ok("apply", "--ucm", ucm)
    assert "back to" in project.ok("unapply", "--ucm", ucm)
    after = snapshot(ucm, times=False)
    for what in ("files", "status", "head", "branch", "refs", "worktrees", "config"):
        assert after[what] == before[what], what
    assert not (ucm / "ucm" / "tools").exists()
    settled = snapshot(ucm)
    out = project.ok("unapply", "--ucm", ucm)
    assert "not applied" in out and "next: make apply" in out
    assert snapshot(ucm) == settled


def test_unapply_of_a_checkout_that_never_had_it(project: Project):
    ucm = project.clone()
    assert "not applied" in project.ok("unapply", "--ucm", ucm)


def test_unapply_lists_commits_of_the_user(project: Project):
    ucm = project.applied()
    for name in ("one", "two"):
        write(ucm, f"{name}.txt", "mine\n")
        commit_plain(ucm, f"my {name}")
    before = snapshot(ucm)
    text = refused(project.run("unapply", "--ucm", ucm), "my one", "my two", "--onto")
    assert "[Feat]" not in text
    assert snapshot(ucm) == before


def test_the_printed_rebase_command_works(project: Project):
    ucm = project.clone()
    start = git(ucm, "rev-parse", "HEAD")
    project.ok("apply", "--ucm", ucm)
    write(ucm, "mine.txt", "mine\n")
    commit_plain(ucm, "my own")
    text = refused(project.run("unapply", "--ucm", ucm))
    words = text.splitlines()[-1].split(" moves ")[0].split()
    assert words[1:3] == ["git", "-C"]
    git(ucm, *words[4:])
    assert git(ucm, "rev-parse", "HEAD~1") == start
    assert "not applied" in project.ok("unapply", "--ucm", ucm)


def test_unapply_of_an_edited_series_is_refused(project: Project):
    ucm = project.applied()
    git(ucm, "commit", "-q", "--amend", "--no-edit", "--date=2026-05-05T00:00:00Z")
    before = snapshot(ucm)
    refused(project.run("unapply", "--ucm", ucm), "Use the keys", "make refresh")
    assert snapshot(ucm) == before
    assert "make refresh" in project.ok("status", "--ucm", ucm)


@pytest.mark.parametrize("path", [ENGINE, KEYS])
@pytest.mark.parametrize("staged", [False, True])
def test_unapply_refuses_dirty_files(project: Project, path: str, staged: bool):
    ucm = project.applied()
    write(ucm, path, (ucm / path).read_text() + "// mine\n")
    if staged:
        git(ucm, "add", path)
    before = snapshot(ucm, times=False)
    refused(project.run("unapply", "--ucm", ucm), path, "commit or stash")
    after = snapshot(ucm, times=False)
    before.pop("index"), after.pop("index")
    assert after == before


def test_unapply_keeps_what_is_not_in_the_way(project: Project):
    ucm = project.applied()
    replace(ucm, "setup.py", "setup", "edited")
    write(ucm, "ucm/tools/mine.txt", "mine\n")
    project.ok("unapply", "--ucm", ucm)
    assert (ucm / "ucm/tools/mine.txt").read_text() == "mine\n"
    assert "edited" in (ucm / "setup.py").read_text()


def states(out: str) -> dict[str, str]:
    """Patch number or overlay path -> state, from the table of make status."""
    table = (row.rsplit(maxsplit=1) for row in out.splitlines() if row[:2] == "  ")
    return {
        name[:4] if name[0] == "0" else name: state.strip() for state, name in table
    }


def test_status_of_a_fresh_checkout(project: Project):
    ucm = project.clone()
    before = snapshot(ucm)
    out = project.ok("status", "--ucm", ucm)
    assert snapshot(ucm) == before
    assert "not applied" in out
    expected = {"0001": "missing", "0002": "new files only", "0003": "missing"}
    assert states(out) == {
        **expected,
        CASE: "missing",
        KEYS: "missing",
        SCRIPT: "missing",
    }


def test_status_of_an_applied_checkout(project: Project):
    ucm = project.applied()
    write(ucm, KEYS, "VERSION = 3\n")
    (ucm / SCRIPT).unlink()
    before = snapshot(ucm)
    out = project.ok("status", "--ucm", ucm)
    assert snapshot(ucm) == before
    assert "applied on" in out
    found = states(out)
    assert found["0001"] == found["0003"] == "applied"
    assert found[CASE] == "same"
    assert found[KEYS] == "edited"
    assert found[SCRIPT] == "missing"


def test_status_when_upstream_took_a_patch_and_a_file(project: Project):
    ucm = project.clone()
    replace(ucm, "setup.py", "setup", "newer")
    replace(ucm, STORE, "store_line_10 = 10", "store_line_10 = 'keys'")
    replace(ucm, "README.md", "# UCM\n", "# UCM\n\nWith keys.\n")
    git(ucm, "add", STORE, "README.md")
    git(ucm, "commit", "-q", "-m", "upstream uses the keys")
    write(ucm, KEYS, "upstream = 1\n")
    commit(ucm, "[Feat] Upstream keys")
    out = project.ok("status", "--ucm", ucm)
    found = states(out)
    assert found["0003"] == "already upstream"
    assert found["0001"] == "missing"
    assert found[KEYS] == "upstream has it"
    assert "not the pinned" in out


def test_status_of_an_upstream_that_took_a_patch_back(project: Project):
    ucm = project.clone()
    replace(ucm, ENGINE, "engine_line_20()", "engine_line_20(int n)")
    commit_plain(ucm, "took it (#7)")
    assert states(project.ok("status", "--ucm", ucm))["0001"] == "already upstream"
    replace(ucm, ENGINE, "engine_line_2()", "engine_row_2()")
    commit_plain(ucm, "went on")
    git(ucm, "revert", "--no-edit", "HEAD~1")
    assert states(project.ok("status", "--ucm", ucm))["0001"] == "missing"


def test_status_of_another_upstream(project: Project):
    """The series is applied here; what the branch that it shall move to has of it."""
    ucm = project.applied()
    side = ucm.parent / "side"
    git(ucm, "worktree", "add", "-q", "-b", "theirs", str(side), "HEAD~3")
    replace(side, ENGINE, "engine_line_20()", "engine_line_20(int n)")
    write(side, KEYS, "upstream = 1\n")
    tip = commit_plain(side, "took it")
    before = snapshot(ucm)
    out = project.ok("status", "--ucm", ucm, "--to", "theirs")
    assert snapshot(ucm) == before
    assert f"upstream  theirs at {tip[:12]}\n" in out
    known = [row.split()[:2] for row in out.splitlines() if row.endswith("has it)")]
    assert len(known) == 1 and known[0][0] == "applied"
    assert known[0][1].startswith("0001-")
    assert f"{KEYS} (upstream has it, otherwise)\n" in out
    last = out.splitlines()[-1]
    assert "1 patches applied (upstream has it), " in last
    assert "has it" not in project.ok("status", "--ucm", ucm)
    done = project.run("status", "--ucm", ucm, "--to", "nowhere")
    refused(done, "there is no commit nowhere", code=2)


def test_status_of_a_series_with_lost_files(project: Project):
    """It never fails because of findings."""
    ucm = project.applied()
    project.patch(1).unlink()
    (project.overlay / KEYS).unlink()
    found = states(project.ok("status", "--ucm", ucm))
    assert found["0001"] == "no such patch" and found[KEYS] == "not in overlay"


def test_status_without_any_checkout(project: Project):
    refused(project.run("status"), "build/ucm", "make apply", code=2)
    assert not (project.root / "build" / "ucm").exists()


def test_status_of_an_edited_branch(project: Project):
    """A commit that was amended is edited, one that was dropped is missing."""
    ucm = project.applied()
    git(ucm, "reset", "-q", "--hard", "HEAD~2")
    replace(ucm, ENGINE, "engine_line_20(int n)", "engine_line_20(long n)")
    git(ucm, "commit", "-q", "-a", "--amend", "-C", "HEAD")
    replace(ucm, "setup.py", "setup", "mine")
    before = snapshot(ucm)
    out = project.ok("status", "--ucm", ucm)
    assert snapshot(ucm) == before
    found = states(out)
    assert found["0001"] == "edited" and found["0003"] == "missing"
    assert found[CASE] == "same" and found[KEYS] == "missing"
    assert "edited since make apply" in out and "not committed: setup.py" in out
    last = out.splitlines()[-1]
    assert last.startswith("together ") and "1 patches edited" in last


def test_status_when_upstream_squashed_two_patches(project: Project):
    """No commit of upstream's equals a patch, but its files have both."""
    ucm = project.clone()
    replace(ucm, ENGINE, "engine_line_20()", "engine_line_20(int n)")
    replace(ucm, STORE, "store_line_10 = 10", "store_line_10 = 'keys'")
    replace(ucm, "README.md", "# UCM\n", "# UCM\n\nWith keys.\n")
    commit_plain(ucm, "Everything at once (#7)")
    found = states(project.ok("status", "--ucm", ucm))
    assert found["0001"] == found["0003"] == "already upstream"


def told(out: str) -> dict[str, str]:
    """As `states`, with what status --to adds instead of the state."""
    table = [row.strip().partition(" (") for row in out.splitlines() if row[:2] == "  "]
    names = (row.split()[-1] for row, _, _ in table)
    notes = (note.rstrip(")") for _, _, note in table)
    return {
        name[:4] if name[0] == "0" else name: note
        for name, note in zip(names, notes, strict=True)
    }


@pytest.fixture
def grown(project: Project) -> Path:
    """A fourth entry goes on from a line of the third, a fifth from that."""
    ucm = project.applied()
    for old, new in (("'keys'", "'more keys'"), ("'more keys'", "'most keys'")):
        replace(ucm, STORE, f"store_line_10 = {old}", f"store_line_10 = {new}")
        commit(ucm, f"[Feat] Use {new[1:-1]}")
    project.ok("refresh", "--ucm", ucm)
    return ucm


@pytest.mark.parametrize("count", [0, 2, 4, 5])
def test_status_of_an_upstream_that_squashed_entries(project, grown: Path, count: int):
    """As UCM merges: `count` entries, some of which change one line, as one commit."""
    git(grown, "switch", "-q", "--detach", "HEAD~5")
    git(grown, "checkout", f"main~{5 - count}", "--", ".")
    git(grown, "commit", "-q", "--allow-empty", "-m", "Everything (#7)")
    replace(grown, ENGINE, "engine_line_1()", "engine_row_1()")
    commit_plain(grown, "went on")
    git(grown, "branch", "theirs")
    git(grown, "switch", "-q", "main")
    before, objects = snapshot(grown), git(grown, "count-objects", "-v")
    notes = told(project.ok("status", "--ucm", grown, "--to", "theirs"))
    assert snapshot(grown) == before
    assert git(grown, "count-objects", "-v") == objects
    has = {name for name, note in notes.items() if note == "upstream has it"}
    owned = {1: {CASE}, 2: {KEYS, SCRIPT}}
    wanted = [{f"{n:04d}", *owned.get(n, ())} for n in range(1, count + 1)]
    assert has == set().union(*wanted)
    assert {note for name, note in notes.items() if name not in has} <= {""}
    git(grown, "switch", "-q", "theirs")
    found = states(project.ok("status", "--ucm", grown))
    there = [n for n, state in found.items() if state == "already upstream"]
    assert there == [f"{n:04d}" for n in range(1, count + 1) if n != 2]


@pytest.mark.parametrize("how", ["one is not there", "one differs"])
def test_status_of_new_files_that_upstream_has_in_part(project, how: str):
    ucm = project.applied()
    git(ucm, "switch", "-q", "-c", "theirs", "HEAD~1")
    if how == "one differs":
        write(ucm, KEYS, "upstream = 1\n")
    else:
        git(ucm, "rm", "-q", KEYS)
    commit_plain(ucm, "theirs")
    git(ucm, "switch", "-q", "main")
    notes = told(project.ok("status", "--ucm", ucm, "--to", "theirs"))
    word = "upstream has it, otherwise" if how == "one differs" else ""
    assert notes["0002"] == notes[KEYS] == word
    assert notes[SCRIPT] == notes["0001"] == "upstream has it"


@pytest.mark.parametrize("lacking", ["history", "files"])
def test_status_without_network_for_a_clone_without_files(project, lacking: str):
    """Upstream's patches cannot be read, or none is needed and its files cannot."""
    ucm = project.clone()
    replace(ucm, ENGINE, "engine_line_1()", "engine_row_1()")
    tip = commit_plain(ucm, "went on")
    if lacking == "files":  # git log shows nothing of what a merge changes by itself
        side = git(ucm, "commit-tree", "HEAD~1^{tree}", "-p", "HEAD~1", "-m", "side")
        merge = ("commit-tree", "HEAD^{tree}", "-p", "HEAD~1", "-p", side)
        tip = git(ucm, *merge, "-m", "merge")
    git(ucm, "branch", "theirs", tip)
    git(ucm, "config", "uploadpack.allowFilter", "true")
    target, no_files = ucm.parent / "blobless", ("--filter=blob:none", "--no-checkout")
    git(ucm.parent, "clone", "-q", *no_files, f"file://{ucm}", str(target))
    git(target, "checkout", "-q", "HEAD~1")
    before, ask = snapshot(target), ("--ucm", target, "--to", "origin/theirs")
    away = ucm.rename(ucm.parent / "gone")
    refused(project.run("status", *ask), "git cannot read", f"git -C {target} fetch")
    assert snapshot(target) == before
    away.rename(ucm)
    assert set(told(project.ok("status", *ask)).values()) == {""}
