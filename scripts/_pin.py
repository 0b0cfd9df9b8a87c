"""The pinned base: UCM's sdist by hash, as a commit, or after a rebase a commit of UCM's own.

`_pin.py` prints where the base is; `_pin.py CLONE` takes the commit from a clone of UCM.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from _git import GitError, git
from _report import Refusal, run

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
UPSTREAM = ROOT / "UPSTREAM"
DEFAULT_UCM = BUILD / "ucm"


@dataclass(frozen=True)
class Pin:
    """What UPSTREAM says: `commit` is of the sdist with this `sha256`, or else of `url`."""

    commit: str
    package: str
    version: str
    sha256: str = ""
    url: str = ""

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


def read_pin() -> Pin:
    rows = (
        line.partition("#")[0].strip() for line in UPSTREAM.read_text().splitlines()
    )
    return Pin(**dict(row.split("=", 1) for row in rows if row))


def write_pin(pin: Pin) -> None:
    """Replace what UPSTREAM says; its comment stays."""
    rows = [row for row in UPSTREAM.read_text().splitlines() if row.startswith("#")]
    rows += [f"{key}={value}" for key, value in asdict(pin).items() if value]
    fresh = UPSTREAM.with_name(".UPSTREAM.new")
    fresh.write_text("\n".join(rows) + "\n")
    fresh.replace(UPSTREAM)


def base_repository(source: str = "") -> Path:
    """The pinned base as a bare-bones git repository under build/, made when missing."""
    pin = read_pin()
    target = BUILD / "base" / (pin.sha256 or pin.commit)[:12]
    if not (target / ".git").is_dir():
        if not pin.sha256:
            return fetch_base(source or pin.url, pin.commit)
        with _scratch() as scratch:
            shutil.unpack_archive(_download(pin, scratch), scratch / "sdist")
            (tree,) = (scratch / "sdist").iterdir()
            _commit(tree, pin)
            tree.rename(target)
    found = git(target, "rev-parse", "HEAD")
    if found != pin.commit:
        raise Refusal(
            "the unpacked base is not the pinned one",
            expected=f"commit {pin.commit} (UPSTREAM)",
            found=f"commit {found} in {target}",
            next=f"rm -rf {target} and try again",
        )
    return target


def fetch_base(source: str, commit: str) -> Path:
    """One commit of the UCM repository `source`, without its history, under build/base."""
    target = BUILD / "base" / commit[:12]
    if (target / ".git").is_dir():
        return target
    with _scratch() as scratch:
        tree = scratch / "tree"
        tree.mkdir()
        git(tree, "init", "-q")
        try:
            git(tree, "fetch", "-q", "--depth=1", "--no-tags", source, commit)
        except GitError as error:
            raise Refusal(
                "git could not fetch the pinned base",
                expected=f"commit {commit} from {source or 'a clone of UCM'}",
                found=error.text,
                next="python3 scripts/_pin.py CLONE takes it from a clone that has it",
            ) from error
        git(tree, "reset", "-q", "--hard", "FETCH_HEAD")
        tree.rename(target)
    return target


@contextmanager
def _scratch() -> Iterator[Path]:
    (BUILD / "base").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        yield Path(scratch)


def _download(pin: Pin, folder: Path) -> Path:
    """Let pip fetch the sdist and check its sha256.

    pip asks an sdist for its metadata even when it only downloads; UCM's setup.py then
    needs setuptools, wheel and PLATFORM, hence the small environment of its own.
    """
    tools = folder / "pip"
    venv.create(tools, with_pip=True)
    pip = [tools / "bin" / "python", "-m", "pip", "-q", "--disable-pip-version-check"]
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n")
    fetch = ["download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
    for step in (
        ["install", "setuptools>=64", "wheel"],
        [*fetch, "--require-hashes", "-d", folder, "-r", wanted],
    ):
        done = subprocess.run(
            [*pip, *step],
            env={**os.environ, "PLATFORM": "simu"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Refusal(
                "pip could not fetch the pinned base",
                expected=f"{pin.package}=={pin.version} with sha256 {pin.sha256}",
                found=done.stderr.strip() or done.stdout.strip(),
                next="check the package index that pip uses, then try again",
            )
    return next(folder.glob("*.tar.gz"))


def _commit(tree: Path, pin: Pin) -> None:
    """One commit, the same id on every machine: modes, dates and identity are fixed."""
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    git(tree, "init", "-q")
    git(tree, "add", "-A", "-f")
    git(tree, "commit", "-q", "-m", f"{pin}")


if __name__ == "__main__":
    run("base", lambda: print(base_repository(*sys.argv[1:2])))
