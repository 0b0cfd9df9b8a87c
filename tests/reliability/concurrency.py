"""Processes and threads that store, load and look up the same keys, while files are removed."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import hicache_kit as kit
import numpy as np
from _where import TREE
from deployments import Deployment, Wrong, blocks, counts, keys_of, picks
from hosts import Process
from kit import Background

SCALE, BATCH = 64, 8
GROWTH = 64 << 20  # bytes of memory that a process may gain after its warm-up


@dataclass(frozen=True)
class Plan:
    root: Path
    seed: int
    seconds: float
    processes: int
    threads: int
    keys: list[str]
    strangers: list[str]  # never stored
    phases: tuple[str, ...]
    barrier: object


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
    """One thread: it has pages of its own in every pool."""

    def __init__(self, plan: Plan, deployment: Deployment, number: int, thread: int):
        self.plan, self.deployment, self.writer = plan, deployment, number
        self.first = thread * BATCH
        self.dice = picks(plan.seed, number, thread)
        self.tally = Counter()

    def run(self, phase: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            keys = self.dice.sample(self.plan.keys, self.dice.randint(1, BATCH))
            pages = range(self.first, self.first + len(keys))
            dice = self.dice.random()
            if dice < 0.4:
                found = self.deployment.put(keys, pages, self.writer)
                self._count("stored", found)
                if not all(map(all, found.values())):
                    raise Wrong(f"seed {self.plan.seed}: {keys} not stored: {found}")
            else:
                self._read(keys, pages, may_vanish=phase != "quiet")

    def _read(self, keys, pages, may_vanish: bool) -> None:
        """Look up, load, check every byte."""
        deployment, seed = self.deployment, self.plan.seed
        present = deployment.present(keys)
        found = deployment.get(keys, pages)
        self.tally["looked up"] += len(keys) * len(found)
        self.tally["bytes"] += deployment.check(keys, pages, found, seed)
        self._count("loaded", found)
        stranger = self.dice.sample(self.plan.strangers, 1)
        if any(deployment.present(stranger).values()):
            raise Wrong(f"seed {seed}: {stranger} was never stored and is present")
        for name, done in found.items():
            lost = [k for k, ok in zip(keys, done, strict=True) if not ok]
            if not may_vanish and present[name].intersection(lost):
                raise Wrong(f"seed {seed}: {name} {lost}: present, and not loaded")

    def _count(self, what: str, found: dict) -> None:
        self.tally[what] += sum(map(sum, found.values()))
        self.tally[f"not {what}"] += sum(done.count(False) for done in found.values())


def clear_now_and_then(deployment: Deployment, seconds: float) -> int:
    """How often clear() did its work meanwhile."""
    end, cleared = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        cleared += bool(deployment.store.clear())
        time.sleep(0.3)
    return cleared


def phase_of(plan: Plan, deployment, workers, phase: str, seconds: float, number: int):
    plan.barrier.wait()
    threads = [Background(lambda w=w: w.run(phase, seconds)) for w in workers]
    cleared = 0
    if phase == "cleared" and number < 2:
        cleared = clear_now_and_then(deployment, seconds)
    for thread in threads:
        if not thread.finished(seconds + 60):
            raise Wrong(f"seed {plan.seed}: a thread hangs in phase {phase}")
        if thread.error:
            raise thread.error
    return cleared


def serve(plan: Plan, number: int) -> dict:
    """One process: warm up, then every phase; counts are taken while nothing moves."""
    deployment = attach(plan, number)
    workers = [Worker(plan, deployment, number, t) for t in range(plan.threads)]
    share = plan.seconds / len(plan.phases)
    phase_of(plan, deployment, workers, "quiet", min(5.0, share), number)
    before, cleared = counts(), 0
    for phase in plan.phases:
        cleared += phase_of(plan, deployment, workers, phase, share, number)
    after = counts()
    tally = sum((worker.tally for worker in workers), Counter())
    return {"before": before, "after": after, "cleared": cleared, **tally}


def prune(plan: Plan) -> int:
    """Remove any blocks, then the oldest ones by the operators' command, in phases called pruned."""
    dice, share, removed = picks(plan.seed, "prune"), plan.seconds / len(plan.phases), 0
    for phase in ("quiet", *plan.phases):
        plan.barrier.wait()
        end = time.monotonic() + share
        while phase == "pruned" and time.monotonic() < end:
            found = blocks(plan.root)
            for path in dice.sample(found, len(found) // 4):
                with suppress(FileNotFoundError):
                    path.unlink()
                    removed += 1
            removed += prune_to(plan.root / "a", 8 << 20)
            time.sleep(0.2)
    return removed


def prune_to(backend: Path, size: int) -> int:
    """Blocks that the operators' command removed from a storage backend."""
    words = (
        f"-m ucm.integration.sglang.hicache prune {backend} --to-bytes {size} --delete"
    )
    run = subprocess.run(
        [sys.executable, *words.split(), "--json"],
        env={**os.environ, "PYTHONPATH": str(TREE)},
        check=True,
        capture_output=True,
        text=True,
    )
    return sum(folder["deleted"] for folder in json.loads(run.stdout))


def can_clear(root: Path) -> bool:
    """Whether this tree's connector has a clear() that does something."""
    pools = kit.v4_pools(SCALE, 1)
    deployment = Deployment(kit.Site(root), kit.logical(), pools, mla=True)
    return deployment.store.clear() is True


def judge(plan: Plan, found: list[dict]) -> None:
    for number, one in enumerate(found):
        before, after = one["before"], one["after"]
        for what in ("threads", "descriptors"):
            if after[what] > before[what]:
                raise Wrong(f"process {number}: {what} {before[what]} -> {after[what]}")
        if after["rss"] - before["rss"] > GROWTH:
            raise Wrong(f"process {number}: {before['rss']} -> {after['rss']} bytes")
        if not one.get("loaded") or not one.get("stored"):
            raise Wrong(f"process {number} moved nothing: {one}")


def run(
    seconds: float,
    seed: int,
    folder: Path,
    processes: int = 8,
    threads: int = 4,
    keys: int = 200,
) -> dict:
    """Raises Wrong. The figures: see docs/reliability.md."""
    phases = ("quiet", "pruned")
    if Process(lambda: can_clear(folder / "try")).result(60):
        phases += ("cleared",)
    plan = Plan(
        *(folder / "root", seed, seconds, processes, threads),
        *(keys_of(keys), keys_of(keys, "stranger"), phases),
        multiprocessing.get_context("fork").Barrier(processes + 1, timeout=120),
    )
    plan.root.mkdir(parents=True)
    servers = [Process(lambda n=n: serve(plan, n)) for n in range(processes)]
    pruner = Process(lambda: prune(plan))
    found = [server.result(seconds + 240) for server in servers]
    removed = pruner.result(60)
    judge(plan, found)
    total = {what: sum(one.get(what, 0) for one in found) for what in TOLD}
    rss = [max(one[when]["rss"] for one in found) >> 20 for when in ("before", "after")]
    threads_each = int(np.max([one["after"]["threads"] for one in found]))
    files_each = int(np.max([one["after"]["descriptors"] for one in found]))
    return {
        "processes x threads": f"{processes} x {threads}",
        "phases": ", ".join(phases),
        **{TOLD[what]: n for what, n in total.items()},
        "blocks removed from outside": removed,
        "wrong bytes": 0,
        "false present": 0,
        "threads of a process, at most, warm and at the end": threads_each,
        "descriptors of a process, at most, warm and at the end": files_each,
        "largest process, MiB, warm and at the end": f"{rss[0]}, {rss[1]}",
    }


TOLD = {
    "stored": "pages stored or kept",
    "not stored": "pages not stored",
    "looked up": "pages looked up",
    "loaded": "pages loaded",
    "not loaded": "pages not there",
    "bytes": "bytes compared",
    "cleared": "times cleared",
}
