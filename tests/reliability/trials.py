"""Faults made for real, around a connector with V4's six pools and MAMBA.

Every trial: the pages that must fail are False, all others are right byte for byte, the log has one
line for each pool that failed, and once the cause is gone everything works without a restart.
One that cannot be made here fails the run, unless it may be skipped.
"""

import errno
import logging
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import hicache_kit as kit
import pytest
import torch
from deployments import Deployment, Wrong, alone, keys_of, temporaries
from fuse_disk import Disk, pair
from hosts import become, private_mounts, read_only_view, remount, small_disk
from kit import Background, until

SWA, C4, MAMBA = "swa", "deepseek_v4_c4", "mamba"
STATE, C128 = "deepseek_v4_c4_state", "deepseek_v4_c128"
SCALE, N, TIMEOUT_MS = 64, 6, 1500
UID, LIMIT_S = 54321, 120
LONGEST_S = 6  # of a call or two beside a mount that hangs or is slow; starved, they take 10 or more
KEYS, NEW, MORE = keys_of(N, "old"), keys_of(N, "new"), keys_of(N, "more")
PAGES, OTHERS = range(N), range(N, 2 * N)
STALL = ("storage is stalled", "not finished in time")  # either, as the calls meet


class Lines(logging.Handler):
    """The connector's warnings and errors, as text."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        logging.getLogger("ucm.integration.sglang").addHandler(self)

    def emit(self, record) -> None:
        self.lines.append(record.getMessage())


class Trial:
    """A deployment on `root` with the pages of KEYS stored, and what it logs from then on."""

    def __init__(self, root: Path, **options) -> None:
        self.root, self.log = root, Lines()
        self.live = self.attach(root, **options)
        self.must("set", KEYS)
        self.log.lines.clear()

    @staticmethod
    def pools() -> dict:
        return kit.v4_pools(SCALE, 2 * N) | {MAMBA: kit.mamba(pages=2 * N)}

    @classmethod
    def attach(cls, root: Path, **options) -> Deployment:
        options = {"timeout_ms": TIMEOUT_MS} | options
        anchor, pools = kit.logical(), cls.pools()
        return Deployment(kit.Site(root), anchor, pools, mla=True, **options)

    def path(self, name: str) -> Path:
        """A pool's own folder."""
        return Path(self.live.store.connector.pools.get(name).folders[0])

    def folder(self, name: str) -> str:
        """As a part of a path: no other pool's."""
        return f"/{self.path(name).name}/"

    def block(self, name: str, key: str) -> str:
        return self.live.store.connector.pools.get(name).ids([key])[0].hex()

    def do(self, op: str, keys: list[str]) -> dict[str, list[bool]]:
        """Set from PAGES or get into OTHERS; what is True is right, on disk and in memory."""
        if op == "get":
            found = self.live.get(keys, OTHERS)
            self.live.check(keys, OTHERS, found, op)
            return found
        return self.live.put(keys, PAGES)

    def move(self, op: str, name: str, keys: list[str], pages: range) -> list[bool]:
        """One pool alone."""
        moved = [kit.transfer(name, self.live.pools[name], keys, pages)]
        return getattr(self.live.store, f"batch_{op}_v2")(moved)[name]

    def must(self, op: str, keys: list[str], **failing: list[int]) -> None:
        """Exactly these pages of these pools fail."""
        self.same(self.do(op, keys), self.answers(**failing))

    def answers(self, **failing) -> dict[str, list[bool]]:
        names = self.live.pools
        return {n: [i not in failing.get(n, ()) for i in range(N)] for n in names}

    @property
    def everything(self) -> dict[str, range]:
        return {name: range(N) for name in self.live.pools}

    def fails(self, op: str, keys: list[str], word: str, **failing) -> None:
        """Exactly these pages of these pools, every time, and one line says why."""
        self.must(op, keys, **failing)
        self.must(op, keys, **failing)
        self.told(op, word, *failing)

    def same(self, found: object, wanted: object) -> None:
        if found != wanted:
            raise Wrong(f"found {found}, not {wanted}; log {self.log.lines}")

    def told(self, op: str, word: str | tuple[str, ...], *names: str) -> None:
        """One line for each of these pools, which says why (one of several words); none for others."""
        words = (word,) if isinstance(word, str) else word
        for name in self.live.pools:
            start = f"L3 {op} failed for "
            mine = [x for x in self.log.lines if f"pool {name} in " in x and start in x]
            good = len(mine) == (name in names) and all(
                any(word in line for word in words) for line in mine
            )
            if not good:
                raise Wrong(f"{op}, {word}, pool {name}: logged {mine}")

    def absent(self, keys: list[str], found: dict[str, list[bool]]) -> None:
        """What a set said it did not store is not there, and what it stored is."""
        present = self.live.present(keys)
        for name, done in found.items():
            self.same(
                present[name], {k for k, ok in zip(keys, done, strict=True) if ok}
            )

    def recovered(self) -> None:
        """Everything works, old pages and new ones, without another attach."""
        self.must("get", KEYS)
        self.must("set", MORE)
        self.must("get", MORE)
        if not until(lambda: not temporaries(self.root), 5):
            raise Wrong(f"left behind: {temporaries(self.root)}")


