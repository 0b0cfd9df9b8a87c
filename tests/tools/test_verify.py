"""make verify names every finding, shows counts, and takes an empty series for a failure."""

import shutil

import pytest
from series_project import (
    CASE,
    ENGINE,
    KEYS,
    LICENCE,
    SCRIPT,
    STORE,
    Project,
    git,
    refused,
    replace,
    snapshot,
    write,
)


def findings(project: Project, *phrases: str, count: int | None = None) -> str:
    """verify must fail and name each phrase in a FAIL row."""
    done = project.run("verify")
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    rows = [row for row in done.stdout.splitlines() if row.startswith("FAIL ")]
    for phrase in phrases:
        assert any(phrase in row for row in rows), f"{phrase!r} in\n{done.stdout}"
    assert f"{len(rows)} findings" in done.stdout
    assert count is None or len(rows) == count, done.stdout
    return done.stdout


def edit_patch(project: Project, number: int, old: str, new: str) -> str:
    path = project.patch(number)
    replace(project.patches, path.name, old, new)
    return path.name


def test_a_good_series_passes_and_is_counted(project: Project):
    before = project.series()
    base = snapshot(project.base)
    out = project.ok("verify")
    assert "ok  3 patches, 3 overlay files, 0 findings" in out
    assert project.series() == before and snapshot(project.base) == base
    assert git(project.root, "status", "--porcelain") == ""


@pytest.mark.parametrize("text", ["", "# nothing\n", None])
def test_an_empty_series_is_a_failure(project: Project, text: str | None):
    series = project.patches / "series"
    series.unlink() if text is None else series.write_text(text)
    refused(project.run("verify"), "the series is empty", code=1)


def test_no_patches_folder_is_a_failure(project: Project):
    shutil.rmtree(project.patches)
    refused(project.run("verify"), "the series is empty")


def test_list_line_twice(project: Project):
    name = project.patch(3).name
    project.edit_series(name, f"{name}\n{name}")
    findings(project, f"{name}: 2 times in the series", count=1)


def test_list_orphan(project: Project):
    write(project.patches, "0004-more.patch", "x\n")
    write(project.patches, "notes.txt", "x\n")
    findings(
        project,
        "0004-more.patch: not in the series",
        "notes.txt: not in the series",
        count=2,
    )


def test_list_missing_patch(project: Project):
    name = project.patch(3).name
    project.patch(3).unlink()
    findings(project, f"{name}: in the series, not there", count=1)


def test_list_gap_in_the_numbers(project: Project):
    name = project.patch(3).name
    later = name.replace("0003", "0004")
    project.patch(3).rename(project.patches / later)
    project.edit_series(name, later)
    names = (later, name, "patches/series")
    findings(project, *(f"{n}: differs from a fresh export" for n in names), count=3)


@pytest.mark.parametrize(
    "old, new, phrase",
    [
        ("[Bugfix] Check", "Check", "subject 'Check the short count'"),
        ("[Bugfix] Check", "[Fix] Check", "subject '[Fix] Check"),
        ("short count\n", "short count.\n", "without a full stop"),
        ("the short count", "the short count " + "x" * 60, "under 72 characters"),
        ("Why: a user", "Because: a user", "'Why: '"),
        ("What: it is", "It is", "'What: '"),
        ("To test: run", "Test: run", "'To test: '"),
        ("Topic: posix-store\n", "", "trailer Topic is there 0 times"),
        ("Forwarded: no\n", "", "trailer Forwarded is there 0 times"),
        ("Proof: UCPosixShortTest\n", "", "a [Bugfix] without a trailer Proof"),
        ("Proof: UCP", "Proof: new-api UCP", "a [Bugfix] with 'Proof: new-api'"),
        ("Drop-When: UCM has it\n", "", "trailer Drop-When is there 0 times"),
        ("Forwarded: no\n", "Forwarded: no\nForwarded: no\n", "there 2 times"),
    ],
)
def test_header(project: Project, old: str, new: str, phrase: str):
    name = edit_patch(project, 1, old, new)
    findings(project, phrase, f"{name}: ", count=1)


@pytest.mark.parametrize("kind", ["mark", "crlf", "no newline", "latin-1"])
def test_patch_bytes(project: Project, kind: str):
    path = project.patch(1)
    data = path.read_bytes()
    broken = {
        "mark": b"\xef\xbb\xbf" + data,
        "crlf": data.replace(b"\n", b"\r\n"),
        "no newline": data.rstrip(b"\n"),
        "latin-1": data.replace(b"a user", b"gr\xf6\xdfe"),
    }[kind]
    path.write_bytes(broken)
    phrase = "not UTF-8" if kind == "latin-1" else "LF line ends, no byte order mark"
    findings(project, f"{path.name}: ", phrase, count=1)


def test_new_file_inside_a_patch(project: Project):
    edit_patch(
        project,
        1,
        "diff --git ",
        "diff --git a/new.py b/new.py\nnew file mode 100644\nindex "
        f"{'0' * 40}..{'1' * 40}\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x\n"
        "diff --git ",
    )
    findings(project, "adds a file; new files live in ucm_overlay/", count=1)


