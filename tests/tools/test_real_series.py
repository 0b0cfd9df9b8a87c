"""The series of this very project, on the pinned base."""

import os
import re
import subprocess

import pytest
from series_project import REPOSITORY


def make(target: str) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "MAKE"))}
    return subprocess.run(
        ["make", "--no-print-directory", target],
        cwd=REPOSITORY,
        env=env,
        capture_output=True,
        encoding="utf-8",
    )


@pytest.mark.skipif(
    not list((REPOSITORY / "patches").glob("*.patch")), reason="patches/ is empty"
)
def test_make_verify_passes():
    done = make("verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"^ok  [1-9]\d* patches, \d+ overlay files, 0 findings$", done.stdout, re.M
    )


def test_make_help_lists_every_target():
    text = (REPOSITORY / "Makefile").read_text("utf-8")
    shown = make("help").stdout
    targets = set(re.findall(r"^([a-z-]+):(?!=)", text, re.M)) - {"prepared"}
    assert {"apply", "unapply", "status", "verify", "refresh"} <= targets
    assert [t for t in sorted(targets) if f"  {t} " not in shown] == []
    assert "UCM=" in shown and "V=1" in shown