def failing(found: dict[str, list[bool]]) -> list[str]:
    return [name for name, done in found.items() if not all(done)]


# ---- the disk and its rights ----


def _full(trial: Trial, free: Callable[[], None], word: str) -> None:
    first, found = trial.do("set", NEW), trial.do("set", NEW)
    if not failing(found):
        raise Wrong("everything fitted")
    trial.told("set", word, *{*failing(first), *failing(found)})
    trial.must("get", KEYS)
    trial.absent(NEW, found)
    free()
    trial.must("set", NEW)
    trial.must("get", NEW)
    trial.recovered()


def disk_full(folder: Path) -> None:
    """A tmpfs without room; then a file is removed."""
    small_disk(folder, 8 << 20)
    trial, filler = Trial(folder), folder / "filler"
    with suppress(OSError), open(filler, "wb", buffering=0) as file:
        while file.write(bytes(1 << 14)):
            pass
    os.truncate(filler, filler.stat().st_size - (300 << 10))
    _full(trial, filler.unlink, "ENOSPC")


def quota(folder: Path) -> None:
    """A btrfs whose quota is used up; then it is raised."""
    private_mounts()
    image, mount = folder / "image", folder / "mount"
    mount.mkdir()
    image.touch()
    os.truncate(image, 256 << 20)
    for words in (
        "mkfs.btrfs -q {i}",
        "mount -o loop {i} {m}",
        "btrfs quota enable {m}",
    ):
        _or_skip(words.format(i=image, m=mount))
    trial = Trial(mount)
    _or_skip(f"btrfs qgroup limit 1600K {mount}")
    _full(trial, lambda: _or_skip(f"btrfs qgroup limit 64M {mount}"), "EDQUOT")


def _or_skip(command: str) -> None:
    """Run what a machine may lack or forbid."""
    try:
        subprocess.run(command.split(), capture_output=True, text=True, check=True)
    except FileNotFoundError as e:
        pytest.skip(f"needs {e.filename} (ci/install-debian.sh)")
    except subprocess.CalledProcessError as e:
        pytest.skip(f"{command}: {e.stderr.strip()}")


def read_only(folder: Path) -> None:
    """A bind mount turned read-only: hits go on, stores fail; then it is writable again."""
    source, view = folder / "source", folder / "view"
    source.mkdir()
    view.mkdir()
    read_only_view(source, view)
    remount(view, "rw")
    trial = Trial(view)
    remount(view, "ro")
    trial.fails("set", NEW, "EROFS", **trial.everything)
    trial.must("get", KEYS)
    trial.absent(NEW, trial.answers(**trial.everything))
    remount(view, "rw")
    trial.must("set", NEW)
    trial.recovered()


def no_rights(folder: Path) -> None:
    """As an ordinary user: one pool's folders closed with chmod, then opened again."""
    folder.chmod(0o777)
    become(UID, UID)
    trial = Trial(folder)
    path = trial.path(SWA)
    path.chmod(0)
    for op, keys in (("get", KEYS), ("set", NEW)):
        trial.fails(op, keys, "EACCES", swa=range(N))
    trial.same(trial.live.present(KEYS)[SWA], set())
    path.chmod(0o774)
    trial.recovered()


