"""make apply: what it makes, that it is all or nothing, and that it is the same everywhere."""

import os
import shutil
import subprocess

import pytest
from series_project import (
    CASE,
    ENGINE,
    KEYS,
    SCRIPT,
    STORE,
    Project,
    commit_plain,
    git,
    refused,
    replace,
    snapshot,
    write,
)


def test_apply_makes_one_commit_per_entry(project: Project):
    ucm = project.clone()
    start = git(ucm, "rev-parse", "HEAD")
    out = project.ok("apply", "--ucm", ucm)
    subjects = git(ucm, "log", "--reverse", "--format=%s|%an|%aI", f"{start}..HEAD")
    assert subjects.splitlines() == [
        "[Bugfix] Check the short count|Ada Öst|2026-02-03T04:05:06+08:00",
        "[Feat] Make keys for every pool – größer|Ada Öst|2026-02-03T04:05:06+08:00",
        "[Feat][Opt] Use the keys|Ada Öst|2026-02-03T04:05:06+08:00",
    ]
    assert git(ucm, "show", "--format=", "--name-only", "HEAD~2").split() == [
        ENGINE,
        CASE,
    ]
    assert git(ucm, "show", "--format=", "--name-only", "HEAD~1").split() == [
        KEYS,
        SCRIPT,
    ]
    assert os.access(ucm / SCRIPT, os.X_OK) and not os.access(ucm / KEYS, os.X_OK)
    assert "Drop-When: UCM has it" in git(ucm, "log", "-1", "--format=%B")
    assert git(ucm, "status", "--porcelain") == ""
    assert git(ucm, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert "3 patches, 3 new files" in out and out.endswith("next: make build\n")


def test_second_run_says_so_and_changes_nothing(project: Project):
    ucm = project.applied()
    before = snapshot(ucm)
    assert "already applied" in project.ok("apply", "--ucm", ucm)
    assert snapshot(ucm) == before


def test_already_applied_below_commits_of_the_user(project: Project):
    ucm = project.applied()
    write(ucm, "notes.txt", "mine\n")
    commit_plain(ucm, "my notes")
    before = snapshot(ucm)
    assert "already applied" in project.ok("apply", "--ucm", ucm)
    assert snapshot(ucm) == before


def test_without_ucm_the_pinned_base_is_used(project: Project):
    project.ok("apply")
    ucm = project.root / "build" / "ucm"
    assert (ucm / KEYS).is_file() and git(ucm, "remote") == ""
    assert "already applied" in project.ok("apply")
    assert "back to" in project.ok("unapply")


@pytest.mark.parametrize("number", [2, 3])
def test_failure_in_the_middle_changes_nothing(project: Project, number: int):
    """The files at the base are right, the patch is not."""
    path = project.patch(number)
    if number == 3:
        replace(
            project.patches, path.name, "-store_line_10 = 10", "-store_line_10 = 11"
        )
    else:
        path.write_text("not a patch\n")
    ucm = project.clone()
    write(ucm, "scratch.txt", "mine\n")
    before = snapshot(ucm)
    text = refused(project.run("apply", "--ucm", ucm))
    assert path.name in text
    assert snapshot(ucm) == before
    assert not (ucm / ".git" / "worktrees").exists()


@pytest.mark.parametrize("lost", ["patch", "overlay file"])
def test_a_file_missing_from_the_series_is_refused(project: Project, lost: str):
    (project.patch(2) if lost == "patch" else project.overlay / KEYS).unlink()
    ucm = project.clone()
    before = snapshot(ucm)
    refused(project.run("apply", "--ucm", ucm), "make verify")
    assert snapshot(ucm) == before


def test_a_locked_branch_is_left_as_it_was(project: Project):
    """The last step fails: files and index are put back."""
    ucm = project.clone()
    before = snapshot(ucm, times=False)
    (ucm / ".git" / "refs" / "heads" / "main.lock").touch()
    refused(project.run("apply", "--ucm", ucm), "main.lock")
    (ucm / ".git" / "refs" / "heads" / "main.lock").unlink()
    after = snapshot(ucm, times=False)
    before.pop("index"), after.pop("index")
    assert after == before
    project.ok("apply", "--ucm", ucm)


def test_same_series_gives_the_same_tip_on_two_machines(project: Project):
    one = project.applied("one")
    two = project.clone("two folder")
    write(project.home, ".gitconfig", "[user]\nname=Bob\nemail=b@b\n[am]\nthreeWay=1\n")
    elsewhere = {"TZ": "Asia/Tokyo", "LANG": "C", "EMAIL": "x@y.z"}
    command = f"umask 077; exec {shutil.which('python3')} scripts/apply.py --ucm "
    done = subprocess.run(
        ["sh", "-c", command + f"'{two}'"],
        cwd=project.root,
        env={"PATH": os.environ["PATH"], "HOME": str(project.home), **elsewhere},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert git(one, "rev-parse", "HEAD") == git(two, "rev-parse", "HEAD")


def test_git_variables_of_the_caller_do_not_count(project: Project):
    one = project.applied("one")
    two = project.clone("two")
    hostile = {
        "GIT_DIR": str(one / ".git"),
        "GIT_WORK_TREE": str(one),
        "GIT_INDEX_FILE": str(one / ".git" / "index"),
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z",
        "GIT_COMMITTER_NAME": "Bob",
        "GIT_CONFIG_PARAMETERS": "'format.signoff=true'",
    }
    before = snapshot(one)
    project.ok("apply", "--ucm", two, **hostile)
    assert snapshot(one) == before
    assert git(one, "rev-parse", "HEAD") == git(two, "rev-parse", "HEAD")


def test_applied_from_any_folder_and_by_relative_path(project: Project):
    ucm = project.clone()
    done = project.run("apply", "--ucm", "ucm", cwd=ucm.parent)
    assert done.returncode == 0, done.stderr
    done = project.run("unapply", "--ucm", ".", cwd=ucm)
    assert done.returncode == 0, done.stderr


def test_dirty_files_not_in_the_way_are_kept(project: Project):
    """Modified, staged, staged new, removed, untracked and ignored: all as before."""
    ucm = project.clone()
    replace(ucm, "setup.py", "setup", "edited")
    write(ucm, "run.sh", "#!/bin/sh\nstaged\n", 0o755)
    write(ucm, "staged.txt", "staged\n")
    git(ucm, "add", "run.sh", "staged.txt")
    write(ucm, "untracked.txt", "mine\n")
    write(ucm, ".git/info/exclude", "/out/\n")
    write(ucm, "out/object.o", "ignored\n")
    before = snapshot(ucm)
    project.ok("apply", "--ucm", ucm)
    after = snapshot(ucm)
    assert after["status"] == before["status"]
    for path in ("setup.py", "run.sh", "staged.txt", "untracked.txt", "out/object.o"):
        assert after["files"][str(ucm / path)] == before["files"][str(ucm / path)]
    project.ok("unapply", "--ucm", ucm)
    assert snapshot(ucm)["status"] == before["status"]
    assert snapshot(ucm)["head"] == before["head"]


def test_touched_files_with_new_times_are_not_dirty(project: Project):
    ucm = project.clone()
    for path in (ENGINE, STORE):
        os.utime(ucm / path, (1, 1))
    project.ok("apply", "--ucm", ucm)


def test_detached_head_and_later_branch(project: Project):
    ucm = project.clone()
    git(ucm, "checkout", "-q", "--detach")
    project.ok("apply", "--ucm", ucm)
    assert git(ucm, "rev-parse", "--abbrev-ref", "HEAD") == "HEAD"
    git(ucm, "checkout", "-q", "-b", "other", "main")
    assert "not applied" in project.ok("status", "--ucm", ucm)
    project.ok("apply", "--ucm", ucm)


def test_moved_base_that_leaves_the_touched_files_alone(project: Project):
    ucm = project.clone()
    write(ucm, "setup.py", "print('newer')\n")
    write(ucm, "ucm/other.py", "x = 1\n")
    moved = commit_plain(ucm, "upstream goes on")
    project.ok("apply", "--ucm", ucm)
    assert git(ucm, "rev-parse", "HEAD~3") == moved
    project.ok("unapply", "--ucm", ucm)
    assert git(ucm, "rev-parse", "HEAD") == moved


def test_shallow_clone(project: Project):
    origin = project.clone("origin")
    write(origin, "setup.py", "print('newer')\n")
    commit_plain(origin, "upstream goes on")
    ucm = project.root.parent / "shallow"
    git(project.root.parent, "clone", "-q", "--depth=1", f"file://{origin}", str(ucm))
    assert git(ucm, "rev-parse", "--is-shallow-repository") == "true"
    project.ok("apply", "--ucm", ucm)
    assert "applied" in project.ok("status", "--ucm", ucm)
    project.ok("refresh", "--ucm", ucm)
    project.ok("unapply", "--ucm", ucm)


def test_linked_worktrees_are_applied_one_by_one(project: Project):
    main = project.clone()
    linked = main.parent / "linked tree"
    git(main, "worktree", "add", "-q", "-b", "feature", str(linked))
    before = snapshot(main)["files"]
    project.ok("apply", "--ucm", linked)
    assert snapshot(main)["files"] == before
    assert "not applied" in project.ok("status", "--ucm", main)
    project.ok("apply", "--ucm", main)
    project.ok("unapply", "--ucm", linked)
    assert "already applied" in project.ok("apply", "--ucm", main)
    assert str(linked) in git(main, "worktree", "list")


def test_submodule_as_the_checkout(project: Project):
    outer = project.root.parent / "outer"
    git(project.root.parent, "init", "-q", str(outer))
    allow = ("-c", "protocol.file.allow=always")
    git(outer, *allow, "submodule", "--quiet", "add", f"file://{project.base}", "ucm")
    project.ok("apply", "--ucm", outer / "ucm")
    assert (outer / "ucm" / KEYS).is_file()
    project.ok("unapply", "--ucm", outer / "ucm")


def test_sparse_checkout(project: Project):
    ucm = project.clone()
    git(ucm, "sparse-checkout", "set", "ucm/integration")
    project.ok("apply", "--ucm", ucm)
    assert (ucm / KEYS).is_file() and not (ucm / CASE).exists()
    assert git(ucm, "status", "--porcelain") == ""
    project.ok("unapply", "--ucm", ucm)


def test_spaces_and_letters_beyond_ascii_in_every_path(project: Project):
    moved = project.root.parent / "projekt mit größe 缓存"
    project.root.rename(moved)
    project = Project(moved, project.home, project.spare)
    ucm = project.clone("mein ucm é 模型")
    for tool in ("apply", "status", "refresh", "verify", "unapply"):
        options = [] if tool == "verify" else ["--ucm", ucm]
        project.ok(tool, *options)
    write(ucm, ENGINE, "int other();\n")
    refused(project.run("apply", "--ucm", ucm), ENGINE, "mein ucm é 模型")


def test_project_nested_in_another_repository(project: Project):
    """git apply skips paths outside its folder when a repository is around it."""
    shutil.rmtree(project.root / ".git")
    git(project.root.parent, "init", "-q")
    ucm = project.clone()
    replace(ucm, ENGINE, "engine_line_39", "engine_line_xx")
    commit_plain(ucm, "upstream moves on")
    refused(project.run("apply", "--ucm", ucm), ENGINE)
