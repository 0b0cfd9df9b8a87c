"""Faults of the operating system, through the preloaded library shim/inject.c."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("shim") / "inject.c"
OPS = [
    "read",
    "write",
    "open",
    "open_direct",
    "close",
    "sync",
    "publish",
    "stat",
    "unlink",
]


def build() -> Path | None:
    """Compile the shim once per version of its source; None when there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    version = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    target = Path(tempfile.gettempdir()) / f"store-inject-{os.getuid()}-{version}.so"
    if not target.exists():
        fresh = target.with_suffix(f".{os.getpid()}")
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra"]
        subprocess.check_call(
            [compiler, *flags, "-o", fresh, SOURCE, "-ldl", "-pthread"]
        )
        fresh.replace(target)
    return target


def loaded() -> bool:
    return hasattr(ctypes.CDLL(None), "inject_add")


@dataclass(frozen=True)
class Fault:
    """One live rule; `drop` ends it and releases every call it holds."""

    lib: ctypes.CDLL
    rule: int

    def drop(self) -> None:
        self.lib.inject_drop(self.rule)

    @property
    def seen(self) -> int:
        """Calls that matched operation, token and offset so far."""
        return self.lib.inject_seen(self.rule)


class Faults:
    def __init__(self) -> None:
        self.lib = ctypes.CDLL(None)
        self.lib.inject_seen.restype = ctypes.c_long
        self.lib.inject_active.restype = ctypes.c_long
        self.lib.inject_add.argtypes = [
            ctypes.c_int,
            ctypes.c_char_p,
            *[ctypes.c_long] * 3,
            ctypes.c_int,
            *[ctypes.c_long] * 2,
        ]

    def add(
        self,
        op: str,
        token: object,
        *,
        offset: int = -1,
        skip: int = 0,
        count: int = -1,
        error: int = 0,
        limit: int = -1,
        delay_ms: int = 0,
        hold: bool = False,
    ) -> Fault:
        """Hit `count` calls of `op` on paths containing `token`, after `skip` of them.

        A hit waits (`hold`: until dropped), then fails with `error` or moves `limit` bytes.
        A rule without an effect only counts.
        """
        delay = -1 if hold else delay_ms
        args = offset, skip, count, error, limit, delay
        rule = self.lib.inject_add(OPS.index(op), str(token).encode(), *args)
        assert rule >= 0, "too many rules"
        return Fault(self.lib, rule)

    def active(self) -> int:
        """Reads and writes that a rule has hit and that have not ended."""
        return self.lib.inject_active()

    @contextmanager
    def on(self, op: str, token: object, **effect):
        fault = self.add(op, token, **effect)
        try:
            yield fault
        finally:
            fault.drop()