def truncated(folder: Path) -> None:
    """A block of every pool cut short: a miss that fails alone, and the next store heals it."""
    trial, cut = Trial(folder), {}
    for number, name in enumerate(trial.live.pools):
        path = kit.block_of(trial.live.site, trial.live.store, name, KEYS[number % N])
        os.truncate(path, path.stat().st_size * number // len(trial.live.pools))
        cut[name] = [number % N]
    trial.fails("get", KEYS, "bytes instead of", **cut)
    trial.absent(KEYS, trial.answers(**cut))
    trial.must("set", KEYS)
    trial.recovered()


def root_away(folder: Path) -> None:
    """The root is renamed away under a running connector, and comes back."""
    trial = Trial(folder / "root")
    (folder / "root").rename(folder / "away")
    for op, keys in (("get", KEYS), ("set", NEW)):
        trial.fails(op, keys, "ENOENT", **trial.everything)
    trial.absent(KEYS, trial.answers(**trial.everything))
    (folder / "away").rename(folder / "root")
    trial.recovered()


def folders_gone(folder: Path) -> None:
    """Folders below a pool's own are removed: they come back with their first block, and
    with the marker of its format.

    The pool's own does not, for it may be a mount that is away: its pages stay misses until
    it is there again.
    """
    trial = Trial(folder)
    everything = trial.everything
    for path in map(trial.path, everything):
        for inner in path.iterdir():
            shutil.rmtree(inner)
    trial.must("get", KEYS, **everything)
    trial.absent(KEYS, trial.answers(**everything))
    trial.must("set", KEYS)
    for path in map(trial.path, everything):
        shutil.rmtree(path)
    trial.must("get", KEYS, **everything)
    trial.fails("set", NEW, "ENOENT", **everything)
    for path in map(trial.path, everything):
        path.mkdir()
    trial.must("set", KEYS)
    trial.recovered()
    for path in map(trial.path, everything):
        trial.same(len([*path.glob(".layout/*.json")]), 1)
    _other_types_are_refused(trial)


def _other_types_are_refused(trial: Trial) -> None:
    """A pool of the same shape whose numbers are of another type; each in turn."""
    site, model = trial.live.site, trial.live.owner[0]
    for name, pool in trial.pools().items():
        field = "temporal_dtype" if name == MAMBA else "dtype"
        size = getattr(pool, field).itemsize
        setattr(pool, field, {1: torch.int8, 2: torch.int16, 4: torch.int32}[size])
        try:
            site.attach(kit.logical(), {name: pool}, model=model, mla=True)
        except ValueError as e:
            trial.same("holds pages of another format" in str(e), True)
        else:
            raise Wrong(f"pool {name}: numbers of another type were taken")


# ---- limits of the process ----


def no_descriptors(folder: Path) -> None:
    """ulimit -n reached: transfers wait for a descriptor, then fail; later they work."""
    trial = Trial(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held, everything = [], trial.everything
    resource.setrlimit(resource.RLIMIT_NOFILE, (kit.descriptors() + 4, hard))
    with suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    found = trial.do("get", KEYS), trial.do("set", NEW)
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    trial.same(found, (trial.answers(**everything),) * 2)
    for op in ("get", "set"):
        trial.told(op, "EMFILE", *everything)
    trial.recovered()


def no_threads(folder: Path) -> None:
    """ulimit -u reached: attach says so with the pool; later, those that are there do the work."""

    def limit(processes: int) -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, hard))

    folder.chmod(0o777)
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    become(UID, UID)
    limit(1)
    try:
        Trial.attach(folder)
        raise Wrong("attached without a thread")
    except ValueError as e:
        if "pool" not in str(e) or "thread" not in str(e):
            raise Wrong(f"no clear refusal: {e}") from e
    limit(hard)
    live = Trial.attach(folder)
    limit(1)
    threads = kit.threads()
    found = [live.put(KEYS, PAGES), live.get(KEYS, OTHERS)]
    live.check(KEYS, OTHERS, found[1], "ulimit -u")
    if any(map(failing, found)) or kit.threads() != threads:
        raise Wrong(f"{found}; {threads} threads, then {kit.threads()}")
    limit(hard)
    live.site.close()
    Trial(folder).recovered()


# ---- a file system that fails, cuts, delays and hangs (FUSE) ----


