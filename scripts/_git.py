"""Every git call of the series tools, isolated from the user's configuration."""

import os
import subprocess
from pathlib import Path

IDENTITY = ("UCM HiCache v2 contributors", "noreply@ucm-hicache-v2.invalid")

# A user's diff.noprefix, format.signOff, autocrlf or commit signing would change the
# bytes we write, so neither the system's, the user's nor the checkout's settings count.
_SETTINGS = {
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.safecrlf": "false",
    "core.quotePath": "false",
    "core.hooksPath": os.devnull,
    "core.whitespace": "-trailing-space,-space-before-tab,-blank-at-eof",
    "core.fsmonitor": "false",
    "core.fileMode": "true",
    "apply.whitespace": "nowarn",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "am.threeWay": "false",
    "am.keepcr": "true",
    "diff.noprefix": "false",
    "diff.mnemonicPrefix": "false",
    "diff.algorithm": "myers",
    "diff.context": "3",
    "diff.interHunkContext": "0",
    "diff.renames": "false",
    "diff.indentHeuristic": "true",
    "diff.suppressBlankEmpty": "false",
    "diff.orderFile": "",
    "format.signOff": "false",
    "format.attach": "false",
    "format.encodeEmailHeaders": "false",
    "i18n.commitEncoding": "utf-8",
    "i18n.logOutputEncoding": "utf-8",
    "merge.renames": "true",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
    "init.defaultBranch": "main",
}


class GitError(Exception):
    """A git command failed. `text` is what git printed."""

    def __init__(self, args: tuple[str, ...], code: int, text: str):
        super().__init__(f"git {' '.join(args)} exited with {code}: {text}")
        self.code, self.text = code, text


def environment(when: str = "2026-01-01T00:00:00+0000") -> dict[str, str]:
    """Environment for git: fixed identity, dates and settings. `when` dates commits."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    name, mail = IDENTITY
    env.update(
        LC_ALL="C.UTF-8",
        TZ="UTC",
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_ATTR_NOSYSTEM="1",
        GIT_TERMINAL_PROMPT="0",
        GIT_EDITOR="true",
        GIT_PAGER="cat",
        GIT_AUTHOR_NAME=name,
        GIT_AUTHOR_EMAIL=mail,
        GIT_AUTHOR_DATE=when,
        GIT_COMMITTER_NAME=name,
        GIT_COMMITTER_EMAIL=mail,
        GIT_COMMITTER_DATE=when,
        GIT_CONFIG_COUNT=str(len(_SETTINGS)),
    )
    for i, (key, value) in enumerate(_SETTINGS.items()):
        env[f"GIT_CONFIG_KEY_{i}"], env[f"GIT_CONFIG_VALUE_{i}"] = key, value
    return env


def git_bytes(
    repo: Path, *args: str, when: str | None = None, stdin: bytes | None = None
) -> bytes:
    """Run git in `repo`; return its standard output. Raises GitError."""
    env = environment(when) if when else environment()
    done = subprocess.run(
        ["git", *args], cwd=repo, env=env, input=stdin, capture_output=True
    )
    if done.returncode:
        text = (done.stderr + done.stdout).decode("utf-8", "replace").strip()
        raise GitError(args, done.returncode, text)
    return done.stdout


def git(repo: Path, *args: str, **kwargs) -> str:
    """As `git_bytes`, as text without the final newline."""
    return git_bytes(repo, *args, **kwargs).decode("utf-8", "replace").rstrip("\n")


def git_ok(repo: Path, *args: str) -> bool:
    """True when the git command succeeds."""
    try:
        git_bytes(repo, *args)
    except GitError:
        return False
    return True


def lines(repo: Path, *args: str) -> list[str]:
    """Standard output of a git command that was given `-z`, as a list."""
    return [item for item in git(repo, *args).split("\0") if item]
