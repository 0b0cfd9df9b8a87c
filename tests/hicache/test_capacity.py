"""One capacity for all sidecar pools below a root: what was used longest ago goes first."""

import os
import time

import hicache_kit as kit
import pytest
from hicache_kit import PoolName

SWA, C4 = PoolName.SWA, PoolName.DEEPSEEK_V4_C4
QUARTER = 1 << 28  # bytes


def until(condition, limit=5.0):
    end = time.monotonic() + limit
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def former_pool(folder, blocks):
    """A pool that no process has any more: sparse blocks of a quarter GiB, the oldest first."""
    paths = []
    for number in range(blocks):
        name = f"{number:x}0".ljust(32, "f")
        paths.append(folder / f"former_{QUARTER}x1" / name[:2] / name)
        paths[-1].parent.mkdir(parents=True)
        paths[-1].touch()
        os.truncate(paths[-1], QUARTER)
        then = time.time() - 100 * (blocks - number)
        os.utime(paths[-1], (then, then))
    return paths


def test_the_oldest_pages_of_any_pool_go(site):
    """5 quarters are too many for 1 GiB, of which 90 % may stay. Pages in use stay, and so does
    what the primary pool has."""
    folder = site.backends[0] / "sglang_v2"
    anchor, pools, names = kit.mha(), {SWA: kit.mha(), C4: kit.paged("c4")}, kit.keys(3)
    store = site.attach(anchor, pools)
    kit.put_kv(store, anchor, names, range(3))
    for name, pool in pools.items():
        kit.put(store, name, pool, names, range(3))
    store.close()
    quarters = former_pool(folder, 5)
    for _ in range(2):
        store = site.attach(anchor, pools, sidecar_capacity_gb=1)
    assert until(lambda: [p.exists() for p in quarters] == [False] * 2 + [True] * 3)
    hit = store.batch_exists_v2(names, [kit.query(name) for name in pools])
    assert hit.kv_hit_pages == 3


def test_without_a_capacity_nothing_goes(site):
    quarters = former_pool(site.backends[0] / "sglang_v2", 5)
    site.attach(kit.logical(), {SWA: kit.mha()}, sidecar_capacity_gb=0)
    time.sleep(0.5)
    assert all(path.exists() for path in quarters)
    assert not list(site.root.rglob(".gc-*"))


def test_options_of_the_stores(site):
    """Sidecars get their own capacity, the primary store none, and neither the other's."""
    store = site.attach(kit.mha(), {SWA: kit.mha()}, sidecar_capacity_gb=7)
    swa = store.connector.pools.get(SWA).store.config
    assert swa["posix_capacity_gb"] == 7 and swa["posix_gc_siblings"] is True
    assert "posix_capacity_gb" not in store.store.config
    assert not {"sidecar_capacity_gb"} & (store.store.config.keys() | swa.keys())


@pytest.mark.parametrize("value", [-1, 1.5, "7", True])
def test_a_bad_capacity_is_refused_by_name(site, value):
    with pytest.raises(ValueError, match="sidecar_capacity_gb must be a number of GiB"):
        site.attach(kit.logical(), {SWA: kit.mha()}, sidecar_capacity_gb=value)
    assert site.files() == []
