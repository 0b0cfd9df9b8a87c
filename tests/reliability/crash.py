"""Kill -9 at random moments while four writers store pages of all six V4 pools."""

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


def attach(root: Path, scale: int) -> Deployment:
    pools = kit.v4_pools(scale, pages=2 * CHUNK)
    return Deployment(kit.Site(root), kit.logical(), pools, mla=True)


def write(root: Path, scale: int, keys: list[str], writer: int, seed: object) -> None:
    """All keys, in an order of this writer's own, in bytes that name the writer."""
    deployment = attach(root, scale)
    order = picks(seed, writer).sample(keys, len(keys))
    for some in chunks(order, CHUNK):
        deployment.put(some, range(len(some)), writer)


def audit(root: Path, scale: int, keys: list[str], seed: object) -> dict:
    """What a fresh process sees: everything present is whole, the rest can be stored."""
    deployment = attach(root, scale)
    if not until(lambda: not temporaries(root), 10):
        raise Wrong(f"seed {seed}: start-up cleaning left {temporaries(root)}")
    present = deployment.present(keys)
    tally = {"present": sum(map(len, present.values())), "bytes": 0}
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


def one_round(root: Path, scale: int, seed: object, longest: float) -> dict:
    keys, dice, begin = keys_of(N_KEY, seed), picks(seed), time.monotonic()
    writers = [
        Process(lambda n=n: write(root, scale, keys, n, seed)) for n in range(N_WRITER)
    ]
    moments = sorted((dice.uniform(0, longest), n) for n in range(N_WRITER))
    alive = 0
    for moment, number in moments:
        time.sleep(max(0, begin + moment - time.monotonic()))
        alive += not writers[number].receive.poll()
        writers[number].kill()
    left = len(temporaries(root))
    tally = Process(lambda: audit(root, scale, keys, seed)).result(LIMIT_S)
    return tally | {"killed": alive, "found": left, "seconds": time.monotonic() - begin}


def undisturbed(root: Path, scale: int, seed: object) -> float:
    """Seconds that four writers take when nobody kills them."""
    keys, begin = keys_of(N_KEY, "undisturbed"), time.monotonic()
    writers = [
        Process(lambda n=n: write(root, scale, keys, n, seed)) for n in range(N_WRITER)
    ]
    for writer in writers:
        writer.result(LIMIT_S)
        writer.kill()
    return time.monotonic() - begin


def run(rounds: int, seed: int, folder: Path, scale: int = 4) -> dict:
    """Raises Wrong. The figures: see docs/reliability.md."""
    longest, total = undisturbed(folder / "first", scale, seed), {}
    for number in range(rounds):
        root = folder / str(number)
        for what, n in one_round(root, scale, f"{seed}.{number}", longest).items():
            total[what] = total.get(what, 0) + n
        shutil.rmtree(root)
    if rounds and not total["present"]:
        raise Wrong(f"seed {seed}: no round left a page to look at")
    return {
        "rounds": rounds,
        "writers killed while they stored": total["killed"],
        "temporaries found after the kills": total["found"],
        "pages present after the kills": total["present"],
        "bytes compared": total["bytes"],
        "torn or mixed pages": 0,
        "pages answered present and not loaded": 0,
        "temporaries left after start-up cleaning": 0,
        "seconds a round": round(total["seconds"] / rounds, 1),
    }
