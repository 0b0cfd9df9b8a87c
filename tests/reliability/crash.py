"""Kill -9 at random moments while four writers store pages of all six V4 pools.

In every other round the writers flush (`posix_sync: data`): their unfinished blocks have names.

What a writer was told is stored must be there afterwards: the kernel lives on, as opposed to a
loss of power, against which `posix_sync` is.
"""

import mmap
import shutil
import time
from pathlib import Path

import hicache_kit as kit
from deployments import (
    Deployment,
    Wrong,
    chunks,
    keys_of,
    picks,
    temporaries,
)
from hosts import Process
from kit import until

N_WRITER, N_KEY, CHUNK = 4, 64, 4
LIMIT_S = 60
# Of all pages, on the average of the rounds: below it the kills come too early to tell anything.
ACKNOWLEDGED = 0.1
# What each of so many rounds can miss, and all of them together cannot.
MANY = 20
MOMENTS = {
    "attaching": "no writer was killed before its attach ended",
    "found": "no kill left a temporary",
}


def attach(root: Path, scale: int, sync: str = "none") -> Deployment:
    pools = kit.v4_pools(scale, pages=2 * CHUNK)
    options = {"posix_sync": sync}
    return Deployment(kit.Site(root), kit.logical(), pools, mla=True, **options)


class Told:
    """Pages that some writer was told are stored, in memory that outlives the writer."""

    def __init__(self, keys: list[str]) -> None:
        places = [(name, key) for name in kit.V4_FLASH for key in keys]
        self._at = {place: at for at, place in enumerate(places)}
        self._memory = mmap.mmap(-1, len(places))
        self._writers = mmap.mmap(-1, N_WRITER)
        self._attached = mmap.mmap(-1, N_WRITER)

    def attached(self, writer: int) -> None:
        self._attached[writer] = 1

    def has_attached(self, writer: int) -> bool:
        return bool(self._attached[writer])

    def add(self, name: str, key: str, writer: int) -> None:
        self._memory[self._at[name, key]] = 1
        self._writers[writer] = 1

    def share(self) -> float:
        return self._memory[:].count(1) / len(self._at)

    def any(self, writer: int) -> bool:
        """Whether this writer was told of a page."""
        return bool(self._writers[writer])

    def keys(self, name: str) -> set[str]:
        return {k for (n, k), at in self._at.items() if n == name and self._memory[at]}


def write(
    root: Path,
    scale: int,
    keys: list[str],
    writer: int,
    seed: object,
    told: Told,
    sync: str = "none",
) -> None:
    """All keys, in an order of this writer's own, in bytes that name the writer."""
    deployment = attach(root, scale, sync)
    told.attached(writer)
    order = picks(seed, writer).sample(keys, len(keys))
    for some in chunks(order, CHUNK):
        for name, done in deployment.put(some, range(len(some)), writer).items():
            if not all(done):
                raise Wrong(f"seed {seed}: {name} {some}: not stored: {done}")
            for key in some:
                told.add(name, key, writer)


def audit(root: Path, scale: int, keys: list[str], seed: object, told: Told) -> dict:
    """What a fresh process sees: what was told is present, everything present is whole.

    The rest can be stored.
    """
    deployment = attach(root, scale)
    if not until(lambda: not temporaries(root), 10):
        raise Wrong(f"seed {seed}: start-up cleaning left {temporaries(root)}")
    present = deployment.present(keys)
    tally = {"present": sum(map(len, present.values())), "told": 0, "bytes": 0}
    for name, there in present.items():
        lost = told.keys(name) - there
        if lost:
            raise Wrong(f"seed {seed}: {name} {sorted(lost)}: acknowledged, and lost")
        tally["told"] += len(told.keys(name))
    for some in chunks(keys, CHUNK):
        pages = range(len(some))
        found = deployment.get(some, pages)
        for name, done in found.items():
            answered = [key in present[name] for key in some]
            if done != answered:
                raise Wrong(f"seed {seed}: {name} {some}: said {answered}, gave {done}")
        tally["bytes"] += deployment.check(some, pages, found, seed)
    for some in chunks(keys, CHUNK):
        pages = range(len(some))
        for found in (deployment.put(some, pages), deployment.get(some, pages)):
            if not all(all(done) for done in found.values()):
                raise Wrong(f"seed {seed}: {some} cannot be stored again: {found}")
        tally["bytes"] += deployment.check(some, pages, found, seed)
    return tally


def one_round(root: Path, scale: int, seed: object, sync: str = "none") -> dict:
    """Each writer has its moment: while it attaches, or after a share of all pages was stored."""
    keys, dice, begin = keys_of(N_KEY, seed), picks(seed), time.monotonic()
    told, killed, attaching, storing = Told(keys), 0, 0, 0
    writers = [
        Process(lambda n=n: write(root, scale, keys, n, seed, told, sync))
        for n in range(N_WRITER)
    ]
    for share, number in sorted((dice.uniform(-0.2, 1), n) for n in range(N_WRITER)):
        writer = writers[number]
        until(lambda s=share, w=writer: told.share() >= s or w.receive.poll(), LIMIT_S)
        time.sleep(dice.uniform(0, 0.2 if share < 0 else 0.05))
        _, error = writer.outcome(0)
        writer.kill()
        if error not in (None, "hung"):
            raise Wrong(f"writer {number}: {error}")
        killed += error == "hung"  # it had not ended
        attaching += error == "hung" and not told.has_attached(number)
        storing += error == "hung" and told.any(number)
    left = len(temporaries(root))
    tally = Process(lambda: audit(root, scale, keys, seed, told)).result(LIMIT_S)
    tally |= {"killed": killed, "attaching": attaching, "storing": storing}
    tally["found"] = left
    return tally | {"seconds": time.monotonic() - begin}


def run(rounds: int, seed: int, folder: Path, scale: int = 4) -> dict:
    """Raises Wrong. The figures: see docs/reliability.md."""
    total = {}
    for number in range(rounds):
        root = folder / str(number)
        sync = "data" if number % 2 else "none"
        for what, n in one_round(root, scale, f"{seed}.{number}", sync).items():
            total[what] = total.get(what, 0) + n
        shutil.rmtree(root)
    floor = int(ACKNOWLEDGED * rounds * N_KEY * len(kit.V4_FLASH))
    if total["told"] < floor:
        raise Wrong(
            f"seed {seed}: {total['told']} pages acknowledged, less than {floor}"
        )
    if total["storing"] * 6 < rounds:
        raise Wrong(
            f"seed {seed}: {total['storing']} writers were killed while they stored"
        )
    for what, told in MOMENTS.items():
        if rounds >= MANY and not total[what]:
            raise Wrong(f"seed {seed}: {told} in {rounds} rounds")
    return {
        "rounds": rounds,
        "of them with posix_sync: data": rounds // 2,
        "writers killed before they ended": total["killed"],
        "of them before their attach ended": total["attaching"],
        "of them after a page was acknowledged": total["storing"],
        "temporaries found after the kills": total["found"],
        "pages acknowledged before the kills": total["told"],
        "of them lost": 0,
        "pages present after the kills": total["present"],
        "bytes compared": total["bytes"],
        "torn or mixed pages": 0,
        "pages answered present and not loaded": 0,
        "temporaries left after start-up cleaning": 0,
        "seconds a round": round(total["seconds"] / rounds, 1),
    }
