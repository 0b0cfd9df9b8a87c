"""A small project of its own per test: the real scripts, a six-file UCM, a three-entry series."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SHA256 = "ab" * 32
LICENCE = "# MIT License\n#\n# Copyright (c) 2026 the UCM HiCache v2 contributors\n"
ENGINE = "ucm/store/posix/cc/io_engine.h"
STORE = "ucm/integration/sglang/unifiedcache_store.py"
KEYS = "ucm/integration/sglang/hicache_keys.py"
CASE = "ucm/store/test/case/posix/posix_short_test.cc"
SCRIPT = "ucm/tools/check.sh"
AUTHOR = ("-c", "user.name=Ada Öst", "-c", "user.email=ada@example.invalid")

BASE_FILES = {
    "ucm/__init__.py": "",
    "ucm/store/ucmstore_v1.py": "class UcmKVStoreBaseV1: ...\n",
    ENGINE: "".join(f"int engine_line_{n}();\n" for n in range(40)),
    STORE: "".join(f"store_line_{n} = {n}\n" for n in range(40)),
    "README.md": "# UCM\n",
    "setup.py": "print('setup')\n",
}


def environment(home: Path, **extra: str) -> dict[str, str]:
    """What a user's shell has: a home, no git variables, no python variables."""
    dropped = ("GIT_", "PYTHON", "XDG_", "LC_", "V")
    env = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    home.mkdir(parents=True, exist_ok=True)
    return {**env, "HOME": str(home), "LANG": "C.UTF-8", **extra}


def git(repo: Path, *args: str, text: str | None = None, **env: str) -> str:
    """git as the test author runs it; fails the test when git fails."""
    done = subprocess.run(
        ["git", *AUTHOR, "-c", "advice.detachedHead=false", *args],
        cwd=repo,
        env=environment(repo.parent / "home-of-test", GIT_TEMPLATE_DIR="", **env),
        input=text,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    assert done.returncode == 0, f"git {args}: {done.stderr}{done.stdout}"
    return done.stdout.rstrip("\n")


def write(repo: Path, path: str, text: str, mode: int | None = None) -> None:
    target = repo / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text.encode("utf-8"))
    if mode is not None:
        target.chmod(mode)


def replace(repo: Path, path: str, old: str, new: str) -> None:
    text = (repo / path).read_bytes().decode("utf-8")
    assert old in text, f"{old!r} is not in {path}"
    write(repo, path, text.replace(old, new, 1))


def message(
    subject: str, topic: str = "hicache-v2", proof: str | None = "UCPosixShortTest"
) -> str:
    proof = f"Proof: {proof}\n" if proof else ""
    return (
        f"{subject}\n\nWhy: a user sees it go wrong.\n\nWhat: it is changed.\n\n"
        f"To test: run it; it printed 1 before.\n\n"
        f"Topic: {topic}\n{proof}Forwarded: no\nDrop-When: UCM has it\n"
    )


def commit(repo: Path, subject: str, topic: str = "hicache-v2", **env: str) -> str:
    """Commit everything with a full message; return the id."""
    git(repo, "add", "-A", "-f")
    git(repo, "commit", "-q", "-F", "-", text=message(subject, topic), **env)
    return git(repo, "rev-parse", "HEAD")


def commit_plain(repo: Path, subject: str) -> str:
    """A commit as upstream or a user makes one, without our trailers."""
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", subject)
    return git(repo, "rev-parse", "HEAD")


def snapshot(repo: Path, times: bool = True) -> dict[str, object]:
    """Everything of a checkout that a refused command must leave alone."""
    files = {}
    for path in sorted(repo.rglob("*")):
        if ".git" in path.relative_to(repo).parts or path.is_dir():
            continue
        stat = path.lstat()
        data = path.read_bytes() if path.is_file() else os.readlink(path)
        files[str(path)] = (data, stat.st_mode, stat.st_mtime_ns if times else 0)
    index = Path(git(repo, "rev-parse", "--absolute-git-dir")) / "index"
    ask = ("--no-optional-locks", "status", "--porcelain", "-uall", "--ignored")
    return {
        "files": files,
        "index": hashlib.sha256(index.read_bytes()).hexdigest(),
        "status": git(repo, *ask),
        "head": git(repo, "rev-parse", "HEAD"),
        "branch": git(repo, "rev-parse", "--abbrev-ref", "HEAD"),
        "refs": git(repo, "for-each-ref"),
        "worktrees": git(repo, "worktree", "list", "--porcelain"),
        "config": git(repo, "config", "--local", "--list"),
        "reflog": git(repo, "reflog"),
    }


def copy_checkout(source: Path, target: Path) -> Path:
    """Much faster than a clone; git then learns the new times of the files."""
    shutil.copytree(source, target, symlinks=True)
    git(target, "update-index", "-q", "--refresh")
    return target