def io_errors(folder: Path, remote: bool = False) -> None:
    """An error of each call that a load or a store makes, in one pool at a time."""
    _, disk = pair(folder, remote=remote)
    trial = Trial(disk.mount)
    with disk.on("read", trial.block(SWA, KEYS[2]), error=errno.EIO):
        trial.fails("get", KEYS, "EIO", swa=[2])
    for name, op, word in (
        (SWA, "write", "EIO"),
        (C4, "open", "EMFILE"),
        (STATE, "publish", "ENOSPC"),
        (C128, "close", "EDQUOT"),
        (MAMBA, "close", "EIO"),
    ):
        trial.log.lines.clear()
        keys, failed = keys_of(N, name), {name: range(N)}
        with disk.on(op, trial.folder(name), error=getattr(errno, word)):
            trial.fails("set", keys, word, **failed)
        trial.absent(keys, trial.answers(**failed))
        trial.must("set", keys)
    trial.recovered()


def io_errors_around(folder: Path) -> None:
    """EIO of the calls around reading and writing: of a lookup, of an open, of a folder, of a sync."""
    uncached = dict.fromkeys(("attr_timeout", "entry_timeout", "negative_timeout"), 0)
    _, disk = pair(folder, **uncached)
    trial = Trial(disk.mount, posix_sync="full")
    with disk.on("stat", trial.block(SWA, KEYS[2]), error=errno.EIO):
        trial.absent(KEYS, trial.answers(swa=[2]))
        trial.told("lookup", "")  # a miss as any other; the store's own log tells
        told = _store_log(disk.mount, folder / "log")
        if not re.search(rf"Failed.5. to stat file.*{trial.block(SWA, KEYS[2])}", told):
            raise Wrong(f"the store's log: {told}")
        trial.fails("get", KEYS, "EIO", swa=[2])
    trial.log.lines.clear()
    with disk.on("open", trial.block(C4, KEYS[1]), error=errno.EIO):
        trial.absent(KEYS, trial.answers())
        trial.fails("get", KEYS, "EIO", **{C4: [1]})
    for inner in trial.path(STATE).glob("[0-9a-f]*"):
        shutil.rmtree(inner)
    for name, op in ((STATE, "mkdir"), (MAMBA, "sync")):
        trial.log.lines.clear()
        keys, failed = keys_of(N, name), {name: range(N)}
        with disk.on(op, trial.folder(name), error=errno.EIO):
            trial.fails("set", keys, "EIO", **failed)
        trial.absent(keys, trial.answers(**failed))
        trial.must("set", keys)
    trial.must("set", KEYS)
    trial.recovered()


def _store_log(root: Path, logs: Path) -> str:
    """What the store itself logs at a lookup of KEYS, in a process where it may."""
    code = "from trials import *; Trial.attach(Path(sys.argv[1])).present(KEYS)"
    words = [sys.executable, "-c", f"import sys, _where\n{code}", str(root)]
    env = os.environ | {"UC_LOGGER_LEVEL": "error", "UCM_LOG_PATH": str(logs)}
    here = Path(__file__).parent
    run = subprocess.run(
        words, cwd=here, env=env, capture_output=True, text=True, check=False
    )
    return run.stdout + run.stderr


def cut_and_interrupted(folder: Path) -> None:
    """EINTR, short reads and short writes are no errors."""
    _, disk = pair(folder)
    trial = Trial(disk.mount)
    for effect in ({"error": errno.EINTR, "count": 20}, {"limit": 1000}):
        with disk.on("read", **effect), disk.on("write", **effect):
            keys = keys_of(N, effect)
            trial.must("set", keys)
            trial.must("get", keys)
    for op in ("get", "set"):
        trial.told(op, "")
    trial.recovered()


def remote(folder: Path) -> None:
    """Two mounts of one folder with latency, cached names and data that is sent at close.

    What one stores is right or absent for the other, and there once the names have expired.
    """
    cached = dict.fromkeys(("attr_timeout", "entry_timeout", "negative_timeout"), 1)
    backing, disk = pair(folder, remote=True, **cached)
    other = folder / "other"
    other.mkdir()
    twin, patient = Disk(backing, other, remote=True, **cached), {"timeout_ms": 30000}
    slow = [(mount, mount.add("any", delay_ms=2)) for mount in (disk, twin)]
    trial, reader = Trial(disk.mount, **patient), Trial.attach(other, **patient)
    trial.same(reader.present(NEW)[SWA], set())
    trial.must("set", NEW)
    reader.check(NEW, OTHERS, reader.get(NEW, OTHERS), "remote")
    time.sleep(1.5)
    found = reader.get(NEW, OTHERS)
    reader.check(NEW, OTHERS, found, "remote")
    trial.same(found, trial.answers())
    for mount, number in slow:
        mount.drop(number)
    trial.recovered()


