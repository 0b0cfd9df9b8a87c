"""make apply refuses with one block, and the checkout stays exactly as it was."""

import os
import subprocess
import sys
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
    commit_plain,
    environment,
    git,
    refused,
    replace,
    snapshot,
    write,
)

TOOLS = ("apply", "unapply", "status", "refresh")


def refuse(project: Project, ucm: Path, *phrases: str, code: int | None = None) -> str:
    """Apply must refuse and leave everything alone."""
    before = snapshot(ucm)
    text = refused(project.run("apply", "--ucm", ucm), *phrases, code=code)
    assert snapshot(ucm) == before
    return text


@pytest.mark.parametrize("tool", TOOLS)
def test_not_a_checkout(project: Project, tool: str, tmp_path: Path):
    plain = tmp_path / "plain"
    for path, text in BASE_FILES.items():
        write(plain, path, text)
    refused(project.run(tool, "--ucm", plain), "not the top of a git checkout", code=2)
    refused(project.run(tool, "--ucm", tmp_path / "none"), "no such folder", code=2)
    assert not (plain / ".git").exists() and not (plain / KEYS).exists()


@pytest.mark.parametrize("tool", TOOLS)
def test_plain_folder_nested_in_another_repository(project: Project, tool: str):
    """git would act on the repository around it and say nothing."""
    outer = project.clone("outer")
    for path, text in BASE_FILES.items():
        write(outer, f"nested/{path}", text)
    before = snapshot(outer)
    done = project.run(tool, "--ucm", outer / "nested")
    refused(done, "not the top of a git checkout", str(outer), code=2)
    assert snapshot(outer) == before


def test_folder_inside_the_checkout(project: Project):
    ucm = project.clone()
    refused(project.run("apply", "--ucm", ucm / "ucm"), "not the top", code=2)


def test_bare_repository(project: Project):
    bare = project.clone("bare.git", "--bare")
    refused(project.run("apply", "--ucm", bare), "working tree", code=2)
    assert git(bare, "for-each-ref").count("\n") == 0


def test_git_folder_itself(project: Project):
    ucm = project.clone()
    refused(project.run("apply", "--ucm", ucm / ".git"), "not the top", code=2)


def test_empty_repository(project: Project, tmp_path: Path):
    git(tmp_path, "init", "-q", "empty")
    refused(project.run("apply", "--ucm", tmp_path / "empty"), "no commit", code=2)


