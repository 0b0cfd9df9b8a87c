"""Everything at once from several threads, on a device that hangs now and then."""

import random
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from kit import (
    Background,
    Pages,
    dump_statuses,
    found,
    keys,
    load_statuses,
    until,
)

BLOCKS = {block: n % 251 for n, block in enumerate(keys(40))}
SECONDS = 2.0


def use(site, store, spec, seed: int, tally: Counter) -> list[Pages]:
    """Random dumps, loads, lookups and removals; block `k` always holds bytes BLOCKS[k].

    The pages of dumps that were given up, which writes that hang still read.
    """
    picks, end, given_up = random.Random(seed), time.monotonic() + SECONDS, []
    while time.monotonic() < end:
        ids = picks.sample(list(BLOCKS), picks.randint(1, 12))
        pages = Pages(spec, len(ids))
        try:
            over = step(site, store, ids, pages, picks.random(), tally)
        except RuntimeError:
            over = False
            tally["refused"] += 1
            time.sleep(0.01)
        if not over:
            given_up.append(pages)
    return given_up


def step(site, store, ids, pages: Pages, dice: float, tally: Counter) -> bool:
    """Whether the store is done with the pages."""
    values = np.array([BLOCKS[block] for block in ids], np.uint8)[:, None, None]
    if dice < 0.4:
        pages.data[:] = values
        return all(dump_statuses(store, ids, pages))
    if dice < 0.8:
        good = np.array(load_statuses(store, ids, pages))
        tally["loaded"] += int(good.sum())
        tally["wrong"] += bool((pages.data != values)[good].any())
        tally["overrun"] += not pages.guards_intact()
    elif dice < 0.9:
        found(store, ids)
    else:
        for block in ids[:3]:
            site.path(block).unlink(missing_ok=True)
    return True


def hang_now_and_then(faults, root) -> None:
    picks, end = random.Random(1), time.monotonic() + SECONDS - 0.5
    while time.monotonic() < end:
        op = picks.choice(["read", "write", "publish", "open", "stat"])
        with faults.on(op, root, hold=True, count=2):
            time.sleep(picks.choice([0.05, 0.4]))
        time.sleep(0.1)


@pytest.mark.parametrize("hangs", [False, True], ids=["quiet", "hanging"])
def test_random_use(site, spec, faults, hangs):
    """Four threads dump, load, look up and remove: no load gives another block's bytes or
    writes beside its pages; afterwards every file is whole and every block is found."""
    spec = replace(spec, component=8192, components=3)
    spec = replace(spec, timeout_ms=200 if hangs else 30000)
    store, tally = site.open(spec), Counter()
    threads = [
        Background(lambda n=n: use(site, store, spec, n, tally)) for n in range(4)
    ]
    if hangs:
        hang_now_and_then(faults, site.root)
    assert all(t.finished(8) and t.error is None for t in threads)
    print(dict(tally))
    assert tally["loaded"] > 0 and tally["wrong"] == tally["overrun"] == 0
    assert hangs or tally["refused"] == 0
    there = [block for block in BLOCKS if block.hex() in site.blocks()]
    assert {site.path(b).stat().st_size for b in there} <= {spec.block_size}
    assert until(lambda: all(found(store, there))) and until(
        lambda: not site.temporaries()
    )
