"""make refresh: the branch becomes patches, overlay and series, byte for byte."""

import os
from pathlib import Path

import pytest
from series_project import (
    CASE,
    ENGINE,
    KEYS,
    LICENCE,
    SCRIPT,
    STORE,
    Project,
    commit,
    commit_plain,
    git,
    message,
    refused,
    replace,
    snapshot,
    write,
)

PATCH = f"""\
From {'0' * 40} Mon Sep 17 00:00:00 2001
From: Ada Öst <ada@example.invalid>
Date: Tue, 3 Feb 2026 04:05:06 +0800
Subject: [Bugfix] Check the short count

{message('').strip().replace('hicache-v2', 'posix-store')}

diff --git a/{ENGINE} b/{ENGINE}
index OLD..NEW 100644
--- a/{ENGINE}
+++ b/{ENGINE}
@@ -18,7 +18,7 @@ int engine_line_16();
 int engine_line_17();
 int engine_line_18();
 int engine_line_19();
-int engine_line_20();
+int engine_line_20(int n);
 int engine_line_21();
 int engine_line_22();
 int engine_line_23();
"""

SERIES = f"""\
# Written by `make refresh`; docs/series.md tells the grammar.

# posix-store
0001-check-the-short-count.patch
    {CASE}

# hicache-v2
0002-make-keys-for-every-pool-gr-er.patch
    {KEYS}
    {SCRIPT}
0003-use-the-keys.patch
"""


def refresh(project: Project, ucm: Path) -> str:
    """refresh, and what must hold after every refresh."""
    tree = git(ucm, "rev-parse", "HEAD^{tree}")
    out = project.ok("refresh", "--ucm", ucm)
    assert git(ucm, "rev-parse", "HEAD^{tree}") == tree
    assert git(ucm, "status", "--porcelain", "--untracked-files=no") == ""
    marks = git(ucm, "for-each-ref", "--format=%(objectname)", "refs/worktree")
    assert git(ucm, "rev-parse", "HEAD") in marks.split()
    project.ok("verify")
    assert not list(project.root.glob(".refresh-*"))
    return out


def test_the_bytes_of_an_export(project: Project):
    ucm = project.applied()
    ids = [git(ucm, "rev-parse", f"{c}:{ENGINE}") for c in ("HEAD~3", "HEAD")]
    expected = PATCH.replace("OLD", ids[0]).replace("NEW", ids[1])
    assert project.patch(1).read_bytes().decode() == expected
    assert (project.patches / "series").read_bytes().decode() == SERIES


def test_round_trip(project: Project):
    before = project.series()
    ucm = project.applied()
    unchanged = snapshot(ucm)
    for _ in range(2):
        project.ok("refresh", "--ucm", ucm)
        assert project.series() == before
    after = snapshot(ucm)
    for what in ("files", "status", "head", "refs", "worktrees", "config"):
        assert after[what] == unchanged[what], what
    assert git(project.root, "status", "--porcelain") == ""


def test_overlay_edit_is_folded_into_its_owner(project: Project):
    ucm = project.applied()
    replace(ucm, KEYS, "VERSION = 2", "VERSION = 3")
    replace(ucm, CASE, "Count", "Other")
    commit_plain(ucm, "edit two owners")
    patches = {p.name: p.read_bytes() for p in project.patches.iterdir()}
    out = refresh(project, ucm)
    assert "folded" in out and "edit two owners" in out
    assert {p.name: p.read_bytes() for p in project.patches.iterdir()} == patches
    assert "VERSION = 3" in (project.overlay / KEYS).read_text()
    assert "VERSION = 3" in git(ucm, "show", f"HEAD~1:{KEYS}")
    assert "Other" in git(ucm, "show", f"HEAD~2:{CASE}")
    assert "edit two owners" not in git(ucm, "log", "--format=%s")


