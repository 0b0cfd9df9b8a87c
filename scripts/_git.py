"""Every git call of the series tools, isolated from the user's configuration."""

import functools
import os
import subprocess
from pathlib import Path

EPOCH = "2026-01-01T00:00:00+0000"
IDENTITY = ("UCM HiCache v2 contributors", "noreply@ucm-hicache-v2.invalid")

# A user's diff.noprefix, format.signOff, autocrlf or commit signing would change the
# bytes we write, so neither the system's, the user's nor the checkout's settings count.
_SETTINGS = dict(
    setting.split("=", 1)
    for setting in f"""
    core.autocrlf=false core.eol=lf core.safecrlf=false core.quotePath=false
    core.hooksPath={os.devnull} core.fsmonitor=false core.fileMode=true
    core.attributesFile={os.devnull} core.sparseCheckout=false
    apply.whitespace=nowarn apply.ignoreWhitespace=no mailinfo.scissors=false
    commit.gpgSign=false commit.cleanup=whitespace tag.gpgSign=false
    diff.noprefix=false diff.mnemonicPrefix=false diff.algorithm=myers diff.context=3
    diff.interHunkContext=0 diff.renames=false diff.indentHeuristic=true
    diff.suppressBlankEmpty=false diff.orderFile={os.devnull} merge.renames=true
    format.signOff=false format.encodeEmailHeaders=false format.forceInBodyFrom=false
    i18n.commitEncoding=utf-8 i18n.logOutputEncoding=utf-8 log.showSignature=false
    rerere.enabled=false rerere.autoUpdate=false
    grep.patternType=default gc.auto=0 maintenance.auto=false
    advice.detachedHead=false init.defaultBranch=main init.templateDir=
    """.split()
)


class GitError(Exception):
    """A git command failed. `text` is what git printed."""

    def __init__(self, args: tuple[str, ...], code: int, text: str):
        super().__init__(f"git {' '.join(args)} exited with {code}: {text}")
        self.code, self.text = code, text


@functools.cache
def _safe_directories() -> tuple[str, ...]:
    """The user's own word on checkouts that belong to someone else; git heeds no other."""
    asked = ["git", "config", "--get-all", "safe.directory"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    told = subprocess.run(asked, cwd="/", env=env, capture_output=True).stdout
    return tuple(os.fsdecode(told).splitlines())


def environment(when: str = EPOCH, as_user: bool = False) -> dict[str, str]:
    """Environment for git: fixed identity, date and settings.

    `as_user` keeps the checkout's and the user's settings (line endings, say) for
    commands that write a working tree; only hooks and signatures stay off.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    name, mail = IDENTITY
    for role in ("AUTHOR", "COMMITTER"):
        env[f"GIT_{role}_NAME"], env[f"GIT_{role}_EMAIL"] = name, mail
        env[f"GIT_{role}_DATE"] = when
    env.update(LC_ALL="C.UTF-8", TZ="UTC", GIT_EDITOR="true", GIT_PAGER="cat")
    env.update(GIT_OPTIONAL_LOCKS="0", GIT_LITERAL_PATHSPECS="1")
    settings = [("core.hooksPath", os.devnull)] if as_user else [*_SETTINGS.items()]
    if not as_user:
        env.update(
            GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull, GIT_ATTR_NOSYSTEM="1"
        )
        settings += [("safe.directory", folder) for folder in _safe_directories()]
    env["GIT_CONFIG_COUNT"] = str(len(settings))
    for i, (key, value) in enumerate(settings):
        env[f"GIT_CONFIG_KEY_{i}"], env[f"GIT_CONFIG_VALUE_{i}"] = key, value
    return env


def git_bytes(
    repo: Path,
    *args: str,
    stdin: bytes | None = None,
    as_user: bool = False,
    **extra: str,
) -> bytes:
    """Run git in `repo`; return its standard output. Raises GitError.

    `extra` are environment variables without their GIT_ prefix, `when` the date of a commit.
    """
    env = environment(extra.pop("when", EPOCH), as_user)
    env.update({f"GIT_{key}": value for key, value in extra.items()})
    done = subprocess.run(
        ["git", *args], cwd=repo, env=env, input=stdin, capture_output=True
    )
    if done.returncode:
        text = (done.stderr + done.stdout).decode("utf-8", "replace").strip()
        raise GitError(args, done.returncode, text)
    return done.stdout


def git(repo: Path, *args: str, **kwargs) -> str:
    """As `git_bytes`, as text without the final newline."""
    return os.fsdecode(git_bytes(repo, *args, **kwargs)).rstrip("\n")


def git_ok(repo: Path, *args: str, **kwargs) -> bool:
    """True when the git command succeeds."""
    try:
        git_bytes(repo, *args, **kwargs)
    except GitError:
        return False
    return True


def lines(repo: Path, *args: str) -> list[str]:
    """Standard output of a git command that was given `-z`, as a list."""
    return [item for item in git(repo, *args).split("\0") if item]
