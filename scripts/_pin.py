"""The pinned base: read UPSTREAM, fetch the sdist by hash, turn it into a git repository."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

from _git import git
from _report import Refusal

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
DEFAULT_UCM = BUILD / "ucm"


@dataclass(frozen=True)
class Pin:
    """What UPSTREAM says. `commit` is the id of the base's only commit."""

    package: str
    version: str
    sha256: str
    commit: str


def read_pin(path: Path = ROOT / "UPSTREAM") -> Pin:
    rows = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return Pin(**dict(row.split("=", 1) for row in rows if row))


def base_repository() -> Path:
    """The pinned base as a bare-bones git repository under build/, made when missing."""
    pin = read_pin()
    target = BUILD / "base" / pin.sha256[:12]
    if not (target / ".git").is_dir():
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            tree = _unpack(_download(pin, Path(scratch)), Path(scratch) / "tree")
            _commit(tree, pin)
            target.parent.mkdir(exist_ok=True)
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
                next="check the package index that pip uses, then `make apply` again",
            )
    return next(folder.glob("*.tar.gz"))


def _unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as tar:
        top = tar.getnames()[0].split("/", 1)[0]
        if hasattr(tarfile, "data_filter"):
            tar.extractall(target.parent, filter="data")
        else:
            tar.extractall(target.parent)
    shutil.move(target.parent / top, target)
    return target


def _commit(tree: Path, pin: Pin) -> None:
    """One commit, the same id on every machine: modes, dates and identity are fixed."""
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    git(tree, "init", "-q")
    git(tree, "add", "-A", "-f")
    git(tree, "commit", "-q", "-m", f"{pin.package} {pin.version}")


if __name__ == "__main__":
    print(base_repository(), file=sys.stdout)