def hung_read(folder: Path) -> None:
    """A read past the timeout: the call does not return while it may land.

    No byte of a page that was handed back changes afterwards.
    """
    _, disk = pair(folder)
    trial = Trial(disk.mount)
    slow = disk.add("read", trial.block(SWA, KEYS[1]), hold=True)
    waiting = Background(lambda: trial.live.get(KEYS, OTHERS))
    trial.same(waiting.finished(3 * TIMEOUT_MS / 1000), False)
    begin = time.monotonic()
    store = trial.live.store.connector.pools.get(SWA)
    trial.same(store.presence(KEYS).tolist(), [False] * N)
    trial.same(trial.move("set", SWA, NEW, PAGES), [False] * N)
    if time.monotonic() - begin > TIMEOUT_MS / 1000:
        raise Wrong("a stalled store was waited for")
    disk.drop(slow)
    trial.same(waiting.finished(10), True)
    trial.same(waiting.result, trial.answers(swa=[1]))
    _unchanged_afterwards(trial, waiting.result)
    trial.told("get", "not finished in time", SWA)
    trial.told("set", "stalled", SWA)
    until(lambda: len(trial.live.present(KEYS)[SWA]) == N, 10)
    trial.recovered()


def _unchanged_afterwards(trial: Trial, found: dict[str, list[bool]]) -> None:
    """Pages that a get handed back are the caller's: nothing writes to them any more."""
    trial.live.check(KEYS, OTHERS, found, "hung")
    for pool in trial.live.pools.values():
        kit.poison(pool, OTHERS, 0x55)
    time.sleep(2 * TIMEOUT_MS / 1000)
    for name, pool in trial.live.pools.items():
        if not (kit.contents(pool, OTHERS) == 0x55).all():
            raise Wrong(f"pool {name}: a page changed after it was handed back")


