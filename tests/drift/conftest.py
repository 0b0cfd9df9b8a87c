"""A copy of this project to rebase, and what is needed to test the result."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Not below pytest's folder, which only its owner may enter: some tests read as another user.
BUILT = ROOT / "build" / "drift"
sys.path.insert(0, str(Path(__file__).parent))


def call(*words, cwd: Path, code: int = 0, **env: str) -> str:
    """Run a command that must end with this code; return what it printed."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == code, done.stdout[-6000:]
    return done.stdout


def edit(root: Path, edits: dict[str, list[tuple[str, ...]]]) -> None:
    """Replace `(old, new)`, or what lies from `start` up to `stop` by the third of three."""
    for path, pieces in edits.items():
        text = (root / path).read_text()
        for old, *stop, new in pieces:
            assert old in text, f"{path} has no {old!r}"
            begin = text.index(old)
            end = text.index(stop[0], begin) if stop else begin + len(old)
            text = text[:begin] + new + text[end:]
        (root / path).write_text(text)


def save(clone: Path, subject: str) -> None:
    who = ("-c", "user.name=Upstream", "-c", "user.email=upstream@example.invalid")
    call("git", "add", "--all", cwd=clone)
    call("git", *who, "commit", "-qm", subject, cwd=clone)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The series and its tools, which a rebase rewrites, with the pinned base at hand."""
    copy = tmp_path / "project"
    for name in ("scripts", "patches", "ucm_overlay", "ci"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    shutil.copy(ROOT / "UPSTREAM", copy)
    base = call(sys.executable, ROOT / "scripts" / "_pin.py", cwd=ROOT).strip()
    shutil.copytree(base, copy / "build" / "base" / Path(base).name, symlinks=True)
    return copy


@pytest.fixture
def upstream(project: Path, tmp_path: Path):
    """A clone of UCM; call it with edits, if any, which become a commit of upstream's."""
    clone = tmp_path / "upstream"
    base = next((project / "build" / "base").iterdir())
    call("git", "clone", "-q", base, clone, cwd=tmp_path)

    def commit(edits: dict, subject: str) -> Path:
        edit(clone, edits)
        if edits:
            save(clone, subject)
        return clone

    return commit


@pytest.fixture
def feature_tests(tmp_path: Path):
    """Run tests/hicache on a built tree; return pytest's last line."""

    def run(tree: Path) -> str:
        python = ROOT / "build" / "venv" / "bin" / "python"
        words = (
            python,
            "-m",
            "pytest",
            "-q",
            "tests/hicache",
            "-p",
            "no:cacheprovider",
        )
        base = f"--basetemp={tmp_path / 'pytest'}"
        out = call(*words, base, cwd=ROOT, UCM_TREE=str(tree))
        return out.strip().splitlines()[-1]

    return run