def test_not_ucm(project: Project, tmp_path: Path):
    other = tmp_path / "other"
    write(other, "README.md", "# other\n")
    git(other, "init", "-q")
    commit_plain(other, "first")
    refuse(project, other, "is not a UCM checkout", code=2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_checkout_of_another_user(project: Project):
    """git's own refusal is shown; the user's safe.directory setting is heeded."""
    ucm = project.clone()
    subprocess.run(["chown", "-R", "4242", str(ucm)], check=True)
    refused(project.run("apply", "--ucm", ucm), "dubious ownership", code=2)
    write(project.home, ".gitconfig", f"[safe]\n\tdirectory = {ucm}\n")
    project.ok("apply", "--ucm", ucm)
    project.ok("unapply", "--ucm", ucm)


def test_moved_lines_in_a_touched_file(project: Project):
    ucm = project.clone()
    replace(ucm, ENGINE, "int engine_line_0();\n", "int a();\nint engine_line_0();\n")
    commit_plain(ucm, "upstream moves lines")
    text = refuse(project, ucm, ENGINE, "moved lines", "make rebase is the way")
    assert "1 of 3 files" in text and "conflict" not in text
    assert STORE not in text
    assert f"make rebase UCM={ucm}" in text.splitlines()[-1]


def test_conflict_in_a_touched_file(project: Project):
    ucm = project.clone()
    replace(ucm, ENGINE, "engine_line_20()", "engine_line_20(long n)")
    replace(ucm, STORE, "store_line_39 = 39", "store_line_39 = 40")
    commit_plain(ucm, "upstream changes the same line")
    text = refuse(project, ucm, ENGINE, STORE, "conflict", "2 of 3 files")
    assert project.patch(1).name in text


def test_touched_file_missing(project: Project):
    ucm = project.clone()
    git(ucm, "rm", "-q", ENGINE)
    commit_plain(ucm, "upstream drops it")
    refuse(project, ucm, f"{ENGINE} (missing)", "rebase")


def test_no_touched_file_there(project: Project):
    ucm = project.clone()
    git(ucm, "rm", "-q", ENGINE, STORE, "README.md")
    commit_plain(ucm, "another UCM")
    text = refuse(project, ucm, "(missing)", "not a UCM near the base")
    assert "make rebase" not in text


@pytest.mark.parametrize("path", [ENGINE, "README.md"])
@pytest.mark.parametrize("staged", [False, True])
def test_dirty_touched_file(project: Project, path: str, staged: bool):
    ucm = project.clone()
    write(ucm, path, (ucm / path).read_text() + "more\n")
    if staged:
        git(ucm, "add", path)
    os.utime(ucm / STORE, (1, 1))  # a status that refreshed the index would show
    refuse(project, ucm, path, "commit or stash")


def test_removed_touched_file(project: Project):
    ucm = project.clone()
    (ucm / STORE).unlink()
    refuse(project, ucm, STORE, "uncommitted")


def test_changed_bit_of_a_touched_file(project: Project):
    ucm = project.clone()
    (ucm / STORE).chmod(0o755)
    refuse(project, ucm, STORE, "uncommitted")


def test_dirty_touched_file_that_git_was_told_to_overlook(project: Project):
    ucm = project.clone()
    git(ucm, "update-index", "--assume-unchanged", ENGINE)
    replace(ucm, ENGINE, "engine_line_1()", "engine_line_1(void)")
    before = snapshot(ucm, times=False)
    refused(project.run("apply", "--ucm", ucm), ENGINE)
    after = snapshot(ucm, times=False)
    before.pop("index"), after.pop("index")
    assert after == before


@pytest.mark.parametrize("kind", ["untracked", "ignored", "staged", "link", "folder"])
def test_overlay_path_taken_on_disk(project: Project, kind: str):
    ucm = project.clone()
    if kind == "link":
        (ucm / KEYS).symlink_to("nowhere")
    elif kind == "folder":
        write(ucm, f"{KEYS}/inside.txt", "mine\n")
    else:
        write(ucm, KEYS, "mine = 1\n")
    if kind == "ignored":
        write(ucm, ".git/info/exclude", "hicache_keys.py\n")
    if kind == "staged":
        git(ucm, "add", KEYS)
    refuse(project, ucm, KEYS)


@pytest.mark.parametrize("kind", ["file", "ignored file", "link", "ignored link"])
def test_file_where_the_overlay_needs_a_folder(project: Project, kind: str):
    ucm = project.clone()
    if "link" in kind:
        (ucm / "ucm" / "tools").symlink_to("store")
    else:
        write(ucm, "ucm/tools", "mine\n")
    if "ignored" in kind:
        write(ucm, ".git/info/exclude", "tools\n")
    refuse(project, ucm, "ucm/tools")


def test_overlay_path_taken_in_head(project: Project):
    ucm = project.clone()
    write(ucm, KEYS, "upstream = 1\n")
    write(ucm, CASE, "upstream\n")
    commit_plain(ucm, "upstream has them now")
    text = refuse(project, ucm, KEYS, CASE, "exist already")
    assert SCRIPT not in text


def test_overlay_folder_is_a_file_in_head(project: Project):
    ucm = project.clone()
    write(ucm, "ucm/tools", "upstream\n")
    commit_plain(ucm, "upstream has a file of that name")
    refuse(project, ucm, "ucm/tools")


def stop_in_the_middle(ucm: Path, what: str) -> None:
    """Leave the checkout in the middle of a real, conflicting git operation."""
    git(ucm, "checkout", "-q", "-b", "side")
    write(ucm, "setup.py", "print('side')\n")
    side = commit_plain(ucm, "side")
    git(ucm, "checkout", "-q", "main")
    write(ucm, "setup.py", "print('main')\n")
    commit_plain(ucm, "main")
    patch = git(ucm, "format-patch", "--stdout", "-1", side) + "\n"
    command = {
        "an am": ("am", "-q"),
        "a rebase": ("rebase", "-q", "side"),
        "a merge": ("merge", "-q", "side"),
        "a cherry-pick": ("cherry-pick", "side"),
        "a revert": ("revert", "--no-edit", "side"),
    }[what]
    with pytest.raises(AssertionError):
        git(ucm, *command, text=patch)


@pytest.mark.parametrize(
    "what", ["an am", "a rebase", "a merge", "a cherry-pick", "a revert"]
)
def test_unfinished_git_operation(project: Project, what: str):
    ucm = project.clone()
    stop_in_the_middle(ucm, what)
    refuse(project, ucm, f"{what} ", "in progress")
    for tool in ("unapply", "refresh"):
        refused(project.run(tool, "--ucm", ucm), "in progress")


def test_unfinished_operation_in_a_linked_worktree(project: Project):
    main = project.clone()
    linked = main.parent / "linked"
    git(main, "worktree", "add", "-q", "--detach", str(linked))
    stop_in_the_middle(main, "a merge")
    project.ok("apply", "--ucm", linked)
    refuse(project, main, "a merge is in progress")


def test_older_series_applied(project: Project):
    ucm = project.applied()
    write(project.overlay, KEYS, "# MIT License\nVERSION = 3\n")
    refuse(project, ucm, "another version of the series", "make unapply")


def test_shorter_series_applied(project: Project):
    ucm = project.applied()
    project.edit_series(project.patch(3).name + "\n", "")
    refuse(project, ucm, "another version of the series")


def test_series_applied_but_edited_on_the_branch(project: Project):
    ucm = project.applied()
    git(ucm, "commit", "-q", "--amend", "--no-edit", "--date=2026-05-05T00:00:00Z")
    refuse(project, ucm, "make refresh")


@pytest.mark.parametrize("text", ["", "# only a comment\n", None])
def test_empty_series(project: Project, text: str | None):
    series = project.patches / "series"
    series.unlink() if text is None else series.write_text(text)
    refuse(project, project.clone(), "the series is empty")


def test_overlay_line_before_any_entry(project: Project):
    write(project.patches, "series", f"    {KEYS}\n")
    refuse(project, project.clone(), "the series is not complete", f"patches/{KEYS}")


def test_wrong_base_under_build(project: Project):
    write(project.base, "extra.txt", "x\n")
    commit_plain(project.base, "someone committed here")
    ucm = project.root.parent / "ucm"
    git(ucm.parent, "clone", "-q", str(project.base), str(ucm))
    refuse(project, ucm, "not the pinned one")


def test_traceback_only_when_asked_for(project: Project):
    ucm = project.clone()
    (project.patches / "series").write_bytes(b"\xff\n")
    quiet = project.run("status", "--ucm", ucm)
    assert "FAILED" in quiet.stderr and "Traceback" not in quiet.stderr
    assert quiet.stderr.splitlines()[-1].startswith("next: ")
    loud = project.run("status", "--ucm", ucm, V="1")
    assert loud.returncode and quiet.stderr in loud.stderr
    assert "Traceback" in loud.stderr


def started(project: Project, tool: str, *args) -> subprocess.Popen:
    command = [sys.executable, project.root / "scripts" / f"{tool}.py", *args]
    env, pipe = environment(project.home), subprocess.PIPE
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)


