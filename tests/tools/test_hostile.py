"""Whatever the user's and the checkout's git settings say, the same bytes come out."""

import subprocess
from pathlib import Path

import pytest
from series_project import ENGINE, KEYS, STORE, Project, git, replace, snapshot, write

HOOKS = (
    "pre-applypatch applypatch-msg post-applypatch pre-commit prepare-commit-msg "
    "commit-msg post-commit post-checkout post-merge post-rewrite post-index-change "
    "reference-transaction pre-auto-gc"
).split()

# Settings that change what git am, commit, format-patch, log or a checkout do.
SETTINGS = {
    "am.threeWay": "true",
    "am.messageId": "true",
    "apply.ignoreWhitespace": "change",
    "apply.whitespace": "fix",
    "color.diff": "always",
    "color.ui": "always",
    "commit.cleanup": "strip",
    "commit.gpgSign": "true",
    "core.abbrev": "5",
    "core.autocrlf": "true",
    "core.commentChar": "W",
    "core.quotePath": "true",
    "core.safecrlf": "true",
    "core.whitespace": "tab-in-indent",
    "diff.algorithm": "patience",
    "diff.context": "1",
    "diff.dstPrefix": "neu/",
    "diff.external": "false",
    "diff.indentHeuristic": "false",
    "diff.interHunkContext": "9",
    "diff.mnemonicPrefix": "true",
    "diff.noprefix": "true",
    "diff.orderFile": "no-such-file",
    "diff.renames": "copies",
    "diff.srcPrefix": "alt/",
    "diff.suppressBlankEmpty": "true",
    "fetch.prune": "true",
    "format.attach": "border",
    "format.cc": "c@c",
    "format.coverLetter": "true",
    "format.encodeEmailHeaders": "true",
    "format.from": "Bob <b@b>",
    "format.headers": "X-Mine: yes",
    "format.notes": "true",
    "format.noprefix": "true",
    "format.numbered": "true",
    "format.pretty": "oneline",
    "format.signOff": "true",
    "format.signature": "mine",
    "format.subjectPrefix": "MINE",
    "format.thread": "deep",
    "format.to": "t@t",
    "format.useAutoBase": "whenAble",
    "gpg.program": "/bin/false",
    "grep.patternType": "perl",
    "i18n.commitEncoding": "iso-8859-1",
    "i18n.logOutputEncoding": "iso-8859-1",
    "log.showSignature": "true",
    "mailinfo.scissors": "true",
    "merge.ff": "false",
    "merge.verifySignatures": "true",
    "pull.rebase": "true",
    "rebase.autoStash": "true",
    "status.showUntrackedFiles": "no",
    "tag.gpgSign": "true",
    "trailer.separators": "=",
    "user.useConfigOnly": "true",
}


@pytest.fixture
def hooks(tmp_path: Path) -> Path:
    """Hooks that fail, every one of them."""
    folder = tmp_path / "hooks"
    for name in HOOKS:
        write(folder, name, f"#!/bin/sh\necho {name} ran >&2\nexit 1\n", 0o755)
    return folder


def make_hostile(file: Path, hooks: Path) -> None:
    for key, value in {**SETTINGS, "core.hooksPath": str(hooks)}.items():
        command = ["git", "config", "--file", str(file), key, value]
        subprocess.run(command, check=True)


def walk(project: Project, ucm: Path) -> str:
    """apply, status, edit, refresh, verify, unapply; return the tip after apply."""
    start = git(ucm, "rev-parse", "HEAD")
    wanted = project.series()
    project.ok("apply", "--ucm", ucm)
    tip = git(ucm, "rev-parse", "HEAD")
    status = project.ok("status", "--ucm", ucm)
    assert status.count("\n  applied ") == 2 and status.count("  same ") == 3, status
    assert "missing" not in status and "edited" not in status, status
    project.ok("refresh", "--ucm", ucm)
    assert project.series() == wanted
    assert git(ucm, "rev-parse", "HEAD") == tip
    project.ok("verify")
    project.ok("unapply", "--ucm", ucm)
    assert git(ucm, "rev-parse", "HEAD") == start
    assert not (ucm / KEYS).exists()
    return tip


@pytest.mark.parametrize("where", ["user", "checkout"])
def test_hostile_settings(project: Project, hooks: Path, where: str):
    expected = git(project.applied("plain"), "rev-parse", "HEAD")
    if where == "user":
        project.home.mkdir(exist_ok=True)
        make_hostile(project.home / ".gitconfig", hooks)
        write(project.home, ".config/git/attributes", "* text eol=crlf -diff\n")
        write(project.home, ".config/git/ignore", "*.py\n*.cc\n")
        ucm = project.root.parent / "ucm"
        command = ["git", "-c", "core.hooksPath=/dev/null", "clone", "-q"]
        env = {"PATH": "/usr/bin:/bin", "HOME": str(project.home)}
        subprocess.run([*command, f"file://{project.base}", ucm], check=True, env=env)
        assert b"\r\n" in (ucm / ENGINE).read_bytes()
    else:
        ucm = project.clone()
        make_hostile(ucm / ".git" / "config", hooks)
    assert walk(project, ucm) == expected


def test_crlf_working_files_stay_crlf(project: Project):
    """core.autocrlf=true: the commits have LF, the files on disk what the user wants."""
    expected = git(project.applied("plain"), "rev-parse", "HEAD")
    ucm = project.clone("ucm", "-c", "core.autocrlf=true")
    assert (ucm / STORE).read_bytes().count(b"\r\n") == 40
    project.ok("apply", "--ucm", ucm)
    assert git(ucm, "rev-parse", "HEAD") == expected
    assert git(ucm, "status", "--porcelain") == ""
    for path in (STORE, KEYS):
        data = (ucm / path).read_bytes()
        assert data.count(b"\n") == data.count(b"\r\n") > 0
    project.ok("unapply", "--ucm", ucm)
    assert (ucm / STORE).read_bytes().count(b"\r\n") == 40
    assert git(ucm, "status", "--porcelain") == ""


@pytest.mark.parametrize("attributes", ["* text eol=crlf", "*.sh -text -diff"])
def test_attributes_of_the_checkout(project: Project, attributes: str):
    expected = git(project.applied("plain"), "rev-parse", "HEAD")
    ucm = project.clone()
    write(ucm, ".git/info/attributes", attributes + "\n")
    assert walk(project, ucm) == expected


def test_output_that_knows_ascii_only(project: Project):
    """A terminal without UTF-8 and a path and a subject beyond ASCII."""
    poor = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    ucm = project.clone("größe")
    for tool in ("apply", "status", "refresh", "verify", "unapply"):
        options = [] if tool == "verify" else ["--ucm", ucm]
        project.ok(tool, *options, **poor)
    replace(ucm, ENGINE, "engine_line_3()", "other()")
    done = project.run("apply", "--ucm", ucm, **poor)
    assert done.returncode and "REFUSED" in done.stderr


def test_tools_write_nothing_into_the_settings(project: Project):
    ucm = project.clone()
    before = (ucm / ".git" / "config").read_bytes()
    walk(project, ucm)
    assert (ucm / ".git" / "config").read_bytes() == before
    assert not list(project.home.glob(".git*"))
    assert snapshot(ucm)["refs"].count("ucm-hicache") == 0