def test_entry_that_does_nothing(project: Project):
    project.edit_series(f"    {KEYS}\n    {SCRIPT}\n", "")
    project.edit_series(f"    {CASE}\n", f"    {CASE}\n    {KEYS}\n    {SCRIPT}\n")
    findings(project, "changes nothing and owns no overlay file", count=1)


def test_overlay_file_without_owner(project: Project):
    project.edit_series(f"    {KEYS}\n", "")
    write(project.overlay, "ucm/other.py", LICENCE)
    findings(project, f"{KEYS}: not in", "ucm/other.py: not in the series", count=2)


def test_overlay_file_with_two_owners(project: Project):
    project.edit_series(f"    {CASE}\n", f"    {CASE}\n    {KEYS}\n")
    findings(project, f"{KEYS}: 2 times in the series", count=1)


def test_overlay_file_that_is_owned_but_missing(project: Project):
    (project.overlay / KEYS).unlink()
    findings(project, f"{KEYS}: in the series, not there", count=1)


def test_overlay_path_that_upstream_has(project: Project):
    write(project.overlay, STORE, LICENCE)
    project.edit_series(f"    {CASE}\n", f"    {CASE}\n    {STORE}\n")
    findings(project, f"{STORE}: upstream has this file", count=1)


def test_overlay_licence_and_line_ends(project: Project):
    write(project.overlay, KEYS, "VERSION = 2\n")
    write(project.overlay, CASE, LICENCE + "int a();\r\n")
    write(project.overlay, SCRIPT, "#!/bin/sh")
    findings(
        project,
        f"{KEYS}: no MIT licence header",
        f"{CASE}: expected LF line ends",
        f"{SCRIPT}: expected LF line ends and a final newline",
        count=3,
    )


def test_caches_in_the_overlay_are_no_finding(project: Project):
    write(project.overlay, "ucm/__pycache__/x.cpython-311.pyc", "x")
    project.ok("verify")


def test_all_findings_at_once(project: Project):
    """It never stops at the first."""
    edit_patch(project, 1, "Why: a user", "Because: a user")
    edit_patch(project, 3, "Topic: hicache-v2\n", "")
    write(project.overlay, KEYS, "VERSION = 2\n")
    write(project.patches, "0009-orphan.patch", "x\n")
    findings(
        project, "'Why: '", "trailer Topic", "MIT licence", "not in the series", count=4
    )


def test_hunk_with_an_offset(project: Project):
    """git am takes it; the export does not equal it."""
    name = edit_patch(project, 1, "@@ -18,7 +18,7 @@", "@@ -15,7 +15,7 @@")
    findings(project, f"{name}: differs from a fresh export", count=1)


def test_hunk_with_fuzz(project: Project):
    name = edit_patch(project, 1, " int engine_line_17();", " int engine_line_xx();")
    findings(project, "does not apply to the base", name, count=1)


def test_overlay_path_below_an_upstream_file(project: Project):
    write(project.overlay, "setup.py/inside.py", LICENCE)
    project.edit_series(f"    {CASE}\n", f"    setup.py/inside.py\n    {CASE}\n")
    findings(project, "does not apply to the base", count=1)


def test_hand_edited_patch(project: Project):
    """The index line of the patch no longer fits its content."""
    name = edit_patch(project, 1, "engine_line_20(int n)", "engine_line_20(long n)")
    findings(project, f"{name}: differs from a fresh export", count=1)


def test_hand_edited_message(project: Project):
    """A rule below the header cuts the message when git am reads it."""
    edit_patch(project, 1, "What: it is changed.", "What: it is changed.\n\n---\n")
    findings(project, project.patch(1).name)


def test_name_that_is_not_the_subjects(project: Project):
    name = project.patch(3).name
    project.patch(3).rename(project.patches / "0003-other.patch")
    project.edit_series(name, "0003-other.patch")
    names = ("0003-other.patch", name, "patches/series")
    findings(project, *(f"{n}: differs from a fresh export" for n in names), count=3)


def test_hand_edited_series(project: Project):
    write(project.patches, "series", (project.patches / "series").read_text() + "# x\n")
    findings(project, "patches/series: differs from a fresh export", count=1)


def test_patch_that_changes_an_overlay_file(project: Project):
    """A later entry that edits a file of an earlier one would fold away on export."""
    ucm = project.applied()
    replace(ucm, KEYS, "VERSION = 2", "VERSION = 3")
    replace(ucm, STORE, "store_line_30", "store_line_xx")
    git(ucm, "commit", "-q", "-a", "-F", "-", text=patch_message())
    flags = ("--stdout", "-k", "--zero-commit", "--full-index", "--no-signature")
    text = git(ucm, "format-patch", *flags, "--no-stat", "-1")
    write(project.patches, "0004-late.patch", text + "\n")
    series = (project.patches / "series").read_text()
    write(project.patches, "series", series + "0004-late.patch\n")
    findings(project, "0004-late.patch: differs from a fresh export")


def patch_message() -> str:
    return (
        "[Feat] Late\n\nWhy: x.\n\nWhat: x.\n\nTo test: x.\n\n"
        "Topic: hicache-v2\nForwarded: no\nDrop-When: x\n"
    )


def test_wrong_base_is_refused(project: Project):
    write(project.base, ENGINE, "int other();\n")
    git(project.base, "commit", "-q", "-a", "-m", "someone committed here")
    refused(project.run("verify"), "not the pinned one")
