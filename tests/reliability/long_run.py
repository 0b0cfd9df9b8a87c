"""Attach, traffic, detach, attach, in one process: nothing may stay behind."""

import gc
import time
from pathlib import Path

import hicache_kit as kit
from deployments import Deployment, Wrong, counts, keys_of

SCALE, N, WARM_UP = 64, 8, 10
GROWTH = 16 << 20  # bytes of memory


def cycle(site: kit.Site, number: int, made: dict) -> int:
    """One deployment's life; V4 and a hybrid model take turns. Bytes compared."""
    model, anchor, pools, mla = made[number % len(made)]
    deployment = Deployment(site, anchor, pools, model, mla=mla)
    keys, first, second = keys_of(N, number % 50), range(N), range(N, 2 * N)
    for found in (deployment.put(keys, first), deployment.get(keys, second)):
        if not all(map(all, found.values())):
            raise Wrong(f"cycle {number}: {keys}: {found}")
    compared = deployment.check(keys, second, found, number)
    if any(map(any, deployment.get(keys_of(N, "stranger"), second).values())):
        raise Wrong(f"cycle {number}: a key that was never stored was loaded")
    deployment.store.close()
    site._attached.clear()
    return compared


def run(seconds: float, seed: int, folder: Path) -> dict:
    """Raises Wrong. The figures: see docs/reliability.md."""
    site, pages, compared = kit.Site(folder), 2 * N, 0
    hybrid = {"swa": kit.paged("swa", pages=pages), "mamba": kit.mamba(pages=pages)}
    made = {
        0: ("org/v4", kit.logical(pages=pages), kit.v4_pools(SCALE, pages), True),
        1: ("org/hybrid", kit.mha(pages=pages), hybrid, False),
    }
    end, number, warm = time.monotonic() + seconds, 0, None
    while number <= WARM_UP or time.monotonic() < end:
        compared += cycle(site, number, made)
        number += 1
        if number == WARM_UP:
            gc.collect()
            warm = counts()
    gc.collect()
    last = counts()
    if kit.open_stores() or any(last[w] > warm[w] for w in ("threads", "descriptors")):
        raise Wrong(f"{number} cycles: {warm}, then {last}, {kit.open_stores()} stores")
    if last["rss"] - warm["rss"] > GROWTH:
        raise Wrong(f"{number} cycles: {warm['rss']} bytes, then {last['rss']}")
    return {
        "cycles": number,
        "bytes compared": compared,
        "wrong bytes": 0,
        "threads, warm and at the end": f"{warm['threads']}, {last['threads']}",
        "descriptors, warm and at the end": f"{warm['descriptors']}, {last['descriptors']}",
        "memory, MiB, warm and at the end": f"{warm['rss'] >> 20}, {last['rss'] >> 20}",
        "stores left": 0,
    }
