"""One process at a time, where two would get into each other's way."""

import fcntl
import os
from pathlib import Path

from _report import Refusal


def hold(path: Path, title: str, expected: str, found: str) -> None:
    """Take the lock for as long as this process lives; Refusal while another has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refusal(
            title, expected=expected, found=found, next="wait for its end"
        ) from None