class Staging:
    """MAMBA alone: its traffic, and the staging that each call of its store was given."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.calls: list[tuple[str, int]] = []  # (block, address)
        self.tally, self.over = Counter(), threading.Event()
        store = trial.live.store.connector.pools.get(MAMBA).store
        for name in ("load_data", "dump_data"):
            setattr(store, name, self._noted(getattr(store, name)))

    def _noted(self, call: Callable) -> Callable:
        def noted(ids, shards, addresses):
            self.calls.append((ids[0].hex(), int(addresses[0][0])))
            return call(ids, shards, addresses)

        return noted

    def traffic(self) -> None:
        """Store and load new pages until it is over; those that are True are right."""
        while not self.over.is_set():
            keys = keys_of(N, self.tally.total())
            self.trial.live.fill(keys, PAGES)
            for op in ("set", "get"):
                found = self.trial.move(op, MAMBA, keys, PAGES)
                self.trial.live.check(keys, PAGES, {MAMBA: found}, "staging")
                self.tally.update(found)
                kit.poison(self.trial.live.pools[MAMBA], PAGES)


def hung_staging(folder: Path, op: str) -> None:
    """A call that uses a staging page hangs: until it has ended, no other gets that page.

    A get waits for it, a set does not. Other pages come and go until the timeout, and are
    refused from then on until the call has ended.
    """
    _, disk = pair(folder)
    trial = Trial(disk.mount)
    call, keys = {"get": ("read", KEYS), "set": ("write", NEW)}[op]
    staging, block = Staging(trial), trial.block(MAMBA, keys[1])
    trial.live.fill(keys, OTHERS)
    slow = disk.add(call, block, hold=True)
    waiting = Background(lambda: trial.move(op, MAMBA, keys, OTHERS))
    until(lambda: len(staging.calls) == N)
    traffic = Background(staging.traffic)
    trial.same(waiting.finished(3 * TIMEOUT_MS / 1000), op == "set")
    until(lambda: staging.tally[False] >= 10 * N)
    # More pages than are free, so that every free one is used.
    trial.same(trial.move("set", MAMBA, keys_of(2 * N), range(2 * N)), [False] * 2 * N)
    used = [address for _, address in staging.calls]
    disk.drop(slow)
    trial.same(waiting.finished(10), True)
    trial.same(waiting.result, [i != 1 for i in range(N)])
    until(lambda: len(trial.live.present(KEYS)[MAMBA]) == N, 10)
    staging.over.set()
    trial.same(traffic.finished(10) and traffic.error, None)
    trial.same(staging.tally[True] > 0 and staging.tally[False] > 0, True)
    trial.same(used.count(dict(staging.calls[:N])[block]), 1)
    trial.same(len(trial.live.present(NEW)[MAMBA]), N - 1 if op == "set" else 0)
    for each in ("get", "set"):
        trial.told(each, STALL, MAMBA)
    trial.recovered()


def hung_write(folder: Path) -> None:
    """Writes past the timeout: False in time, never published, their bytes nobody else's."""
    _, disk = pair(folder)
    # More writes hang than one store may do at once: the others wait a second for threads.
    timeout = 4
    trial = Trial(disk.mount, timeout_ms=timeout * 1000)
    held = {SWA: range(N), MAMBA: range(N)}
    slow = [disk.add("write", trial.folder(n), hold=True) for n in held]
    begin = time.monotonic()
    found = trial.do("set", NEW)
    if time.monotonic() - begin > 2 * timeout:
        raise Wrong("a set waited for hung writes")
    trial.same(found, trial.answers(**held))
    trial.told("set", "not finished in time", *held)
    trial.live.fill(MORE, PAGES, writer=3)
    for number in slow:
        disk.drop(number)
    time.sleep(timeout)
    until(lambda: len(trial.live.present(KEYS)[SWA]) == N, 10)
    trial.absent(NEW, found)
    trial.must("set", NEW)
    trial.must("get", NEW)
    trial.recovered()


