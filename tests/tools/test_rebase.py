"""make rebase onto upstreams that moved in the ways that upstreams move.

Each drift names its expected outcome per entry. tests/drift has each kind once on the whole
series, and two that need UCM itself: lookups per block, a connector that grows.
"""

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from series_project import (
    BASE_FILES,
    CASE,
    ENGINE,
    KEYS,
    REPOSITORY,
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

MORE = "ucm/store/posix/cc/io_engine_more.h"
DECLARED, OURS = "int engine_line_20();", "int engine_line_20(int n);"


@pytest.fixture
def ucm(project: Project) -> Path:
    """A checkout of the base, whose branch a test moves on as upstream would."""
    return project.clone()


def upstream(ucm: Path, subject: str = "Upstream moves on") -> str:
    return commit_plain(ucm, subject)


def rows(out: str) -> list[str]:
    """How each entry ended, in order."""
    table = (row.split() for row in out.splitlines() if row.endswith(".patch"))
    return [row[0] for row in table if len(row) == 2]


def rebased(project: Project, ucm: Path, *how: str, go_on: bool = False) -> str:
    """Run to the end; the result must be a verified series on the new pin."""
    start = git(ucm, "rev-parse", "HEAD")
    args = ("--continue",) if go_on else ("--ucm", ucm, "--to", "HEAD")
    out = project.ok("rebase", *args)
    assert rows(out) == [*how], out
    assert f"commit={start}\n" in (project.root / "UPSTREAM").read_text()
    assert "0 findings" in project.ok("verify")
    assert not (project.root / "build" / "rebase").exists()
    assert git(ucm, "rev-parse", "HEAD") == start
    tip = git(ucm, "rev-parse", "hicache-v2")
    assert (project.root / "build" / "range-diff.txt").read_text()
    git(ucm, "switch", "-q", "hicache-v2")
    assert "already applied" in project.ok("apply", "--ucm", ucm)
    assert tip[:12] in out and "next: " in out.splitlines()[-1]
    return out


def stopped(project: Project, ucm: Path, *files: str, subject: str) -> Path:
    """Run into a conflict: the report has what a human needs; nothing has changed."""
    before, series = snapshot(ucm), project.series()
    done = project.run("rebase", "--ucm", ucm, "--to", "HEAD")
    assert done.returncode == 3 and not done.stderr, done.stdout + done.stderr
    tree = project.root / "build" / "rebase"
    for path in files:
        head, _, last = done.stdout.partition(f"  conflict  {path}\n")
        assert subject in last.splitlines()[0], done.stdout
    assert "(1 of 3)" in done.stdout or "(2 of 3)" in done.stdout
    assert f"worktree  {tree}\n" in done.stdout
    for command in (f"git -C {tree} diff", f"git -C {tree} add --all"):
        assert f"  {command}\n" in done.stdout
    assert "make rebase-continue" in done.stdout and "make rebase-abort" in done.stdout
    after = snapshot(ucm)
    before.pop("worktrees"), after.pop("worktrees")
    assert after == before and project.series() == series
    return tree


def solve(tree: Path, **files: str) -> None:
    """Write the files and stage everything, as the report says."""
    for path, text in files.items():
        write(tree, path, text)
    git(tree, "add", "--all")


def test_a_lines_moved(project: Project, ucm: Path):
    write(ucm, ENGINE, "// one\n// two\n" + (ucm / ENGINE).read_text())
    upstream(ucm)
    out = rebased(project, ucm, "offset", "clean", "clean")
    assert "@@ -20,7 +20,7 @@" in project.patch(1).read_text()
    assert "1:" in out and "entries   1 offset, 2 clean" in out


def test_b_one_entry_was_merged_verbatim(project: Project, ucm: Path):
    replace(ucm, ENGINE, DECLARED, OURS)
    write(ucm, CASE, (project.overlay / CASE).read_text())
    upstream(ucm)
    out = rebased(project, ucm, "dropped", "clean", "clean")
    assert "with the same bytes: it leaves ucm_overlay/" in out
    assert len(list(project.patches.glob("*.patch"))) == 2
    assert not (project.overlay / CASE).exists()


def test_b_merged_verbatim_and_changed_since(project: Project, ucm: Path):
    """The merge alone would conflict; git's patch id knows the commit."""
    replace(ucm, ENGINE, DECLARED, OURS)
    write(ucm, CASE, (project.overlay / CASE).read_text())
    upstream(ucm, "took it")
    replace(ucm, ENGINE, OURS, "int engine_line_20(int n, int m);")
    upstream(ucm, "went on")
    rebased(project, ucm, "dropped", "clean", "clean")
    assert ENGINE not in "".join(p.read_text() for p in project.patches.glob("*.patch"))


@pytest.mark.parametrize("how", ["without its file", "taken back"])
def test_b_what_upstream_lacks_of_one_is_not_dropped(project, ucm: Path, how: str):
    """The commit is in upstream's history, and yet what it does is not all there."""
    replace(ucm, ENGINE, DECLARED, OURS)
    if how == "taken back":
        write(ucm, CASE, (project.overlay / CASE).read_text())
    upstream(ucm, "took it")
    if how == "taken back":
        git(ucm, "revert", "--no-edit", "HEAD")
    text = (ucm / ENGINE).read_text()
    line = OURS if OURS in text else DECLARED
    replace(ucm, ENGINE, line, "long engine_line_20();")
    upstream(ucm, "went on")
    stopped(project, ucm, ENGINE, subject="went on")


def test_b_merged_verbatim_and_reverted(project: Project, ucm: Path):
    """A patch id in the history is not enough: what upstream took back is still ours."""
    replace(ucm, ENGINE, DECLARED, OURS)
    upstream(ucm, "took it")
    git(ucm, "revert", "--no-edit", "HEAD")
    rebased(project, ucm, "clean", "clean", "clean")


HICACHE = (STORE, "README.md", KEYS, SCRIPT)


@pytest.fixture
def squashed(project: Project) -> Path:
    """A topic of three entries, two of which change one line, is one commit of upstream's."""
    ucm = project.applied()
    replace(ucm, STORE, "store_line_10 = 'keys'", "store_line_10 = 'more keys'")
    commit(ucm, "[Feat] Use more keys")
    project.ok("refresh", "--ucm", ucm)
    commit_plain(project.root, "series")
    git(ucm, "switch", "-q", "-c", "theirs", "HEAD~4")
    git(ucm, "checkout", "main", "--", *HICACHE)
    upstream(ucm, "Keys for every pool (#7)")
    return ucm


def test_b_a_topic_was_merged_as_one_commit(project: Project, squashed: Path):
    """As UCM merges pull requests; entry by entry it would conflict in line 10."""
    out = rebased(project, squashed, "clean", "dropped", "dropped", "dropped")
    assert "topic     hicache-v2: upstream has all of it" in out
    assert [path.name[:4] for path in project.patches.glob("*.patch")] == ["0001"]


def test_b_a_topic_was_merged_and_changed_since(project: Project, squashed: Path):
    replace(squashed, STORE, "'more keys'", "'their keys'")
    upstream(squashed, "went on")
    rebased(project, squashed, "clean", "dropped", "dropped", "dropped")


def test_b_two_topics_were_merged_one_on_the_other(project: Project, squashed: Path):
    """The one that begins first in the series does not apply without the other."""
    git(squashed, "switch", "-q", "main")
    replace(squashed, STORE, "'more keys'", "'most keys'")
    commit(squashed, "[Feat] Use most keys", "posix-store")
    replace(squashed, "setup.py", "setup", "ours")
    commit(squashed, "[Opt] Set up faster", "other")
    project.ok("refresh", "--ucm", squashed)
    commit_plain(project.root, "series")
    git(squashed, "switch", "-q", "theirs")
    git(squashed, "checkout", "main~1", "--", ENGINE, CASE, STORE)
    upstream(squashed, "Check counts (#8)")
    out = rebased(project, squashed, *["dropped"] * 5, "clean")
    assert out.count("upstream has all of it") == 2


def test_b_a_part_of_a_topic_was_merged(project: Project, squashed: Path):
    """What upstream lacks of it is not lost."""
    git(squashed, "rm", "-q", SCRIPT)
    git(squashed, "commit", "-q", "--amend", "--no-edit")
    done = project.run("rebase", "--ucm", squashed, "--to", "HEAD")
    assert done.returncode == 3 and "upstream has all" not in done.stdout
    project.ok("rebase", "--abort")


def test_c_a_topic_was_merged_as_one_commit_with_edits(project, squashed: Path):
    """Each entry that conflicts takes upstream's side; nothing of the topic is left."""
    replace(squashed, STORE, "'more keys'", "'their keys'")
    git(squashed, "commit", "-q", "-a", "--amend", "--no-edit")
    done = project.run("rebase", "--ucm", squashed, "--to", "HEAD")
    tree = project.root / "build" / "rebase"
    for place in ("(3 of 4)", "(4 of 4)"):
        assert place in done.stdout and "Keys for every pool (#7)" in done.stdout
        assert f"git -C {tree} checkout HEAD -- <file>" in done.stdout
        git(tree, "checkout", "HEAD", "--", STORE)
        git(tree, "add", "--all")
        if place == "(3 of 4)":
            done = project.run("rebase", "--continue")
    rebased(project, squashed, "clean", *["dropped"] * 3, go_on=True)


@pytest.mark.parametrize("tests_too", [False, True])
def test_c_one_entry_was_merged_with_edits(project: Project, ucm: Path, tests_too):
    """Upstream's side is kept; of the entry what upstream lacks is left, if anything."""
    replace(ucm, ENGINE, DECLARED, "long engine_line_20(int n);")
    if tests_too:
        write(ucm, CASE, (project.overlay / CASE).read_text())
    upstream(ucm, "Check counts")
    tree = stopped(project, ucm, ENGINE, subject="Check counts")
    solve(tree, **{ENGINE: (ucm / ENGINE).read_text()})
    end = "dropped" if tests_too else "solved"
    rebased(project, ucm, end, "clean", "clean", go_on=True)
    assert (project.overlay / CASE).exists() is not tests_too
    assert len(list(project.patches.glob("*.patch"))) == (2 if tests_too else 3)
    assert ENGINE not in "".join(p.read_text() for p in project.patches.glob("*.patch"))


def test_d_a_function_nearby_was_renamed(project: Project, ucm: Path):
    replace(ucm, ENGINE, "engine_line_17", "engine_row_17")
    upstream(ucm)
    rebased(project, ucm, "merged", "clean", "clean")
    assert " int engine_row_17();" in project.patch(1).read_text()


def test_d_the_touched_function_was_renamed(project: Project, ucm: Path):
    replace(ucm, ENGINE, "engine_line_20", "engine_row_20")
    upstream(ucm, "Rename the row")
    tree = stopped(project, ucm, ENGINE, subject="Rename the row")
    text = (ucm / ENGINE).read_text()
    solve(tree, **{ENGINE: text.replace("engine_row_20()", "engine_row_20(int n)")})
    rebased(project, ucm, "solved", "clean", "clean", go_on=True)
    assert "+int engine_row_20(int n);" in project.patch(1).read_text()
    assert (project.overlay / CASE).exists()


def test_e_a_touched_file_was_split_in_two(project: Project, ucm: Path):
    head, tail = (ucm / ENGINE).read_text().split("int engine_line_15();\n")
    write(ucm, ENGINE, head)
    write(ucm, MORE, "int engine_line_15();\n" + tail)
    upstream(ucm, "Split the engine")
    tree = stopped(project, ucm, ENGINE, subject="Split the engine")
    more = (ucm / MORE).read_text().replace(DECLARED, OURS)
    solve(tree, **{ENGINE: head, MORE: more})
    rebased(project, ucm, "solved", "clean", "clean", go_on=True)
    text = project.patch(1).read_text()
    assert f"+++ b/{MORE}" in text and f"+++ b/{ENGINE}" not in text


def test_e_a_touched_file_moved_whole(project: Project, ucm: Path):
    """git follows the rename by itself."""
    git(ucm, "mv", ENGINE, MORE)
    upstream(ucm)
    rebased(project, ucm, "merged", "clean", "clean")
    assert f"+++ b/{MORE}" in project.patch(1).read_text()


def test_e_a_touched_file_is_gone(project: Project, ucm: Path):
    git(ucm, "rm", "-q", ENGINE)
    upstream(ucm, "Remove the engine")
    tree = stopped(project, ucm, ENGINE, subject="Remove the engine")
    refused(project.run("rebase", "--continue"), f"{ENGINE}: not added", code=3)
    git(tree, "rm", "-q", ENGINE)
    rebased(project, ucm, "solved", "clean", "clean", go_on=True)


def test_g_an_overlay_path_appeared(project: Project, ucm: Path):
    """Upstream's file stays; what it lacks becomes a patch."""
    write(ucm, KEYS, "# upstream's\nOTHER = 1\n")
    upstream(ucm, "Keys of our own")
    tree = stopped(project, ucm, KEYS, subject="Keys of our own")
    solve(tree, **{KEYS: "# upstream's\nOTHER = 1\nVERSION = 2\n"})
    rebased(project, ucm, "clean", "solved", "clean", go_on=True)
    assert "\n+VERSION = 2\n" in project.patch(2).read_text()
    assert not (project.overlay / KEYS).exists()
    assert (project.overlay / SCRIPT).exists()


def test_g_after_an_entry_that_upstream_took(project: Project, ucm: Path):
    """The patch id of the entry before says nothing about one of new files only."""
    replace(ucm, ENGINE, DECLARED, OURS)
    write(ucm, CASE, (project.overlay / CASE).read_text())
    upstream(ucm, "took it")
    write(ucm, KEYS, "OTHER = 1\n")
    upstream(ucm, "Keys of our own")
    tree = stopped(project, ucm, KEYS, subject="Keys of our own")
    solve(tree, **{KEYS: "OTHER = 1\nVERSION = 2\n"})
    rebased(project, ucm, "dropped", "solved", "clean", go_on=True)


def test_g_is_told_before_the_first_entry(project: Project, ucm: Path):
    write(ucm, KEYS, "OTHER = 1\n")
    upstream(ucm)
    out = project.run("rebase", "--ucm", ucm, "--to", "HEAD").stdout
    assert out.index(f"overlay   {KEYS}: upstream has it now") < out.index("clean")
    assert project.patch(2).name in out and "that becomes a patch" in out


@pytest.mark.parametrize("shallow", [False, True])
def test_a_conflict_where_history_begins(project: Project, ucm: Path, shallow: bool):
    """git takes a clone's first commit for the last one to every file."""
    replace(ucm, ENGINE, "engine_line_20", "engine_row_20")
    named = "Rename the row"
    upstream(ucm, named)
    write(ucm, "setup.py", "print('newer')\n")
    first = upstream(ucm, "Bump the setup only")
    clone = ucm.parent / "clone"
    depth = ["--depth=1"] * shallow
    git(ucm.parent, "clone", "-q", *depth, f"file://{ucm}", str(clone))
    out = project.run("rebase", "--ucm", clone, "--to", "HEAD").stdout
    assert "CONFLICT" in out and (named in out) is not shallow
    history = f"unknown, the clone's history begins at {first[:7]}"
    assert (f"{history}; git fetch --unshallow tells\n" in out) is shallow


@pytest.mark.parametrize("kind", ["shallow", "export", "blobless"])
def test_the_pinned_base_brings_the_blobs(project: Project, ucm: Path, kind: str):
    """3-way merges work where the checkout never had the base's commit or files."""
    replace(ucm, ENGINE, "engine_line_18", "engine_row_18")
    upstream(ucm, "one")
    replace(ucm, STORE, "store_line_13", "store_row_13")
    upstream(ucm, "two")
    target = ucm.parent / kind
    if kind == "export":
        shutil.copytree(ucm, target, ignore=shutil.ignore_patterns(".git"))
        git(target, "init", "-q", "-b", "main")
        upstream(target, "export")
    else:
        git(ucm, "config", "uploadpack.allowFilter", "true")
        depth = "--depth=1" if kind == "shallow" else "--filter=blob:none"
        git(ucm.parent, "clone", "-q", depth, f"file://{ucm}", str(target))
    project.ok("rebase", "--ucm", ucm, "--to", "HEAD")
    shutil.rmtree(project.root / "build" / "rebase", ignore_errors=True)
    git(project.root, "checkout", "-q", ".")
    rebased(project, target, "merged", "clean", "merged")
    assert git(target, "rev-parse", "hicache-v2^{tree}") == git(
        ucm, "rev-parse", "hicache-v2^{tree}"
    )


def test_an_applied_series_moves_with_its_branch(project: Project):
    ucm = project.applied()
    git(ucm, "branch", "theirs", "HEAD~3")
    git(ucm, "worktree", "add", "-q", str(ucm.parent / "side"), "theirs")
    write(ucm.parent / "side", "setup.py", "print('newer')\n")
    start = upstream(ucm.parent / "side")
    project.ok("rebase", "--ucm", ucm, "--to", "theirs")
    assert git(ucm, "rev-parse", "HEAD~3") == start
    assert "newer" in (ucm / "setup.py").read_text()
    assert "already applied" in project.ok("apply", "--ucm", ucm)
    project.ok("unapply", "--ucm", ucm)
    assert git(ucm, "rev-parse", "HEAD") == start


def test_twice_in_a_row(project: Project, ucm: Path):
    """The second pin is a commit of upstream's, not the sdist."""
    for name in ("one", "two"):
        git(ucm, "switch", "-q", "main")
        write(ucm, "setup.py", f"print('{name}')\n")
        upstream(ucm)
        rebased(project, ucm, "clean", "clean", "clean") if name == "one" else None
    git(ucm, "switch", "-q", "hicache-v2")
    commit_plain(project.root, "series")
    out = project.ok("rebase", "--ucm", ucm, "--to", "main")
    assert rows(out) == ["clean"] * 3
    assert git(ucm, "rev-parse", "HEAD~3") == git(ucm, "rev-parse", "main")
    assert git(ucm, "rev-parse", "--abbrev-ref", "HEAD") == "hicache-v2"


def test_refresh_elsewhere_does_not_bring_the_old_series_back(
    project: Project, ucm: Path
):
    """build/ucm has the series as it was before a rebase that dropped an entry."""
    project.ok("apply")
    replace(ucm, ENGINE, DECLARED, OURS)
    write(ucm, CASE, (project.overlay / CASE).read_text())
    upstream(ucm)
    rebased(project, ucm, "dropped", "clean", "clean")
    series = project.series()
    refused(project.run("refresh"), "another base than the pinned one", ENGINE)
    assert project.series() == series
    project.ok("refresh", "--ucm", ucm)
    assert project.series() == series


def test_the_fetched_checkout_follows_the_pin(project: Project, ucm: Path):
    """build/ucm goes with the pin when someone else moved it, and back."""
    project.ok("apply")
    own = project.root / "build" / "ucm"
    old = git(own, "rev-parse", "HEAD")
    replace(ucm, ENGINE, "engine_line_1()", "engine_row_1()")
    upstream(ucm)
    rebased(project, ucm, "clean", "clean", "clean")
    project.ok("apply", "--if-needed")
    assert "engine_row_1()" in (own / ENGINE).read_text()
    assert "already applied" in project.ok("apply")
    git(project.root, "checkout", "-q", ".")
    project.ok("apply", "--if-needed")
    assert git(own, "rev-parse", "HEAD") == old


# ---- open, interrupted, given up ----


def in_conflict(project: Project, ucm: Path) -> Path:
    replace(ucm, ENGINE, DECLARED, "long engine_line_20(int n);")
    upstream(ucm, "Check counts")
    return stopped(project, ucm, ENGINE, subject="Check counts")


def test_abort_leaves_everything_as_it_was(project: Project, ucm: Path):
    replace(ucm, ENGINE, DECLARED, "long engine_line_20(int n);")
    upstream(ucm)
    before, series = snapshot(ucm), project.series()
    assert project.run("rebase", "--ucm", ucm, "--to", "HEAD").returncode == 3
    assert "removed" in project.ok("rebase", "--abort")
    assert snapshot(ucm) == before and project.series() == series
    assert "nothing to do" in project.ok("rebase", "--abort")
    assert project.run("rebase", "--ucm", ucm, "--to", "HEAD").returncode == 3


def test_a_second_rebase_is_refused(project: Project, ucm: Path):
    tree = in_conflict(project, ucm)
    before = snapshot(tree)
    done = project.run("rebase", "--ucm", ucm, "--to", "HEAD")
    refused(done, "open already", "make rebase-continue, or make rebase-abort", code=3)
    assert snapshot(tree) == before


@pytest.mark.parametrize("how", ["untouched", "markers", "half"])
def test_continue_needs_a_solved_conflict(project: Project, ucm: Path, how: str):
    tree = in_conflict(project, ucm)
    phrase = "not added"
    if how == "markers":
        git(tree, "add", "--all")
        phrase = "has conflict markers"
    if how == "half":
        git(tree, "checkout", "-q", "--ours", ENGINE)
        git(tree, "add", "--all")
        write(tree, ENGINE, "int later();\n")
    before = snapshot(tree)
    refused(project.run("rebase", "--continue"), f"{ENGINE}: {phrase}", code=3)
    assert snapshot(tree) == before


def test_git_may_make_the_commit(project: Project, ucm: Path):
    """`git cherry-pick --continue` in the worktree is as good as rebase-continue."""
    tree = in_conflict(project, ucm)
    write(tree, ENGINE, (ucm / ENGINE).read_text() + "int more();\n")
    git(tree, "add", "--all")
    git(tree, "cherry-pick", "--continue", GIT_EDITOR="true")
    rebased(project, ucm, "solved", "clean", "clean", go_on=True)


@pytest.mark.parametrize("last", ["committed", "staged"])
def test_the_user_may_make_commits(project: Project, ucm: Path, last: str):
    """Whatever they say, and however many: together they are the entry."""
    tree = in_conflict(project, ucm)
    text = (ucm / ENGINE).read_text()
    for words in ("resolve", "and this"):
        text += f"int {words.split()[-1]}();\n"
        write(tree, ENGINE, text)
        git(tree, "add", "--all")
        if last == "committed" or words == "resolve":
            git(tree, "commit", "-q", "-m", words)
    rebased(project, ucm, "solved", "clean", "clean", go_on=True)
    assert "+int resolve();\n+int this();" in project.patch(1).read_text()


@pytest.mark.parametrize("how", ["cherry-pick --abort", "reset -q --hard"])
def test_a_pick_that_the_user_gave_up_comes_again(project, ucm: Path, how: str):
    tree = in_conflict(project, ucm)
    git(tree, *how.split())
    done = project.run("rebase", "--continue")
    assert done.returncode == 3 and f"  conflict  {ENGINE}\n" in done.stdout
    assert "dropped" not in rows(done.stdout)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_file_that_was_not_added(project: Project, ucm: Path, ignored: bool):
    """Whatever the clone's settings hide: with the worktree it would be gone."""
    git(ucm, "config", "status.showUntrackedFiles", "no")
    if ignored:
        write(ucm, ".gitignore", "*_more.h\n")
    tree = in_conflict(project, ucm)
    write(tree, MORE, (project.overlay / CASE).read_text())
    git(tree, "checkout", "-q", "HEAD", "--", ENGINE)
    found = "ignored; git add --force" if ignored else "not added"
    refused(project.run("rebase", "--continue"), f"{MORE}: {found}", code=3)
    git(tree, "add", "--force", MORE)
    rebased(project, ucm, "solved", "clean", "clean", go_on=True)
    assert (project.overlay / MORE).exists()


def test_recorded_solutions_do_not_count(project: Project, ucm: Path):
    """rerere would stage one, unseen, and continue would find nothing unmerged."""
    git(ucm, "config", "rerere.enabled", "true")
    git(ucm, "config", "rerere.autoUpdate", "true")
    tree = in_conflict(project, ucm)
    solve(tree, **{ENGINE: (ucm / ENGINE).read_text() + "int more();\n"})
    git(tree, "commit", "-q", "-m", "recorded")
    project.ok("rebase", "--abort")
    done = project.run("rebase", "--ucm", ucm, "--to", "HEAD")
    assert done.returncode == 3 and f"  conflict  {ENGINE}\n" in done.stdout


@pytest.mark.parametrize("how", ["made", "checked out"])
def test_the_result_s_branch_is_taken_meanwhile(project, ucm: Path, how: str):
    tree = in_conflict(project, ucm)
    solve(tree, **{ENGINE: (ucm / ENGINE).read_text()})
    git(ucm, "switch", "-q", "-c", "hicache-v2")
    write(ucm, "README.md", "mine\n")
    mine = upstream(ucm, "my own work")
    if how == "made":
        git(ucm, "switch", "-q", "main")
    done = project.run("rebase", "--continue")
    refused(done, "branch --move hicache-v2", "then make rebase-continue")
    assert git(ucm, "rev-parse", "hicache-v2") == mine
    git(ucm, "branch", "--move", "hicache-v2", "mine")
    git(ucm, "switch", "-q", "main")
    rebased(project, ucm, "solved", "clean", "clean", go_on=True)


def test_nothing_is_left_to_move(project: Project, ucm: Path):
    git(ucm, "fetch", "-q", str(project.applied("full")), "HEAD")
    git(ucm, "checkout", "FETCH_HEAD", "--", ".")
    upstream(ucm, "Everything (#9)")
    done = project.run("rebase", "--ucm", ucm, "--to", "HEAD")
    refused(done, "upstream has the whole series", "next: make rebase-abort", code=3)
    project.ok("rebase", "--abort")


@pytest.fixture
def moving(project: Project) -> Path:
    """A clone with the series applied, whose upstream, theirs, has notes.txt."""
    ucm = project.applied()
    side = ucm.parent / "side"
    git(ucm, "worktree", "add", "-q", "-b", "theirs", str(side), "HEAD~3")
    write(side, "notes.txt", "theirs\n")
    upstream(side)
    git(ucm, "worktree", "remove", str(side))
    return ucm


def test_taken_back_as_the_page_tells(project: Project, moving: Path):
    tip, series = git(moving, "rev-parse", "HEAD"), project.series()
    project.ok("rebase", "--ucm", moving, "--to", "theirs")
    project.ok("unapply", "--ucm", moving)
    git(project.root, "checkout", "--", "patches", "ucm_overlay", "UPSTREAM")
    count = len(git(project.root, "ls-files", "patches/*.patch").split())
    git(moving, "reset", "-q", "--keep", f"HEAD@{{2}}~{count}")
    project.ok("apply", "--ucm", moving)
    assert git(moving, "rev-parse", "HEAD") == tip and project.series() == series
    assert "already applied" in project.ok("apply", "--ucm", moving)


def test_a_file_in_the_way_at_the_end(project: Project, moving: Path):
    """Neither the end nor giving up is barred."""
    write(moving, "notes.txt", "mine\n")
    before, series = git(moving, "rev-parse", "HEAD"), project.series()
    args = ("--ucm", moving, "--to", "theirs")
    done = project.run("rebase", *args)
    refused(done, "notes.txt", "in the way, then make rebase-continue")
    assert git(moving, "rev-parse", "HEAD") == before and project.series() == series
    project.ok("rebase", "--abort")
    assert project.run("rebase", *args).returncode == 1
    (moving / "notes.txt").unlink()
    project.ok("rebase", "--continue")
    assert (moving / "notes.txt").read_text() == "theirs\n"


def test_commits_that_are_made_meanwhile(project: Project, moving: Path):
    """make refresh would change the series under the open rebase."""
    write(moving, "notes.txt", "mine\n")
    project.run("rebase", "--ucm", moving, "--to", "theirs")
    replace(moving, STORE, "store_line_30", "store_row_30")
    commit_plain(moving, "my fixup")
    text = refused(project.run("rebase", "--continue"), "my fixup")
    assert "make refresh" not in text and "then make rebase-continue" in text


@pytest.mark.parametrize("how", ["gone", "power cut"])
def test_the_state_cannot_be_read(project: Project, ucm: Path, how: str):
    tree = in_conflict(project, ucm)
    state = Path(git(tree, "rev-parse", "--absolute-git-dir")) / "ucm-hicache.json"
    if how == "gone":
        ucm = ucm.rename(ucm.parent / "moved")
    else:
        state.write_text("")
    refused(project.run("rebase", "--continue"), "a part of one", "make rebase-abort")
    assert f"removed {tree}" in project.ok("rebase", "--abort")
    assert project.run("rebase", "--ucm", ucm, "--to", "HEAD").returncode == 3


def test_a_lock_that_a_killed_git_left(project: Project, ucm: Path):
    tree = in_conflict(project, ucm)
    solve(tree, **{ENGINE: (ucm / ENGINE).read_text()})
    lock = Path(git(tree, "rev-parse", "--absolute-git-dir")) / "index.lock"
    lock.touch()
    refused(
        project.run("rebase", "--continue"), f"rm {lock}, then make rebase-continue"
    )
    lock.unlink()
    rebased(project, ucm, "solved", "clean", "clean", go_on=True)


def test_one_process_at_a_time(project: Project, ucm: Path):
    in_conflict(project, ucm)
    with open(project.root / "build" / "rebase.lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for step in ("--continue", "--abort"):
            refused(project.run("rebase", step), "another make rebase is at work")
    project.ok("rebase", "--abort")


def test_clean_keeps_an_open_rebase(project: Project, ucm: Path):
    tree = in_conflict(project, ucm)
    make = ["make", "-s", "-f", str(REPOSITORY / "Makefile"), "clean"]
    done = subprocess.run(make, cwd=project.root, capture_output=True, text=True)
    assert done.returncode and "make rebase-abort" in done.stderr and tree.exists()
    project.ok("rebase", "--abort")
    subprocess.run(make, cwd=project.root, check=True)
    assert not (project.root / "build").exists()


def test_continue_without_a_rebase(project: Project):
    refused(project.run("rebase", "--continue"), "no rebase is open", code=2)


def test_series_that_changed_meanwhile(project: Project, ucm: Path):
    tree = in_conflict(project, ucm)
    git(tree, "checkout", "-q", "--ours", ENGINE)
    git(tree, "add", "--all")
    write(project.overlay, KEYS, "VERSION = 9\n")
    refused(project.run("rebase", "--continue"), "changed while the rebase was open")


KILLS = [
    ("worktree", 3),
    ("cherry-pick", 2),  # while it looks for topics that upstream has
    ("cherry-pick", 7),
    ("format-patch", 2),
    ("fetch", 2),
    ("range-diff", 1),
]


@pytest.mark.parametrize("when, count", KILLS)
def test_killed_in_the_middle(project: Project, ucm: Path, when: str, count: int):
    """Whatever git command it dies in: it goes on, or is given up; never half a result."""
    write(ucm, "setup.py", "print('newer')\n")
    upstream(ucm)
    before, series = snapshot(ucm), project.series()
    trap = project.root.parent / "trap"
    write(
        trap,
        "git",
        f"#!/bin/sh\necho $1 >> {trap}/seen\n"
        f'[ "$(grep -c ^{when}\\$ {trap}/seen)" = {count} ] && [ $1 = {when} ] && '
        f"exec 9>{trap}/orphan && flock 9 && kill -9 $PPID\n"
        f"exec {shutil.which('git')} \"$@\"\n",
        0o755,
    )
    path = f"{trap}:{os.environ['PATH']}"
    done = project.run("rebase", "--ucm", ucm, "--to", "HEAD", PATH=path)
    assert done.returncode == -9
    with open(trap / "orphan") as orphan:  # git outlives the tool, and the lock git
        fcntl.flock(orphan, fcntl.LOCK_EX)
    after = snapshot(ucm)
    before.pop("worktrees"), after.pop("worktrees")
    assert after == before and project.series() == series
    if (project.root / "build" / "rebase").exists():
        done = project.run("rebase", "--ucm", ucm, "--to", "HEAD")
        refused(done, "open already", code=3)
        out = project.ok("rebase", "--continue")
    else:
        out = project.ok("rebase", "--ucm", ucm, "--to", "HEAD")
    assert "entries   3 clean" in out
    assert "0 findings" in project.ok("verify")


def test_killed_before_there_is_a_state(project: Project, ucm: Path):
    """The worktree is there, and nothing yet that could go on."""
    write(ucm, "setup.py", "print('newer')\n")
    upstream(ucm)
    trap, real = project.root.parent / "trap", shutil.which("git")
    text = f"""#!/bin/sh
case "$*" in
*build/rebase*) {real} "$@"; kill -9 $PPID;;
*) exec {real} "$@";;
esac
"""
    write(trap, "git", text, 0o755)
    args, path = ("--ucm", ucm, "--to", "HEAD"), f"{trap}:{os.environ['PATH']}"
    assert project.run("rebase", *args, PATH=path).returncode == -9
    done = project.run("rebase", "--continue")
    refused(done, "it died before its first entry", "make rebase-abort")
    assert "a part of one" in project.ok("rebase", "--abort")
    assert rows(project.ok("rebase", *args)) == ["clean"] * 3


# It dies before one of the steps that change something: a rename, or one of these of git.
DYING = """import os, signal, sys
import rebase
from _report import run

GIT = {"branch", "update-ref", "read-tree", "worktree"}
move, left = rebase.move, [int(sys.argv.pop(1))]

def count(event, args):
    if event == "os.rename" or event == "subprocess.Popen" and args[1][1] in GIT:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def dying(state):
    sys.addaudithook(count)
    where, left[0] = move(state), 0
    return where

rebase.move = dying
run("rebase", rebase.main)
"""


def result(project: Project, ucm: Path) -> dict:
    """All that a rebase changes."""
    parts = {**snapshot(ucm, times=False), **project.series()}
    parts.pop("reflog"), parts.pop("index")
    parts["staged"] = git(ucm, "ls-files", "--stage")
    parts["pin"] = (project.root / "UPSTREAM").read_text()
    parts["left"] = git(project.root, "status", "--porcelain", "--ignored")
    return parts


@pytest.mark.parametrize("applied", [False, True])
def test_killed_while_the_result_moves(project: Project, applied: bool):
    """At each step: no second rebase and no abort, but rebase-continue ends it all."""
    write(project.root, "scripts/dying.py", DYING)
    ucm = project.applied() if applied else project.clone()
    git(ucm, "branch", "theirs", "HEAD~3" if applied else "HEAD")
    git(ucm, "worktree", "add", "-q", str(ucm.parent / "side"), "theirs")
    write(ucm.parent / "side", "setup.py", "print('newer')\n")
    upstream(ucm.parent / "side")
    git(ucm, "worktree", "remove", str(ucm.parent / "side"))
    kept = project.root.parent / "kept"
    kept.mkdir()
    for place in (project.root, ucm):
        shutil.copytree(place, kept / place.name, symlinks=True)
    args = ("--ucm", ucm, "--to", "theirs")
    project.ok("rebase", *args)
    wanted = result(project, ucm)
    for step in range(1, 99):
        for place in (project.root, ucm):
            shutil.rmtree(place)
            shutil.copytree(kept / place.name, place, symlinks=True)
        done = project.run("dying", step, *args)
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stdout + done.stderr
        if applied:
            done = project.run("rebase", "--abort")
            refused(done, "at its end", "make rebase-continue")
            refused(project.run("rebase", *args), "open already", code=3)
        project.ok("rebase", "--continue")
        assert result(project, ucm) == wanted, step
    assert step > 8
    assert "0 findings" in project.ok("verify")


@pytest.mark.parametrize("gone", [".git", "README.md"])
def test_a_worktree_that_is_half_gone(project: Project, ucm: Path, gone: str):
    """git may die while it makes or removes it."""
    tree = in_conflict(project, ucm)
    (tree / gone).unlink()
    if gone == ".git":
        refused(project.run("rebase", "--continue"), "a part of one", "rebase-abort")
    assert f"removed {tree}" in project.ok("rebase", "--abort")
    assert project.run("rebase", "--ucm", ucm, "--to", "HEAD").returncode == 3


# ---- bad input: one block, nothing changed ----


def refuse(project: Project, ucm: Path, *phrases: str, to: str = "HEAD", **env) -> str:
    before, series = snapshot(ucm), project.series()
    pin = (project.root / "UPSTREAM").read_bytes()
    done = project.run("rebase", "--ucm", ucm, f"--to={to}", **env)
    text = refused(done, *phrases)
    assert snapshot(ucm) == before and project.series() == series
    assert (project.root / "UPSTREAM").read_bytes() == pin
    assert not (project.root / "build" / "rebase").exists()
    return text


@pytest.mark.parametrize("to", ["nowhere", "", "HEAD:README.md", "--all", "f" * 40])
def test_unknown_ref(project: Project, ucm: Path, to: str):
    refuse(project, ucm, "no commit", "fetch", to=to)


def test_the_pinned_base_itself(project: Project, ucm: Path):
    refuse(project, ucm, "the series stands on it")


def test_a_branch_that_holds_the_series(project: Project):
    refuse(project, project.applied(), "it holds the applied series itself")


def test_the_result_s_branch_has_work_of_the_user(project: Project):
    """Made there and not refreshed, while another branch is checked out."""
    ucm = project.applied()
    git(ucm, "switch", "-q", "-c", "hicache-v2")
    replace(ucm, "setup.py", "setup", "mine")
    commit(ucm, "[Feat] Set up my way")
    git(ucm, "switch", "-q", "-c", "theirs", "HEAD~4")
    write(ucm, "README.md", "# UCM, newer\n")
    upstream(ucm)
    switch = f"git -C {ucm} switch hicache-v2, make refresh UCM={ucm}, then make rebase"
    refuse(project, ucm, "[Feat] Set up my way", f"next: {switch}")
    git(ucm, "switch", "-q", "hicache-v2")
    project.ok("refresh", "--ucm", ucm)
    assert "+print('mine')" in project.patch(4).read_text()


@pytest.mark.parametrize("ours", [False, True])
def test_the_result_s_branch_is_taken(project: Project, ucm: Path, ours: bool):
    """Somebody else's branch of that name stays where it is; so does one that is checked out."""
    write(ucm, "setup.py", "print('newer')\n")
    newer = upstream(ucm)
    second = ucm.parent / "second"
    git(ucm, "worktree", "add", "-q", "-b", "hicache-v2", str(second))
    write(second, "setup.py", "print('theirs')\n")
    theirs = upstream(second)
    if ours:
        git(ucm, "update-ref", "refs/worktree/ucm-hicache/tip", theirs)
    found = "it is checked out" if ours else "made by somebody else"
    refuse(project, ucm, found, "branch --move", to=newer)


@pytest.mark.parametrize("where", ["overlay", "patches", "UPSTREAM"])
def test_a_series_that_is_not_committed(project: Project, ucm: Path, where: str):
    """The end replaces it: what git does not know of would be gone."""
    write(ucm, "setup.py", "print('newer')\n")
    upstream(ucm)
    path = {
        "overlay": project.overlay / "ucm" / "draft.py",
        "patches": project.patches / "NOTES",
        "UPSTREAM": project.root / "UPSTREAM",
    }[where]
    with open(path, "a") as file:
        file.write("# mine\n")
    found = str(path.relative_to(project.root))
    refuse(project, ucm, "not committed", found)
    assert path.read_text().endswith("# mine\n")
    shutil.rmtree(project.root / ".git")  # an export: git knows nothing of it
    assert rows(project.ok("rebase", "--ucm", ucm, "--to", "HEAD")) == ["clean"] * 3


def test_what_is_the_user_s_own_stays(project: Project, ucm: Path):
    """A worktree on a drive that is not there now, and FETCH_HEAD."""
    away, kept = ucm.parent / "away", ucm.parent / "unplugged"
    git(ucm, "worktree", "add", "-q", "--detach", str(away))
    away.rename(kept)
    write(ucm, "setup.py", "print('newer')\n")
    upstream(ucm)
    git(ucm, "fetch", "-q", ".", "HEAD")
    head = git(ucm, "rev-parse", "FETCH_HEAD")
    rebased(project, ucm, "clean", "clean", "clean")
    assert git(ucm, "rev-parse", "FETCH_HEAD") == head
    kept.rename(away)
    git(away, "status")


def test_a_folder_at_an_overlay_path(project: Project, ucm: Path):
    write(ucm, f"{KEYS}/inside.txt", "theirs\n")
    upstream(ucm)
    done = project.run("rebase", "--ucm", ucm, "--to", "HEAD")
    assert done.returncode == 3 and not done.stderr, done.stdout + done.stderr
    assert f"overlay   {KEYS}: upstream has it now" in done.stdout
    assert "CONFLICT" in done.stdout and "(2 of 3)" in done.stdout
    project.ok("rebase", "--abort")


def test_another_project(project: Project, ucm: Path):
    git(ucm, "rm", "-q", "ucm/store/ucmstore_v1.py")
    other = upstream(ucm)
    git(ucm, "reset", "-q", "--hard", "HEAD~1")
    refuse(project, ucm, "this is not UCM", to=other)


def test_older_by_ancestry(project: Project):
    """Upstream's history has a commit with the base's bytes, and TO is before it."""
    ucm = project.root.parent / "history"
    for path, text in BASE_FILES.items():
        write(ucm, path, text)
    git(ucm, "init", "-q", "-b", "main")
    replace(ucm, ENGINE, "engine_line_30", "engine_older_30")
    older = upstream(ucm, "before the release")
    replace(ucm, ENGINE, "engine_older_30", "engine_line_30")
    same = upstream(ucm, "the release")
    replace(ucm, ENGINE, "engine_line_31", "engine_newer_31")
    upstream(ucm, "after it")
    refuse(project, ucm, "older than the pinned base", f"like {same[:12]}", to=older)
    rebased(project, ucm, "clean", "clean", "clean")


def test_older_by_pin(project: Project, ucm: Path):
    old = git(ucm, "rev-parse", "HEAD")
    write(ucm, "setup.py", "print('newer')\n")
    upstream(ucm)
    rebased(project, ucm, "clean", "clean", "clean")
    refuse(project, ucm, "older than the pinned base", to=old)


def test_older_in_a_clone_that_lacks_the_pin(project: Project, ucm: Path):
    """Ancestry cannot tell there, and the version is the same: the dates are not."""
    other = ucm.parent / "stale"
    write(ucm, "setup.py", "print('newer')\n")
    upstream(ucm)
    git(ucm.parent, "clone", "-q", str(ucm), str(other))
    late = {"GIT_COMMITTER_DATE": "2099-01-01T00:00:00+0000"}
    write(ucm, "setup.py", "print('newest')\n")
    git(ucm, "commit", "-q", "-a", "-m", "later", **late)
    rebased(project, ucm, "clean", "clean", "clean")
    commit_plain(project.root, "series")
    refuse(project, other, "older than the pinned base", "git fetch", to="HEAD")
    git(other, "fetch", "-q", str(ucm), "main")
    refuse(project, other, "it is the pinned base", to="FETCH_HEAD")


def test_older_by_version(project: Project):
    """An export has no history; its setup.py tells."""
    write(project.base, "setup.py", 'setup(version="0.5.0")\n')
    git(project.base, "commit", "-q", "-a", "--amend", "-m", "uc-manager 0.0.1")
    pin, ucm = project.root / "UPSTREAM", project.root.parent / "other"
    rows = [r for r in pin.read_text().splitlines() if not r.startswith("commit=")]
    rows.append(f"commit={git(project.base, 'rev-parse', 'HEAD')}\n")
    pin.write_text("\n".join(rows))
    for path, text in BASE_FILES.items():
        write(ucm, path, text)
    git(ucm, "init", "-q", "-b", "main")
    write(ucm, "setup.py", 'setup(version="0.4.11")\n')
    upstream(ucm)
    refuse(project, ucm, "version 0.5.0, not 0.4.11")


@pytest.mark.parametrize("path", [ENGINE, "setup.py"])
@pytest.mark.parametrize("staged", [False, True])
def test_dirty_tree(project: Project, ucm: Path, path: str, staged: bool):
    write(ucm, "README.md", "# newer\n")
    upstream(ucm)
    write(ucm, path, "mine\n")
    if staged:
        git(ucm, "add", path)
    refuse(project, ucm, "work in", path, "commit or stash")


def test_commits_that_are_not_in_the_series_yet(project: Project):
    ucm = project.applied()
    git(ucm, "branch", "theirs", "HEAD~3")
    replace(ucm, STORE, "store_line_30", "store_row_30")
    commit_plain(ucm, "fixup! mine")
    refuse(project, ucm, "fixup! mine", "make refresh", to="theirs")


def test_unfinished_git_operation(project: Project, ucm: Path):
    git(ucm, "switch", "-q", "-c", "side")
    write(ucm, "setup.py", "one\n")
    upstream(ucm)
    git(ucm, "switch", "-q", "main")
    write(ucm, "setup.py", "two\n")
    upstream(ucm)
    with pytest.raises(AssertionError):
        git(ucm, "rebase", "-q", "side")
    refuse(project, ucm, "a rebase is in progress")


def test_no_network(project: Project, ucm: Path):
    """The base is not there and cannot be fetched."""
    write(ucm, "setup.py", "print('newer')\n")
    upstream(ucm)
    shutil.rmtree(project.base)
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
    nowhere |= {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    refuse(project, ucm, "pip could not fetch the pinned base", **nowhere)


def test_no_network_for_a_clone_without_files(project: Project, ucm: Path):
    replace(ucm, ENGINE, "engine_line_1()", "engine_row_1()")
    upstream(ucm)
    git(ucm, "config", "uploadpack.allowFilter", "true")
    target, no_files = ucm.parent / "blobless", ("--filter=blob:none", "--no-checkout")
    git(ucm.parent, "clone", "-q", *no_files, f"file://{ucm}", str(target))
    git(target, "checkout", "-q", "HEAD~1")
    ucm.rename(ucm.parent / "gone")
    refuse(project, target, "git cannot read", "fetch", to="main")


def test_no_network_for_a_pinned_commit(project: Project, ucm: Path):
    write(ucm, "setup.py", "print('newer')\n")
    start = upstream(ucm)
    with open(project.root / "UPSTREAM", "a") as pin:
        pin.write("url=file:///nowhere\n")
    commit_plain(project.root, "series")
    rebased(project, ucm, "clean", "clean", "clean")
    shutil.rmtree(project.root / "build" / "base")
    text = refused(project.run("verify"), "could not fetch the pinned base", start)
    assert "scripts/_pin.py CLONE" in text
    done = project.run("_pin", ucm)
    assert done.returncode == 0 and start[:12] in done.stdout, done.stderr
    project.ok("verify")


def test_state_names_the_checkout(project: Project, ucm: Path):
    """rebase-continue and -abort need no UCM=: the worktree knows."""
    tree = in_conflict(project, ucm)
    found = Path(git(tree, "rev-parse", "--absolute-git-dir")) / "ucm-hicache.json"
    assert json.loads(found.read_text())["ucm"] == str(ucm)