def test_commit_of_overlay_edit_and_patch_is_split(project: Project):
    ucm = project.applied()
    replace(ucm, KEYS, "VERSION = 2", "VERSION = 3")
    replace(ucm, STORE, "store_line_30 = 30", "store_line_30 = 'x'")
    write(ucm, "ucm/more.py", LICENCE)
    commit(ucm, "[Feat] Use more keys")
    refresh(project, ucm)
    assert "wrote" not in project.patch(4).name
    assert "VERSION" not in project.patch(4).read_text()
    assert (
        (project.patches / "series")
        .read_text()
        .endswith("0004-use-more-keys.patch\n    ucm/more.py\n")
    )
    assert "VERSION = 3" in git(ucm, "show", f"HEAD~2:{KEYS}")


def test_inserted_commit_renumbers(project: Project):
    ucm = project.applied()
    tip = git(ucm, "rev-parse", "HEAD")
    git(ucm, "reset", "-q", "--hard", "HEAD~2")
    replace(ucm, "setup.py", "setup", "between")
    commit(ucm, "[Misc] Stand between")
    git(ucm, "cherry-pick", f"{tip}~2..{tip}")
    refresh(project, ucm)
    names = [path.name[:12] for path in sorted(project.patches.glob("*.patch"))]
    assert names == ["0001-check-t", "0002-stand-b", "0003-make-ke", "0004-use-the"]


def test_autosquashed_fixup(project: Project):
    """The recipe of docs/series.md: fixup, rebase, refresh, without --base."""
    ucm = project.applied()
    base = git(ucm, "rev-parse", "HEAD~3")
    replace(ucm, ENGINE, "engine_line_20(int n)", "engine_line_20(long n)")
    git(ucm, "commit", "-q", "-a", "--fixup=HEAD~2")
    git(ucm, "rebase", "-q", "-i", "--autosquash", base, GIT_SEQUENCE_EDITOR="true")
    refresh(project, ucm)
    assert "+int engine_line_20(long n);" in project.patch(1).read_text()


def test_removed_entry_takes_its_files_along(project: Project):
    ucm = project.applied()
    git(ucm, "rebase", "-q", "--onto", "HEAD~2", "HEAD~1")
    refresh(project, ucm)
    assert not (project.overlay / KEYS).exists()
    assert not (project.overlay / "ucm" / "tools").exists()
    assert (project.overlay / CASE).is_file()
    assert [p.name[:4] for p in sorted(project.patches.glob("*.patch"))] == [
        "0001",
        "0002",
    ]


def test_removed_overlay_file(project: Project):
    ucm = project.applied()
    git(ucm, "rm", "-q", SCRIPT)
    git(ucm, "commit", "-q", "-m", "drop the script")
    refresh(project, ucm)
    assert not (project.overlay / SCRIPT).exists() and (project.overlay / KEYS).exists()
    assert SCRIPT not in (project.patches / "series").read_text()


def test_moved_overlay_file_goes_to_the_commit_that_moved_it(project: Project):
    ucm = project.applied()
    git(ucm, "mv", KEYS, "ucm/integration/sglang/keys.py")
    commit(ucm, "[Misc] Move the keys")
    refresh(project, ucm)
    text = (project.patches / "series").read_text()
    assert text.endswith(
        "0004-move-the-keys.patch\n    ucm/integration/sglang/keys.py\n"
    )
    assert not (project.overlay / KEYS).exists()


def test_executable_bits(project: Project):
    ucm = project.applied()
    assert os.access(project.overlay / SCRIPT, os.X_OK)
    (ucm / KEYS).chmod(0o755)
    (ucm / SCRIPT).chmod(0o644)
    commit_plain(ucm, "swap the bits")
    refresh(project, ucm)
    assert os.access(project.overlay / KEYS, os.X_OK)
    assert not os.access(project.overlay / SCRIPT, os.X_OK)


def test_bit_and_removal_of_upstream_files(project: Project):
    ucm = project.applied()
    (ucm / STORE).chmod(0o755)
    git(ucm, "rm", "-q", "setup.py")
    commit(ucm, "[Misc] Drop and switch")
    refresh(project, ucm)
    assert "old mode 100644" in project.patch(4).read_text()


