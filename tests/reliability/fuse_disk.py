"""A file system whose calls can be failed, cut short, delayed and held: a folder behind FUSE.

It serves another folder with direct I/O, so that errors and counts reach the caller as they are.
A remote one keeps what is written to itself until close, as NFS does.
"""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from deployments import Wrong, die_with_parent
from hosts import private_mounts
from kit import until


class Rules:
    """The server's side: what happens to which call. A rule is a dict, see Disk.add."""

    def __init__(self) -> None:
        self._live: dict[int, dict] = {}
        self._changed = threading.Condition()

    def follow(self, commands) -> None:
        while True:
            number, rule = commands.recv()
            with self._changed:
                old = self._live.pop(number, {})
                if rule:
                    self._live[number] = rule
                self._changed.notify_all()
            commands.send(old.get("hits", 0))

    def apply(self, op: str, path: str) -> int | None:
        """Wait and raise as the first rule that fits says; the bytes that it lets through."""
        with self._changed:
            number, rule = self._match(op, path)
            if rule is None:
                return None
            if rule["hold"]:
                self._changed.wait_for(lambda: number not in self._live)
        time.sleep(rule["delay_ms"] / 1000)
        if rule["error"]:
            raise OSError(rule["error"], op)
        return rule["limit"]

    def _match(self, op: str, path: str) -> tuple[int, dict | None]:
        for number, rule in self._live.items():
            if rule["op"] in (op, "any") and rule["token"] in path and rule["count"]:
                rule["count"] -= 1
                rule["hits"] += 1
                return number, rule
        return 0, None


class Unsent:
    """What was written to files of a remote file system that are open; by their descriptors."""

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}

    def opened(self, fh: int) -> int:
        self._copies[fh] = os.memfd_create("unsent")
        return fh

    def of(self, fh: int) -> int:
        return self._copies.get(fh, fh)

    def send(self, fh: int) -> None:
        if fh in self._copies:
            size = os.fstat(self._copies[fh]).st_size
            os.pwrite(fh, os.pread(self._copies[fh], size, 0), 0)

    def closed(self, fh: int) -> None:
        if fh in self._copies:
            os.close(self._copies.pop(fh))


class Passing:
    """The calls of a file system, passed on to a folder as the rules say."""

    use_ns = True

    def __init__(self, backing: Path, rules: Rules, remote: bool) -> None:
        self._backing, self._rules, self._remote = backing, rules, remote
        self._unsent = Unsent()

    def _at(self, path: str) -> str:
        return f"{self._backing}{path}"

    def getattr(self, path, fh=None):
        self._rules.apply("stat", path)
        st = os.fstat(fh) if fh else os.lstat(self._at(path))
        names = "mode nlink uid gid size blocks".split()
        times = {f"st_{t}time": getattr(st, f"st_{t}time_ns") for t in "amc"}
        return {f"st_{n}": getattr(st, f"st_{n}") for n in names} | times

    def readdir(self, path, fh):
        return [".", "..", *os.listdir(self._at(path))]

    def open(self, path, flags):
        self._rules.apply("open", path)
        return os.open(self._at(path), flags)

    def create(self, path, mode, fi=None):
        self._rules.apply("open", path)
        fh = os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        return self._unsent.opened(fh) if self._remote else fh

    def read(self, path, size, offset, fh):
        limit = self._rules.apply("read", path)
        size = size if limit is None else min(size, limit)
        return os.pread(self._unsent.of(fh), size, offset)

    def write(self, path, data, offset, fh):
        data = data[: self._rules.apply("write", path)]
        return os.pwrite(self._unsent.of(fh), data, offset)

    def flush(self, path, fh):
        self._rules.apply("close", path)
        self._unsent.send(fh)

    def fsync(self, path, datasync, fh):
        self._rules.apply("sync", path)
        self._unsent.send(fh)

    def release(self, path, fh):
        self._unsent.closed(fh)
        os.close(fh)

    def rename(self, old, new):
        self._rules.apply("publish", new)
        os.rename(self._at(old), self._at(new))

    def link(self, target, source):
        os.link(self._at(source), self._at(target))

    def chmod(self, path, mode):
        os.chmod(self._at(path), mode)

    def utimens(self, path, times=None):
        os.utime(self._at(path), ns=times)

    def mkdir(self, path, mode):
        self._rules.apply("mkdir", path)
        os.mkdir(self._at(path), mode)

    def rmdir(self, path):
        os.rmdir(self._at(path))

    def unlink(self, path):
        self._rules.apply("unlink", path)
        os.unlink(self._at(path))

    def statfs(self, path):
        found = os.statvfs(self._at(path))
        return {name: getattr(found, name) for name in dir(found) if name[:2] == "f_"}


def _serve(backing: Path, mount: Path, commands, remote: bool, options: dict) -> None:
    from mfusepy import FUSE, Operations

    class Served(Passing, Operations):
        """The calls that Passing lacks are not implemented."""

    die_with_parent()
    rules = Rules()
    threading.Thread(target=rules.follow, args=(commands,), daemon=True).start()
    options = {"direct_io": True, "hard_remove": True, "allow_other": True} | options
    options |= {"max_threads": 256, "max_idle_threads": 256}  # many may be held
    FUSE(Served(backing, rules, remote), str(mount), foreground=True, **options)
    os._exit(0)


class Disk:
    """One mount. Make it before a store is opened in this process, for it forks.

    remote: what is written reaches others with close, which gives the errors.
    hits: calls that the rules of this process's disks hit, once they were dropped.
    """

    hits = 0

    def __init__(
        self, backing: Path, mount: Path, remote: bool = False, **options
    ) -> None:
        why = missing()
        if why:
            pytest.skip(why)
        self.mount = mount
        self._numbers = iter(range(1, 10**6))
        self._commands, theirs = multiprocessing.Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            with suppress(BaseException):
                _serve(backing, mount, theirs, remote, options)
            os._exit(1)
        if not until(mount.is_mount, 10):
            pytest.skip("mounting FUSE needs root and CAP_SYS_ADMIN")

    def add(self, op: str, token: object = "", **effect) -> int:
        """Hit calls of `op` ("any": all) on paths that contain the token.

        error: errno. limit: bytes let through per call. hold: until dropped. count: calls hit.
        """
        known = {"error": 0, "limit": None, "delay_ms": 0, "hold": False, "count": -1}
        number = next(self._numbers)
        rule = known | {"op": op, "token": str(token), "hits": 0} | effect
        self._command((number, rule))
        return number

    def drop(self, number: int) -> None:
        """Raises Wrong for a rule that hit nothing."""
        hits = self._command((number, None))
        if not hits:
            raise Wrong(f"rule {number} of {self.mount} hit no call")
        Disk.hits += hits

    @contextmanager
    def on(self, op: str, token: object = "", **effect):
        number = self.add(op, token, **effect)
        yield
        self.drop(number)

    def _command(self, command: tuple) -> int:
        self._commands.send(command)
        return self._commands.recv()

    def die(self) -> None:
        """What a server that crashed looks like: every call fails from now on."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def missing() -> str:
    """Why there can be no such mount here; "" when there can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse, as a virtual machine of CI has it"
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as e:
        return f"needs mfusepy and libfuse (ci/install-debian.sh): {e}"
    return ""


def pair(folder: Path, **options) -> tuple[Path, Disk]:
    """A folder and its mount in a mount table of this process."""
    private_mounts()
    backing, mount = folder / "backing", folder / "mount"
    backing.mkdir(parents=True)
    mount.mkdir()
    return backing, Disk(backing, mount, **options)
