"""Faults made for real, around a connector with V4's six pools and MAMBA.

Every trial: the pages that must fail are False, all others are right byte for byte, the log has one
line for each pool that failed, and once the cause is gone everything works without a restart.
"""

import errno
import logging
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import hicache_kit as kit
import pytest
from deployments import Deployment, Wrong, alone, keys_of, temporaries
from fuse_disk import Disk, pair
from hosts import become, private_mounts, read_only_view, remount, small_disk
from kit import Background, until

SWA, C4, MAMBA = "swa", "deepseek_v4_c4", "mamba"
SCALE, N, TIMEOUT_MS = 64, 6, 1500
UID, LIMIT_S = 54321, 120
KEYS, NEW, MORE = keys_of(N, "old"), keys_of(N, "new"), keys_of(N, "more")
PAGES, OTHERS = range(N), range(N, 2 * N)


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
    def attach(root: Path, **options) -> Deployment:
        pools = kit.v4_pools(SCALE, 2 * N) | {MAMBA: kit.mamba(pages=2 * N)}
        options = {"timeout_ms": TIMEOUT_MS} | options
        return Deployment(kit.Site(root), kit.logical(), pools, mla=True, **options)

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

    def must(self, op: str, keys: list[str], **failing: list[int]) -> None:
        """Exactly these pages of these pools fail."""
        self.same(self.do(op, keys), self.answers(**failing))

    def answers(self, **failing) -> dict[str, list[bool]]:
        names = self.live.pools
        return {n: [i not in failing.get(n, ()) for i in range(N)] for n in names}

    def same(self, found: object, wanted: object) -> None:
        if found != wanted:
            raise Wrong(f"found {found}, not {wanted}; log {self.log.lines}")

    def told(self, op: str, word: str, *names: str) -> None:
        """One line for each of these pools, which says why; none for others."""
        for name in self.live.pools:
            start = f"L3 {op} failed for "
            mine = [x for x in self.log.lines if f"pool {name} in " in x and start in x]
            good = len(mine) == (name in names) and all(word in line for line in mine)
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
    everything = {name: range(N) for name in trial.live.pools}
    trial.must("set", NEW, **everything)
    trial.must("set", NEW, **everything)
    trial.told("set", "EROFS", *everything)
    trial.must("get", KEYS)
    trial.absent(NEW, trial.answers(**everything))
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
    swa = {SWA: range(N)}
    for op, keys in (("get", KEYS), ("set", NEW)):
        trial.must(op, keys, **swa)
        trial.must(op, keys, **swa)
        trial.told(op, "EACCES", SWA)
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
    trial.must("get", KEYS, **cut)
    trial.must("get", KEYS, **cut)
    trial.told("get", "bytes instead of", *cut)
    trial.absent(KEYS, trial.answers(**cut))
    trial.must("set", KEYS)
    trial.recovered()


def root_away(folder: Path) -> None:
    """The root is renamed away under a running connector, and comes back."""
    trial = Trial(folder / "root")
    everything = {name: range(N) for name in trial.live.pools}
    (folder / "root").rename(folder / "away")
    for op, keys in (("get", KEYS), ("set", NEW)):
        trial.must(op, keys, **everything)
        trial.must(op, keys, **everything)
        trial.told(op, "ENOENT", *everything)
    trial.absent(KEYS, trial.answers(**everything))
    (folder / "away").rename(folder / "root")
    trial.recovered()


def folders_gone(folder: Path) -> None:
    """Folders below the root are removed: a pool's own ones come back with their first block.

    The namespace itself does not, for it may be a mount that is away: its pages stay misses
    until it is there again.
    """
    trial = Trial(folder)
    everything = {name: range(N) for name in trial.live.pools}
    for path in map(trial.path, everything):
        for inner in path.iterdir():
            shutil.rmtree(inner)
    trial.must("get", KEYS, **everything)
    trial.absent(KEYS, trial.answers(**everything))
    trial.must("set", KEYS)
    for path in map(trial.path, everything):
        shutil.rmtree(path)
    trial.must("get", KEYS, **everything)
    trial.must("set", NEW, **everything)
    trial.told("set", "ENOENT", *everything)
    for path in map(trial.path, everything):
        path.mkdir()
    trial.must("set", KEYS)
    trial.recovered()


# ---- limits of the process ----