@dataclass
class Project:
    """A copy of this project's scripts with its own UPSTREAM, base and series."""

    root: Path
    home: Path
    spare: Path | None = None  # the template's checkouts, to copy

    @property
    def base(self) -> Path:
        return self.root / "build" / "base" / SHA256[:12]

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def overlay(self) -> Path:
        return self.root / "ucm_overlay"

    def run(self, tool: str, *args, cwd: Path | None = None, **env: str):
        """Run scripts/<tool>.py as a user does."""
        return subprocess.run(
            [
                sys.executable,
                str(self.root / "scripts" / f"{tool}.py"),
                *map(str, args),
            ],
            cwd=cwd or self.root,
            env=environment(self.home, **env),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )

    def ok(self, tool: str, *args, **env: str) -> str:
        """Run a tool that must succeed; return what it printed."""
        done = self.run(tool, *args, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not done.stderr, done.stderr
        return done.stdout

    def clone(self, name: str = "ucm", *args: str) -> Path:
        """A user's checkout of the base, on a branch; a copy of one unless there are `args`."""
        target = self.root.parent / name
        if not args and self.spare:
            return copy_checkout(self.spare / "clean", target)
        options = args or ("--no-hardlinks",)
        git(self.root.parent, "clone", "-q", *options, str(self.base), str(target))
        return target

    def applied(self, name: str = "ucm") -> Path:
        """A checkout as `make apply` leaves it; the series must be the template's."""
        return copy_checkout(self.spare / "applied", self.root.parent / name)

    def series(self) -> dict[str, bytes]:
        """Bytes of everything that refresh writes, with the executable bits."""
        found = {}
        for folder in (self.patches, self.overlay):
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    key = f"{path.relative_to(self.root)} {path.stat().st_mode & 0o100}"
                    found[key] = path.read_bytes()
        return found

    def patch(self, number: int) -> Path:
        return next(self.patches.glob(f"{number:04d}-*.patch"))

    def edit_series(self, old: str, new: str) -> None:
        replace(self.patches, "series", old, new)


def refused(done, *phrases: str, code: int | None = None) -> str:
    """Check the one clear block of a refusal; return it."""
    text = done.stderr
    assert done.returncode == code if code else done.returncode > 0, text
    assert text.count("REFUSED") == 1, done.stdout + text
    rows = text.splitlines()
    assert "REFUSED" in rows[0]
    assert any(row.startswith("  expected  ") for row in rows), text
    assert any(row.startswith("  found     ") for row in rows), text
    assert rows[-2] == "Nothing was changed."
    assert rows[-1].startswith("next: ") and len(rows[-1]) > 8
    assert "Traceback" not in text and "tip  " not in done.stdout
    for phrase in phrases:
        assert phrase in text, text
    return text


def make_base(target: Path) -> str:
    """The stand-in for the unpacked sdist: a git repository of one commit."""
    for path, text in BASE_FILES.items():
        write(target, path, text)
    write(target, "run.sh", "#!/bin/sh\n", 0o755)
    git(target, "init", "-q", "-b", "main")
    git(target, "config", "uploadpack.allowFilter", "true")
    when = "2026-01-01T00:00:00+0000"
    git(target, "add", "-A")
    git(
        target,
        *("commit", "-q", "-m", "uc-manager 0.0.1"),
        GIT_AUTHOR_DATE=when,
        GIT_COMMITTER_DATE=when,
    )
    return git(target, "rev-parse", "HEAD")


def commit_entries(ucm: Path) -> None:
    """Three commits: patch + new file, new files only (one executable), patch only."""
    when = {"GIT_AUTHOR_DATE": "2026-02-03T04:05:06+0800"}
    replace(ucm, ENGINE, "engine_line_20()", "engine_line_20(int n)")
    write(ucm, CASE, LICENCE.replace("#", "//") + "TEST(Short, Count) {}\n")
    commit(ucm, "[Bugfix] Check the short count", "posix-store", **when)
    write(ucm, KEYS, LICENCE + "VERSION = 2\n")
    write(ucm, SCRIPT, "#!/bin/sh\necho ok\n", 0o755)
    commit(ucm, "[Feat] Make keys for every pool – größer", **when)
    replace(ucm, STORE, "store_line_10 = 10", "store_line_10 = 'keys'")
    replace(ucm, "README.md", "# UCM\n", "# UCM\n\nWith keys.\n")
    commit(ucm, "[Feat][Opt] Use the keys", **when)


def bare_series(project: Project) -> Path:
    """build/ucm at the base, for a series of the test's own, and a stub for the compiler."""
    stub = Path(__file__).with_name("stub_build.py")
    shutil.copy(stub, project.root / "scripts" / "build.py")
    (project.root / "docs").mkdir()
    project.ok("apply")
    ucm = project.root / "build" / "ucm"
    git(ucm, "reset", "-q", "--hard", "HEAD~3")
    return ucm
