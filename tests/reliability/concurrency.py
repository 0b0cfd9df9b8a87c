"""Processes and threads that store, load and look up the same keys, while files are removed."""

import io
import itertools
import json
import multiprocessing
import random
import time
from collections import Counter
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import hicache_kit as kit
from deployments import Deployment, Wrong, blocks, counts, keys_of, picks
from hosts import Process
from kit import Background, until

from ucm.integration.sglang.hicache.__main__ import main

SCALE, BATCH = 64, 8
BOTH = "cleared and pruned"
PRUNED, CLEARED = ("pruned", BOTH), ("cleared", BOTH)
REMOVALS = ("pruned", "cleared", BOTH)
# After each of them one in which nobody removes anything, as in the quiet one.
SETTLED = {phase: f"settled ({phase})" for phase in REMOVALS}
PHASES = ("quiet", *itertools.chain.from_iterable(SETTLED.items()))
WARM_UP = "warm-up"  # as the quiet phase
# Between two removals; beside each other they shall meet the same files.
PAUSE_S = {"pruned": 0.2, "cleared": 0.3, BOTH: 0.02}
CLEARING = 2  # processes that call clear(), one of each engine
GROWTH = 64 << 20  # bytes of memory that a process may gain after its warm-up
HUNG_S, SETTLE_S = 60.0, 10.0  # for a thread to end its phase, for counts to come back
WARM_UP_S = 10.0  # until every thread has been needed, and a sanitizer has filled its quarantine


@dataclass(frozen=True)
class Plan:
    root: Path
    seed: int
    seconds: float
    processes: int
    threads: int
    keys: list[str]
    strangers: list[str]  # never stored
    barrier: object

    @property
    def share(self) -> float:
        """Seconds of a phase."""
        return self.seconds / len(PHASES)


def attach(plan: Plan, number: int) -> Deployment:
    """Two engines on one root: DeepSeek V4 at TP 1, and MHA with SWA and MAMBA at TP 2."""
    site, pages = kit.Site(plan.root), plan.threads * BATCH
    if number % 2 == 0:
        pools = kit.v4_pools(SCALE, pages)
        return Deployment(site, kit.logical(pages=pages), pools, "org/v4", mla=True)
    pools = {
        "swa": kit.paged("swa", row=4096, pages=pages),
        "mamba": kit.mamba(pages=pages),
    }
    anchor, rank = kit.mha(pages=pages), number // 2 % 2
    return Deployment(site, anchor, pools, "org/hybrid", tp=(rank, 2))