def no_starving(folder: Path) -> None:
    """One mount hangs past its timeout, many pages queued; the stores of another mount go on.

    Until the hanging stores have as many threads stuck as each may have, a call of the others
    can wait a second for a new one.
    """
    _, disk = pair(folder)
    other, trial = Trial(_memory(folder), timeout_ms=15000), Trial(disk.mount)
    slow = disk.add("read", hold=True)
    queue = [Background(lambda: trial.live.get(KEYS, OTHERS)) for _ in range(8)]
    end, took = time.monotonic() + 10, []
    while time.monotonic() < end:
        begin, keys = time.monotonic(), keys_of(N, len(took))
        other.must("set", keys)
        other.must("get", keys)
        took.append(time.monotonic() - begin)
    trial.same(trial.live.present(KEYS)[SWA], set())
    trial.same(trial.move("set", SWA, NEW, PAGES), [False] * N)
    disk.drop(slow)
    for found in _ended(trial, queue):
        trial.live.check(KEYS, OTHERS, found, "hung")
    lines = [x for x in trial.log.lines if f"{SWA} in {disk.mount}" in x]
    if not any(STALL[1] in line for line in lines):
        raise Wrong(f"no load was late; log {trial.log.lines}")
    trial.told("set", STALL[0], SWA)
    until(lambda: all(len(p) == N for p in trial.live.present(KEYS).values()), 10)
    trial.recovered()
    # Two calls a round that can each wait a second; the rest is for a busy machine.
    if max(took) > LONGEST_S or sorted(took)[len(took) // 2] > 1 or len(took) < 20:
        raise Wrong(
            f"beside a stalled mount: {len(took)} rounds, the longest {max(took)} s"
        )


def _memory(folder: Path) -> Path:
    """A file system of its own, whose writes wait for no disk. To be made before any thread."""
    (folder / "memory").mkdir()
    small_disk(folder / "memory", 8 << 30)
    return folder / "memory"


def _ended(trial: Trial, calls: Sequence[Background]) -> list:
    """What they returned; none of them raised into SGLang."""
    errors = [call.finished(20) and call.error for call in calls]
    trial.same(errors, [None] * len(calls))
    return [call.result for call in calls]


def slow_beside_good(folder: Path) -> None:
    """One mount is slow and never idle; the stores of another one hardly notice.

    Its writes take longer than a thread may before it counts as stuck: others come and go all
    the time, and must not go where the good stores wait for them.
    """
    _, disk = pair(folder)
    patient = {"timeout_ms": 30000}
    other, trial = Trial(_memory(folder), **patient), Trial(disk.mount, **patient)
    number, over = disk.add("write", delay_ms=1100), threading.Event()
    queue = [Background(lambda n=n: _store_on(trial, n, over)) for n in range(2)]
    begin, took, moving = time.monotonic(), [], set()
    while (start := time.monotonic()) < begin + 12:
        other.must("set", keys_of(N, len(took)))
        took.append(time.monotonic() - start)
        moving.add(int((time.monotonic() - begin) * 4))
    over.set()
    rounds = _ended(trial, queue)
    disk.drop(number)
    trial.recovered()
    if min(rounds) < 2:
        raise Wrong(f"the slow mount was idle: {rounds} rounds of stores")
    if max(took) > LONGEST_S or len(moving) < 24:
        raise Wrong(
            f"beside a slow mount: {len(took)} stores in {len(moving)} of 48 quarters of a "
            f"second, the longest took {max(took)} s"
        )


def _store_on(trial: Trial, writer: int, over: threading.Event) -> int:
    """One pool's new pages, until it is over. How often all were stored."""
    rounds = 0
    while not over.is_set():
        keys = keys_of(2 * N, (writer, rounds))
        trial.same(trial.move("set", SWA, keys, range(2 * N)), [True] * 2 * N)
        rounds += 1
    return rounds


def dead_server(folder: Path) -> None:
    """The file system's server dies under the connector, and is mounted again."""
    backing, disk = pair(folder)
    trial = Trial(disk.mount)
    disk.die()
    for op, keys in (("get", KEYS), ("set", NEW)):
        trial.fails(op, keys, "ENOTCONN", **trial.everything)
    subprocess.run(["umount", "-l", str(disk.mount)], check=True)
    subprocess.run(["mount", "--bind", str(backing), str(disk.mount)], check=True)
    trial.recovered()


CASES = {
    "disk full": disk_full,
    "quota used up": quota,
    "read-only bind mount": read_only,
    "no rights to a folder": no_rights,
    "blocks truncated": truncated,
    "root renamed away and back": root_away,
    "folders removed": folders_gone,
    "ulimit -n": no_descriptors,
    "ulimit -u": no_threads,
    "errors of read, write, open, rename, close": io_errors,
    "the same, data sent at close": partial(io_errors, remote=True),
    "EIO of stat, open of a load, mkdir, fsync": io_errors_around,
    "EINTR, short reads and writes": cut_and_interrupted,
    "latency, cached names, data sent at close": remote,
    "server of the mount dies": dead_server,
    "read hangs past the timeout": hung_read,
    "read into staging hangs": partial(hung_staging, op="get"),
    "write from staging hangs": partial(hung_staging, op="set"),
    "write hangs past the timeout": hung_write,
    "one mount hangs, another does not": no_starving,
    "one mount is slow, another is not": slow_beside_good,
}


def one(trial: Callable, folder: Path) -> str:
    """Run a trial in a process of its own. Raises pytest's Skipped if it cannot be made here."""
    hits = alone(lambda: trial(folder) or Disk.hits, LIMIT_S)
    return f"held; calls hit: {hits}" if hits else "held"


def run(seed: int, folder: Path, may_skip: Sequence[str] = ()) -> dict:
    """Raises Wrong. One row a trial."""
    found, missed = {}, []
    for name, trial in CASES.items():
        with TemporaryDirectory(prefix="soak-") as place:
            os.chmod(place, 0o755)  # some trials go on as another user
            try:
                found[name] = one(trial, Path(place))
            except Wrong as e:
                raise Wrong(f"{name}: {e}") from e
            except pytest.skip.Exception as reason:
                found[name] = f"skipped: {reason}"
                missed += [name] * (name not in may_skip)
    if missed:
        told = "\n".join(f"{name}: {found[name]}" for name in missed)
        raise Wrong(f"{told}\nSKIP='{';'.join(missed)}' lets a run do without them")
    return found
