"""MAMBA pages in staging: the pool's own flat bytes, copied once where they are seen to be the same."""

import threading
import time
from functools import partial

import hicache_kit as kit
import pytest
import torch
from hicache_kit import FaultStore, PoolName

from ucm.integration.sglang import pool_store
from ucm.integration.sglang.flat_pages import FlatPages
from ucm.integration.sglang.page_layout import LayoutError
from ucm.integration.sglang.staging import StagingPages

MAMBA = PoolName.MAMBA
POOLS = {
    "temporal and two convs": kit.mamba,
    "convs of one size": lambda: kit.mamba(convs=((4, 3), (4, 3))),
    "convs alone": lambda: kit.mamba(temporal=(0, 3, 5)),
    "side states": lambda: kit.mamba(side_states=((3,),)),
}


@pytest.fixture
def flat_calls(monkeypatch):
    """The slots of which SGLang's pools made a flat page."""
    made, real = [], kit.MambaPoolHost.get_data_page

    def get_data_page(self, index, flat=True):
        made.append(index)
        return real(self, index, flat)

    monkeypatch.setattr(kit.MambaPoolHost, "get_data_page", get_data_page)
    return made


def staged_bytes(pages, pool, number):
    staged = torch.full((kit.page_bytes(pool),), 0xEE, dtype=torch.uint8)
    pages.copy_in(staged, number)
    return staged


@pytest.mark.parametrize("make", POOLS.values(), ids=POOLS)
def test_one_copy_has_the_bytes_of_the_flat_page(make, flat_calls):
    pool = make()
    kit.fill(pool, range(8))
    pages = FlatPages(pool)
    for number in range(8):
        flat_calls.clear()
        staged = staged_bytes(pages, pool, number)
        assert flat_calls == ([0] if number == 0 else [])
        assert torch.equal(staged, kit.read(pool, number))


def zeros(pool):
    pool.conv_buffer[1].zero_()


def ones(pool):
    """Two different bytes in each bfloat16, but one element all over."""
    pool.conv_buffer[1].fill_(1.0)


def twins(pool):
    pool.conv_buffer[1].copy_(pool.conv_buffer[0])


@pytest.mark.parametrize("content", [zeros, ones, twins])
def test_pages_that_would_look_the_same_anyhow_tell_nothing(flat_calls, content):
    """After eight of them nothing is compared any more."""
    pool = kit.mamba(convs=((4, 3), (4, 3)), pages=16)
    kit.fill(pool, range(12))
    content(pool)
    pages = FlatPages(pool)
    for number in range(8):
        assert torch.equal(staged_bytes(pages, pool, number), kit.read(pool, number))
    kit.fill(pool, range(12), seed=1)
    flat_calls.clear()
    for number in range(8, 12):
        staged_bytes(pages, pool, number)
    assert flat_calls == [8, 9, 10, 11]


def swapped(pool, index):
    """The components in another order: [conv1 | conv0 | temporal]."""
    return reversed(list(pool._iter_page_tensors(index)))


def shorter(pool, index):
    return list(pool._iter_page_tensors(index))[1:]


def failing(pool, index):
    raise NotImplementedError


@pytest.mark.parametrize("components", [None, swapped, shorter, failing])
def test_components_that_are_not_the_flat_page_are_not_used(flat_calls, components):
    """Nor is a page lost where SGLang has no such method."""
    real = kit.mamba()
    kit.fill(real, range(8))
    pool = kit.Pages(real)
    if components is not None:
        pool._iter_page_tensors = partial(components, real)
    pages = FlatPages(pool)
    for number in range(4):
        flat_calls.clear()
        staged = staged_bytes(pages, pool, number)
        assert flat_calls == [number]
        assert torch.equal(staged, kit.read(real, number))


def test_a_page_of_another_length_is_refused():
    pool = kit.mamba()
    kit.fill(pool, range(2))
    pages, longer = FlatPages(pool), torch.zeros(kit.page_bytes(pool) + 4).byte()
    with pytest.raises(LayoutError, match=r"has 360 bytes, registered were 364"):
        pages.copy_in(longer, 0)
    staged_bytes(pages, pool, 0)
    with pytest.raises(LayoutError, match=r"has 360 bytes, registered were 364"):
        pages.copy_in(longer, 1)
    assert not longer.any()


@pytest.mark.parametrize("staging", [1, 2, 3, 16])
def test_a_page_that_is_waited_for_makes_room_for_the_next(site, staging):
    """More pages than staging: their order, their bytes, and one fault in the middle."""
    pool, names, pages = kit.mamba(pages=24), kit.keys(20), list(range(20))
    store = site.attach(kit.logical(), {MAMBA: pool})
    store.connector.pools.get(MAMBA).staging.limit = staging
    data = kit.fill(pool, pages)
    kit.put(store, MAMBA, pool, names, pages)
    kit.block_of(site, store, MAMBA, names[7]).unlink()
    kit.poison(pool, pages)
    got = store.batch_get_v2([kit.transfer(MAMBA, pool, names, pages)])
    assert got == {MAMBA: [page != 7 for page in pages]}
    whole = [page for page in pages if page != 7]
    assert torch.equal(kit.contents(pool, whole), data[whole])


def test_one_page_moves_while_the_next_is_copied(site):
    """Two pages of staging: each wait makes room for one more page, not for two at the end."""
    pool, names, seen = kit.mamba(), kit.keys(4), []
    store = site.attach(kit.logical(), {MAMBA: pool})
    store.connector.pools.get(MAMBA).staging.limit = 2
    for what in ("dump", "wait"):
        FaultStore.faults[what] = lambda _, what=what: seen.append(what)
    kit.put(store, MAMBA, pool, names, range(4))
    assert seen == ["dump", "dump", "wait", "dump", "wait", "dump", "wait", "wait"]


def test_pages_without_any_staging_fail_and_the_begun_ones_count(site, monkeypatch):
    """Until one comes free; and the pages that had some keep their results."""
    monkeypatch.setattr(pool_store, "_STAGING_TIMEOUT_S", 0.1)
    pool, names = kit.mamba(), kit.keys(8)
    store = site.attach(kit.logical(), {MAMBA: pool})
    kit.fill(pool, range(8))
    staging = store.connector.pools.get(MAMBA).staging
    held = staging.lease(staging.limit)
    call = [kit.transfer(MAMBA, pool, names, range(8))]
    assert store.batch_set_v2(call) == {MAMBA: [False] * 8}
    staging.release(held[:1])
    assert store.batch_set_v2(call) == {MAMBA: [True] * 8}
    waits = iter([False, True])

    def give_up(self):
        if next(waits):
            raise RuntimeError("timeout")

    monkeypatch.setattr(FaultStore, "check", lambda self, task: False)
    staging.limit -= len(held) - 1
    staging.release(held[1:])
    FaultStore.faults["wait"] = give_up
    assert store.batch_get_v2(call) == {MAMBA: [True] + 7 * [False]}


def test_who_waits_for_staging_is_next():
    """A long transfer that takes back what it has just released would keep all others out."""
    staging, got = StagingPages(4096), []
    held = staging.lease(staging.limit)
    waiting = threading.Thread(target=lambda: got.extend(staging.lease(1, 30.0)))
    waiting.start()
    while not staging._waiting:
        time.sleep(0.001)
    staging.release(held[:1])
    assert staging.lease(1) == []
    waiting.join()
    assert len(got) == 1 and got[0].data_ptr() == held[0].data_ptr()
    staging.release(held[1:])
    assert len(staging.lease(staging.limit)) == staging.limit - 1