def test_upstream_file_that_leaves_and_comes_back_stays_a_patch(project: Project):
    ucm = project.applied()
    git(ucm, "rm", "-q", "setup.py")
    commit(ucm, "[Misc] Drop it")
    write(ucm, "setup.py", "print('again')\n")
    commit(ucm, "[Misc] Take it back")
    project.ok("refresh", "--ucm", ucm)
    assert not (project.overlay / "setup.py").exists()
    done = project.run("verify")
    assert done.returncode == 1 and "adds a file" in done.stdout


def test_odd_content_and_names(project: Project):
    """Blanks, form feeds, no final newline upstream, CRLF upstream, bytes, odd paths."""
    origin = project.clone("origin")
    (origin / "crlf.txt").write_bytes(b"a\r\nb\r\n")
    (origin / "tail.txt").write_bytes(b"a\nb")
    (origin / "blob.bin").write_bytes(bytes(range(256)))
    moved = commit_plain(origin, "odd files upstream")
    (origin / "crlf.txt").write_bytes(b"a\r\nc\r\n")
    (origin / "tail.txt").write_bytes(b"a\nb\n\t \x0c\n")
    (origin / "blob.bin").write_bytes(bytes(reversed(range(256))))
    write(origin, "ucm/größe [1] *.txt", "odd\n")
    write(origin, "ucm/ends with tab", "a\t\n\n\n")
    commit(origin, "[Misc] Change odd files " + "– ö " * 9)
    tree = git(origin, "rev-parse", "HEAD^{tree}")
    project.ok("refresh", "--ucm", origin, "--base", moved)
    assert git(origin, "rev-parse", "HEAD^{tree}") == tree
    assert "already applied" in project.ok("apply", "--ucm", origin)
    before = project.series()
    project.ok("refresh", "--ucm", origin)
    assert project.series() == before


def test_author_and_date_survive(project: Project):
    ucm = project.applied()
    replace(ucm, "setup.py", "setup", "dated")
    mine = {
        "GIT_AUTHOR_NAME": "Zoë 李",
        "GIT_AUTHOR_EMAIL": "z@example.invalid",
        "GIT_AUTHOR_DATE": "2024-02-29T23:59:59-0930",
    }
    commit(ucm, "[Misc] Date it", **mine)
    refresh(project, ucm)
    told = git(ucm, "log", "-1", "--format=%an <%ae> %aI %cI")
    assert told == (
        "Zoë 李 <z@example.invalid> 2024-02-29T23:59:59-09:30 2024-02-29T23:59:59-09:30"
    )


def refuse(project: Project, ucm: Path, *phrases: str, options: tuple = ()) -> None:
    """refresh must refuse and leave checkout and files alone."""
    before, files = snapshot(ucm), project.series()
    refused(project.run("refresh", "--ucm", ucm, *options), *phrases)
    assert (snapshot(ucm), project.series()) == (before, files)
    assert not list(project.root.glob(".refresh-*"))


@pytest.mark.parametrize("kind", ["fixup", "squash"])
def test_leftover_fixup_is_refused(project: Project, kind: str):
    ucm = project.applied()
    replace(ucm, ENGINE, "engine_line_5()", "engine_line_5(void)")
    git(ucm, "commit", "-q", "-a", f"--{kind}=HEAD~2", "-m", "x")
    refuse(project, ucm, f"{kind}! [Bugfix] Check", "autosquash")


def test_merge_is_refused(project: Project):
    ucm = project.applied()
    git(ucm, "checkout", "-q", "-b", "side", "HEAD~1")
    write(ucm, "side.txt", "x\n")
    commit(ucm, "[Misc] Aside")
    git(ucm, "checkout", "-q", "main")
    git(ucm, "merge", "-q", "-m", "join them", "side")
    refuse(project, ucm, "join them", "no merge commits")


