"""Processes, users and mounts that a test sets up; used inside the test's own process."""

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import faults
import pytest

CLONE_NEWNS = 0x20000


class Process:
    """Runs `call` in a forked process. Start it before a store is opened in this one."""

    def __init__(self, call: Callable) -> None:
        self.receive, send = multiprocessing.Pipe(duplex=False)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._serve(call, send)
        send.close()

    @staticmethod
    def _serve(call: Callable, send) -> None:
        try:
            send.send((call(), None))
        except BaseException as error:
            send.send((None, f"{type(error).__name__}: {error}"))
        os._exit(0)

    def outcome(self, limit: float = 20.0) -> tuple:
        """(result, None), (None, error text), or (None, "hung" | "died")."""
        try:
            return self.receive.recv() if self.receive.poll(limit) else (None, "hung")
        except EOFError:
            return None, "died"

    def result(self, limit: float = 20.0):
        value, error = self.outcome(limit)
        assert error is None, error
        return value

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def exit_status(self, limit: float = 10.0) -> int | None:
        """As waitpid gives it; None when it still runs."""
        from kit import until

        done = []
        until(lambda: done.extend(os.waitpid(self.pid, os.WNOHANG)) or done[-2], limit)
        return done[-1] if done[-2] else None


def peer(tree: Path, action: str, prefix: str, specs: list, folder: Path, **popen):
    """Run peer.py with `tree`, without the fault injector; its CompletedProcess."""
    text = json.dumps([asdict(spec) for spec in specs])
    script = Path(__file__).with_name("peer.py")
    command = [sys.executable, script, tree, action, prefix, text, folder]
    preload = os.environ.get("LD_PRELOAD", "").split(":")
    preload = [path for path in preload if path != str(faults.build())]
    environment = os.environ | {"LD_PRELOAD": ":".join(preload)}
    environment |= popen.pop("env", {})
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        **{"timeout": 50} | popen,
    )


def private_mounts() -> None:
    """Give this process its own mount table, or skip."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(CLONE_NEWNS) != 0:
        pytest.skip("mounting needs root and CAP_SYS_ADMIN")
    _mount("--make-rprivate", "/")


def _mount(*args: object) -> None:
    command = ["mount", *map(str, args)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        pytest.skip(f"mount {args} failed: {run.stderr.strip()}")


def read_only_view(source: Path, target: Path) -> None:
    private_mounts()
    _mount("--bind", source, target)
    remount(target, "ro")


def remount(target: Path, mode: str) -> None:
    """mode: ro or rw."""
    _mount("-o", f"remount,bind,{mode}", target)


def small_disk(target: Path, size: int) -> None:
    private_mounts()
    _mount("-t", "tmpfs", "-o", f"size={size}", "store-test", target)


def become(uid: int, gid: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("changing the user needs root")
    # Loaded now: the user may not be let into the folder that the tree lies in.
    from ucm.store import pipeline

    stores = Path(pipeline.__file__).resolve().parents[1]
    ctypes.CDLL(str(stores / "posix" / "libposixstore.so"))
    os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