class Worker:
    """One thread: it has pages of its own in every pool.

    told: keys that threads of this process were told are stored since the last removal.
    """

    def __init__(
        self,
        plan: Plan,
        deployment: Deployment,
        number: int,
        thread: int,
        told: set[str],
    ):
        self.plan, self.deployment, self.writer = plan, deployment, number
        self.told = told
        self.first = thread * BATCH
        self.dice = picks(plan.seed, number, thread)
        self.tally, self.slowest = Counter(), 0.0

    def run(self, phase: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        if phase in REMOVALS:
            self.told.clear()
        while (begin := time.monotonic()) < end:
            stores = self.dice.random() < 0.4
            # Of the others a settled phase sees what the removal left.
            half = stores and phase in SETTLED.values()
            among = self.plan.keys[:: 2 if half else 1]
            keys = self.dice.sample(among, self.dice.randint(1, BATCH))
            pages = range(self.first, self.first + len(keys))
            if stores:
                self._store(keys, pages, phase)
            else:
                self._read(keys, pages, phase)
            self.slowest = max(self.slowest, time.monotonic() - begin)

    def _store(self, keys, pages, phase: str) -> None:
        found = self.deployment.put(keys, pages, self.writer)
        self._count("stored", found)
        if not all(map(all, found.values())):
            raise Wrong(f"seed {self.plan.seed}: {keys} not stored: {found}")
        if phase not in REMOVALS:
            self.told.update(keys)

    def _read(self, keys, pages, phase: str) -> None:
        """Look up, load, check every byte."""
        deployment, seed = self.deployment, self.plan.seed
        told = self.told.intersection(keys)
        present = deployment.present(keys)
        found = deployment.get(keys, pages)
        self.tally["looked up"] += len(keys) * len(found)
        self.tally["told"] += len(told) * len(found)
        self.tally["bytes"] += deployment.check(keys, pages, found, seed)
        self._count("loaded", found)
        self.tally[loaded(phase)] += sum(map(sum, found.values()))
        stranger = self.dice.sample(self.plan.strangers, 1)
        if any(deployment.present(stranger).values()):
            raise Wrong(f"seed {seed}: {stranger} was never stored and is present")
        for name, done in found.items():
            lost = [k for k, ok in zip(keys, done, strict=True) if not ok]
            if phase not in REMOVALS and present[name].intersection(lost):
                raise Wrong(f"seed {seed}: {name} {lost}: present, and not loaded")
            gone = sorted(told - present[name])
            if gone:
                raise Wrong(f"seed {seed}: {name} {gone}: acknowledged, and lost")

    def _count(self, what: str, found: dict) -> None:
        self.tally[what] += sum(map(sum, found.values()))
        self.tally[f"not {what}"] += sum(done.count(False) for done in found.values())


def loaded(phase: str) -> str:
    return f"loaded, {phase}"


def clear_now_and_then(plan: Plan, deployment: Deployment, phase: str, seconds: float):
    """How often clear() removed blocks meanwhile: all that its folders had before."""
    pools = deployment.store.connector.pools.stores()
    folders = [Path(folder) for pool in pools for folder in pool.folders]
    end, cleared = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        before = files(folders)
        if not deployment.store.clear():
            raise Wrong(f"seed {plan.seed}: clear() failed in phase {phase}")
        cleared += bool(before) and not before & files(folders)
        time.sleep(PAUSE_S[phase])
    return cleared


def files(folders: list[Path]) -> set[tuple[Path, int]]:
    """The blocks, and what tells each from one that is stored in its place."""
    found = set()
    for path in itertools.chain(*map(blocks, folders)):
        with suppress(FileNotFoundError):
            found.add((path, path.stat().st_mtime_ns))
    return found


def phase_of(plan: Plan, deployment, workers, phase: str, seconds: float, number: int):
    """How often clear() removed blocks beside the traffic; the last one, after it, not counted."""
    plan.barrier.wait()
    threads = [Background(lambda w=w: w.run(phase, seconds)) for w in workers]
    cleared, clears = 0, phase in CLEARED and number < CLEARING
    if clears:
        cleared = clear_now_and_then(plan, deployment, phase, seconds)
    if not all(thread.finished(seconds + HUNG_S) for thread in threads):
        raise Wrong(f"seed {plan.seed}: a thread hangs in phase {phase}")
    errors = [thread.error for thread in threads if thread.error]
    if errors:
        raise min(errors, key=lambda e: not isinstance(e, Wrong))
    plan.barrier.wait()
    if clears and not deployment.store.clear():
        raise Wrong(f"seed {plan.seed}: clear() failed after phase {phase}")
    return cleared


def serve(plan: Plan, number: int) -> dict:
    """One process: warm up, then every phase; counts are taken while nothing moves."""
    deployment, told = attach(plan, number), set()
    workers = [Worker(plan, deployment, number, t, told) for t in range(plan.threads)]
    warm_up = min(WARM_UP_S, plan.seconds / 2)
    phase_of(plan, deployment, workers, WARM_UP, warm_up, number)
    before, cleared = counts(), {}
    for phase in PHASES:
        share = plan.share
        cleared[phase] = phase_of(plan, deployment, workers, phase, share, number)
    until(lambda: kit.threads() <= before["threads"], SETTLE_S)
    after = counts()
    tally = sum((worker.tally for worker in workers), Counter())
    tally["slowest"] = max(worker.slowest for worker in workers)
    cleared = {"cleared": sum(cleared.values()), "cleared beside prune": cleared[BOTH]}
    return {"before": before, "after": after, **cleared, **tally}


def prune(plan: Plan) -> dict:
    """In two phases, beside the traffic; and once after each, so that pages are gone then."""
    dice, removed = picks(plan.seed, "prune"), Counter()
    for phase in (WARM_UP, *PHASES):
        plan.barrier.wait()
        end = time.monotonic() + plan.share
        while phase in PRUNED and time.monotonic() < end:
            unlinked, pruned = remove_some(plan, dice)
            removed.update({"unlinked": unlinked, phase: pruned})
            time.sleep(PAUSE_S[phase])
        plan.barrier.wait()
        if phase in PRUNED:
            remove_some(plan, dice)
    return dict(removed)


def remove_some(plan: Plan, dice: random.Random) -> tuple[int, int]:
    """Blocks unlinked: any quarter; then by the operators' command: half of the rest."""
    found, unlinked = blocks(plan.root), 0
    for path in dice.sample(found, len(found) // 4):
        with suppress(FileNotFoundError):
            path.unlink()
            unlinked += 1
    return unlinked, prune_to(plan.root / "a", half_of(found))


def half_of(found: list[Path]) -> int:
    """Bytes; blocks may go meanwhile."""
    size = 0
    for path in found:
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size // 2


def prune_to(backend: Path, size: int) -> int:
    """Blocks that the operators' command removed from a storage backend."""
    words = ["prune", backend, "--to-bytes", size, "--delete", "--json"]
    with redirect_stdout(io.StringIO()) as told:
        code = main([str(word) for word in words])
    if code:
        raise Wrong(f"prune ended with {code}: {told.getvalue()}")
    return sum(folder["deleted"] for folder in json.loads(told.getvalue()))


def results(processes: list[Process], limit: float) -> list:
    """What they return. The first error ends the wait, for it makes others of its own."""
    waiting, end = {p.receive: p for p in processes}, time.monotonic() + limit
    found = {}
    while waiting:
        ready = wait(waiting, max(0, end - time.monotonic()))
        if not ready:
            raise Wrong(f"{len(waiting)} processes hang")
        some = {p: p.outcome() for p in map(waiting.pop, ready)}
        errors = [error for _, error in some.values() if error]
        if errors:
            first = min(errors, key=lambda e: not e.startswith("Wrong: "))
            raise Wrong(first.removeprefix("Wrong: "))
        found |= some
    return [found[process][0] for process in processes]


def judge(found: list[dict], removed: dict) -> None:
    """Raises Wrong. Every process moved pages, all kinds of removal took place, nothing grew."""
    for what in ("unlinked", "pruned", BOTH):
        if not removed.get(what):
            raise Wrong(f"no blocks were {what} from outside")
    for what in ("cleared", "cleared beside prune"):
        if not all(one[what] for one in found[:CLEARING]):
            raise Wrong(f"clear() removed nothing: {what} {[o[what] for o in found]}")
    for number, one in enumerate(found):
        before, after = one["before"], one["after"]
        for what in ("descriptors", "threads"):
            if after[what] > before[what]:
                raise Wrong(f"process {number}: {what} {before[what]} -> {after[what]}")
        if after["rss"] - before["rss"] > GROWTH:
            raise Wrong(f"process {number}: {before['rss']} -> {after['rss']} bytes")
        for phase in PHASES:
            if not one.get(loaded(phase)) or not one.get("stored"):
                raise Wrong(f"process {number} moved nothing in phase {phase}: {one}")
        if not one.get("told"):
            raise Wrong(f"process {number} looked up nothing that it had stored")


def run(
    seconds: float,
    seed: int,
    folder: Path,
    processes: int = 8,
    threads: int = 4,
    keys: int = 200,
) -> dict:
    """Raises Wrong. The figures: see docs/reliability.md."""
    limit = seconds + 240
    plan = Plan(
        *(folder / "root", seed, seconds, processes, threads),
        *(keys_of(keys), keys_of(keys, "stranger")),
        multiprocessing.get_context("fork").Barrier(processes + 1, timeout=limit),
    )
    plan.root.mkdir(parents=True)
    servers = [Process(lambda n=n: serve(plan, n)) for n in range(processes)]
    pruner = Process(lambda: prune(plan))
    *found, removed = results([*servers, pruner], limit)
    judge(found, removed)
    slowest = max(one["slowest"] for one in found)
    total = {what: sum(one.get(what, 0) for one in found) for what in TOLD}

    def largest(what: str, unit: int = 1) -> str:
        both = (max(one[when][what] for one in found) for when in ("before", "after"))
        return ", ".join(str(value // unit) for value in both)

    return {
        "processes x threads": f"{processes} x {threads}",
        "phases": ", ".join(PHASES),
        **{TOLD[what]: n for what, n in total.items()},
        "blocks unlinked from outside": removed["unlinked"],
        "blocks removed by prune": removed["pruned"] + removed[BOTH],
        "of them beside clear()": removed[BOTH],
        "longest store or load with its lookup, s": f"{slowest:.1f}",
        "wrong bytes": 0,
        "false present": 0,
        "acknowledged, and lost": 0,
        "threads of a process, at most, warm and at the end": largest("threads"),
        "descriptors of a process, at most, warm and at the end": largest(
            "descriptors"
        ),
        "largest process, MiB, warm and at the end": largest("rss", 1 << 20),
    }


TOLD = {
    "stored": "pages stored or kept",
    "not stored": "pages not stored",
    "looked up": "pages looked up",
    "told": "of them acknowledged in this process, removed by nobody",
    "loaded": "pages loaded",
    **{loaded(phase): f"pages loaded, {phase}" for phase in PHASES},
    "not loaded": "pages not there",
    "bytes": "bytes compared",
    "cleared": "times cleared",
    "cleared beside prune": "of them beside prune",
}