@pytest.mark.parametrize("staged", [False, True])
def test_dirty_tree_is_refused(project: Project, staged: bool):
    ucm = project.applied()
    replace(ucm, "setup.py", "setup", "dirty")
    if staged:
        git(ucm, "add", "setup.py")
    refuse(project, ucm, "setup.py", "everything committed")


def test_branch_without_a_series_is_refused(project: Project):
    refuse(project, project.clone(), "not applied", "make apply")


def test_strange_base_is_refused(project: Project):
    ucm = project.applied()
    git(ucm, "branch", "side", "HEAD~3")
    git(ucm, "checkout", "-q", "side")
    write(ucm, "x.txt", "x\n")
    commit_plain(ucm, "elsewhere")
    git(ucm, "checkout", "-q", "main")
    refuse(project, ucm, "side", options=("--base", "side"))
    refuse(project, ucm, "no-such", options=("--base", "no-such"))
    refuse(project, ucm, "at least one commit", options=("--base", "HEAD"))


def test_commits_of_others_are_refused(project: Project):
    """A pull of upstream below or above the series must not become patches."""
    ucm = project.applied()
    replace(ucm, "setup.py", "setup", "mine")
    commit_plain(ucm, "My own experiment")
    refuse(project, ucm, "my-own-experiment", "Topic")


def test_branch_of_upstream_is_refused(project: Project):
    ucm = project.applied()
    git(ucm, "checkout", "-q", "-b", "develop", "HEAD~3")
    replace(ucm, "setup.py", "setup", "upstream")
    commit_plain(ucm, "Upstream goes on")
    refuse(project, ucm, "not applied")


def test_message_that_git_am_would_cut_is_refused(project: Project):
    ucm = project.applied()
    text = message("[Misc] Show a diff").replace("it is changed.", "x:\ndiff -u a b\n")
    replace(ucm, "setup.py", "setup", "cut")
    git(ucm, "commit", "-q", "-a", "-F", "-", text=text)
    refuse(project, ucm, "0004-show-a-diff.patch", "reword")


def test_link_in_the_overlay_is_refused(project: Project):
    ucm = project.applied()
    (ucm / "ucm" / "link.py").symlink_to("store")
    commit(ucm, "[Feat] Link")
    refuse(project, ucm, "ucm/link.py", "plain file")


def test_locked_branch_leaves_the_series_alone(project: Project):
    ucm = project.applied()
    replace(ucm, KEYS, "VERSION = 2", "VERSION = 3")
    commit_plain(ucm, "edit")
    files = project.series()
    lock = ucm / ".git" / "refs" / "heads" / "main.lock"
    lock.touch()
    refused(project.run("refresh", "--ucm", ucm), "main.lock")
    assert project.series() == files
    lock.unlink()
    refresh(project, ucm)


def test_if_needed_keeps_edits_and_renews_an_older_series(project: Project):
    """What make build does first."""
    ucm = project.clone()
    project.ok("apply", "--ucm", ucm, "--if-needed")
    first = git(ucm, "rev-parse", "HEAD")
    project.ok("apply", "--ucm", ucm, "--if-needed")
    assert git(ucm, "rev-parse", "HEAD") == first
    write(project.overlay, KEYS, LICENCE + "VERSION = 4\n")
    project.ok("apply", "--ucm", ucm, "--if-needed")
    assert "VERSION = 4" in (ucm / KEYS).read_text()
    assert git(ucm, "rev-list", "--count", "HEAD") == "4"
    replace(ucm, KEYS, "VERSION = 4", "VERSION = 5")
    mine = commit_plain(ucm, "edit")
    assert "being edited" in project.ok("apply", "--ucm", ucm, "--if-needed")
    assert git(ucm, "rev-parse", "HEAD") == mine


def test_if_needed_with_a_broken_series_leaves_the_older_one(project: Project):
    ucm = project.applied()
    replace(project.patches, project.patch(3).name, "-store_line_10 = 10", "-other")
    before = snapshot(ucm)
    refused(project.run("apply", "--ucm", ucm, "--if-needed"))
    assert snapshot(ucm) == before