def test_a_reader_that_has_seen_enough(project: Project):
    """make status | head"""
    tool = started(project, "status", "--ucm", project.clone())
    tool.stdout.close()
    assert tool.stderr.read() == "" and tool.wait() == 141


def test_interrupted(project: Project):
    """Ctrl-C while git works for the tool."""
    trap = project.root.parent / "trap"
    write(trap, "git", "#!/bin/sh\nkill -INT $PPID\nexec sleep 1\n", 0o755)
    path = {"PATH": f"{trap}:{os.environ['PATH']}"}
    done = project.run("status", "--ucm", project.clone(), **path)
    assert done.returncode == 130
    rows = done.stderr.splitlines()
    assert rows[0] == "status: interrupted" and rows[1].startswith("next: "), rows


@pytest.mark.parametrize(
    "words, command",
    [
        ("status UCM=d TO=r", 'status.py --ucm "d" --to="r"'),
        ("rebase UCM=d TO=r", 'rebase.py --ucm "d" --to="r"'),
        ("rebase-continue", "rebase.py --continue"),
        ("rebase-abort", "rebase.py --abort"),
        ("pr UCM=d TOPIC=t", 'pr.py --ucm "d" --topic="t"'),
        (
            "pr TOPIC=t TO=r ISSUE=u DRY=1",
            'pr.py --topic="t" --to="r" --issue="u" --dry-run',
        ),
    ],
)
def test_recipes(words: str, command: str):
    """What make hands to the tools."""
    make = ["make", "-n", "--no-print-directory", "-C", REPOSITORY, "PYTHON=python3"]
    env = {"PATH": os.environ["PATH"]}  # no MAKEFLAGS
    where = {"env": env, "capture_output": True, "text": True}
    done = subprocess.run([*make, *words.split()], **where, check=True)
    rows = [" ".join(row.split()) for row in done.stdout.splitlines()]
    assert rows == [f"python3 scripts/{command}"]


def test_wrong_option_is_a_usage_error(project: Project):
    done = project.run("apply", "--nonsense")
    assert done.returncode == 2 and "usage:" in done.stderr