def no_descriptors(folder: Path) -> None:
    """ulimit -n reached: transfers wait for a descriptor, then fail; later they work."""
    trial = Trial(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held, everything = [], {name: range(N) for name in trial.live.pools}
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
    """ulimit -u reached at attach: an error with the pool, or fewer threads that do the work."""
    folder.chmod(0o777)
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    become(UID, UID)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    try:
        live = Trial.attach(folder)
        found = live.put(KEYS, PAGES)
        if failing(found):
            live.site.close()
            raise ValueError(f"pool {failing(found)[0]}: thread")
    except ValueError as e:
        if "pool" not in str(e) or "thread" not in str(e):
            raise Wrong(f"no clear refusal: {e}") from e
    resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
    Trial(folder).recovered()


# ---- a file system that fails, cuts, delays and hangs (FUSE) ----


def io_errors(folder: Path) -> None:
    """EIO on the read of one block and on the writes of one pool."""
    _, disk = pair(folder)
    trial = Trial(disk.mount)
    with disk.on("read", trial.block(SWA, KEYS[2]), error=errno.EIO):
        trial.must("get", KEYS, swa=[2])
        trial.must("get", KEYS, swa=[2])
        trial.told("get", "EIO", SWA)
    for op, word in (("write", "EIO"), ("open", "EMFILE"), ("publish", "ENOSPC")):
        trial.log.lines.clear()
        with disk.on(op, trial.folder(C4), error=getattr(errno, word)):
            trial.same(trial.do("set", NEW), trial.answers(**{C4: range(N)}))
        trial.absent(NEW, trial.answers(**{C4: range(N)}))
    trial.recovered()


def cut_and_interrupted(folder: Path) -> None:
    """EINTR, short reads and short writes are no errors."""
    _, disk = pair(folder)
    trial = Trial(disk.mount)
    for effect in ({"error": errno.EINTR, "count": 20}, {"limit": 1000}):
        with disk.on("read", **effect), disk.on("write", **effect):
            keys = keys_of(N, effect)
            trial.must("set", keys)
            trial.must("get", keys)
    trial.told("get", "")
    trial.recovered()


def network(folder: Path) -> None:
    """Two mounts of one folder with network-like latency and cached names: right or absent."""
    cached = dict.fromkeys(("attr_timeout", "entry_timeout", "negative_timeout"), 1)
    backing, disk = pair(folder, **cached)
    other = folder / "other"
    other.mkdir()
    twin = Disk(backing, other, **cached)
    for mount in (disk, twin):
        mount.add("any", delay_ms=2)
    trial, reader = Trial(disk.mount, timeout_ms=30000), Trial.attach(
        other, timeout_ms=30000
    )
    trial.same(reader.present(NEW)[SWA], set())
    trial.must("set", NEW)
    reader.check(NEW, OTHERS, reader.get(NEW, OTHERS), "network")
    time.sleep(1.5)
    found = reader.get(NEW, OTHERS)
    reader.check(NEW, OTHERS, found, "network")
    trial.same(found, trial.answers())
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
    trial.same(trial.live.present(KEYS)[SWA], set())
    trial.same(trial.live.put(NEW, PAGES)[SWA], [False] * N)
    if time.monotonic() - begin > TIMEOUT_MS / 1000:
        raise Wrong("a stalled store was waited for")
    disk.drop(slow)
    trial.same(waiting.finished(10), True)
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


def hung_staging(folder: Path) -> None:
    """MAMBA alone, reads held: staging that a read may still fill serves no other page."""
    _, disk = pair(folder)
    trial = Trial(disk.mount)
    slow = disk.add("read", trial.block(MAMBA, KEYS[1]), hold=True)
    pool = trial.live.pools[MAMBA]

    def load(keys, pages):
        return trial.live.store.batch_get_v2([kit.transfer(MAMBA, pool, keys, pages)])

    waiting = Background(lambda: load(KEYS, OTHERS))
    waiting.finished(3 * TIMEOUT_MS / 1000)
    disk.drop(slow)
    trial.same(waiting.finished(10), True)
    trial.told("get", "not finished in time", MAMBA)
    until(lambda: len(trial.live.present(KEYS)[MAMBA]) == N, 10)
    for _ in range(20):
        trial.must("get", KEYS)
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
    """One mount hangs with many pages queued; the stores of another mount go on.

    Until the hanging stores have as many threads stuck as each may have, a call of the others
    can wait a second for a new one.
    """
    _, disk = pair(folder)
    patient = {"timeout_ms": 15000}
    trial, other = Trial(disk.mount, **patient), Trial(folder / "plain", **patient)
    slow = disk.add("read", hold=True)
    queue = [Background(lambda: trial.live.get(KEYS, OTHERS)) for _ in range(8)]
    end, took = time.monotonic() + 10, []
    while time.monotonic() < end:
        begin, keys = time.monotonic(), keys_of(N, len(took))
        other.must("set", keys)
        other.must("get", keys)
        took.append(time.monotonic() - begin)
    disk.drop(slow)
    trial.same([waiting.finished(20) for waiting in queue], [True] * 8)
    trial.recovered()
    if max(took) > 3 or len(took) < 20:
        raise Wrong(
            f"beside a stalled mount: {len(took)} rounds, the longest {max(took)} s"
        )


def dead_server(folder: Path) -> None:
    """The file system's server dies under the connector, and is mounted again."""
    backing, disk = pair(folder)
    trial = Trial(disk.mount)
    everything = {name: range(N) for name in trial.live.pools}
    disk.die()
    trial.must("get", KEYS, **everything)
    trial.must("set", NEW, **everything)
    trial.told("get", "ENOTCONN", *everything)
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
    "EIO on read, write, open, rename": io_errors,
    "EINTR, short reads and writes": cut_and_interrupted,
    "network latency, cached names": network,
    "server of the mount dies": dead_server,
    "read hangs past the timeout": hung_read,
    "read into staging hangs": hung_staging,
    "write hangs past the timeout": hung_write,
    "one mount hangs, another does not": no_starving,
}


def one(trial: Callable, folder: Path) -> str:
    """Run a trial in a process of its own: "held", or why it could not be made here."""
    try:
        alone(lambda: trial(folder), LIMIT_S)
    except pytest.skip.Exception as reason:
        return f"skipped: {reason}"
    return "held"


def run(seed: int, folder: Path) -> dict:
    """Raises Wrong. One row a trial."""
    found = {}
    for name, trial in CASES.items():
        with TemporaryDirectory(prefix="soak-") as place:
            os.chmod(place, 0o755)  # some trials go on as another user
            try:
                found[name] = one(trial, Path(place))
            except Wrong as e:
                raise Wrong(f"{name}: {e}") from e
    return found
