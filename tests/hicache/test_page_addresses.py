"""Addresses told by the distance of pages are those that the pool itself would give."""

from types import SimpleNamespace

import hicache_kit as kit
import numpy as np
import pytest
import torch
from hicache_kit import PoolName
from sglang.srt.mem_cache.pool_host.unified import UnifiedPageEnvelopeHostPool

from ucm.integration.sglang.page_addresses import PageAddresses
from ucm.integration.sglang.page_layout import LayoutError, page_pointers, probe

POOLS = {
    "mha": kit.mha,
    "mla": kit.mla,
    "v4 paged": lambda: kit.paged("c4"),
    "v4 paged, odd bytes a slot": lambda: kit.paged("c4", row=61),
    "v4 state": lambda: kit.state("c4_state"),
    "k only": kit.k_only,
    "dsa indexer": kit.dsa_indexer,
    "qsa indexer": kit.qsa_indexer,
    "nvfp4 main": lambda: kit.nvfp4_main(4),
    "one page": lambda: kit.mha(pages=1),
}
SCATTERED = [5, 0, 7, 2, 2, 6]


class Counting:
    """A real pool that remembers for how many slots it was asked."""

    def __init__(self, pool, asked):
        self._pool, self._asked = pool, asked
        self.layout, self.page_size, self.size = "page_first", pool.page_size, pool.size

    def get_page_buffer_meta(self, indices):
        self._asked.append(len(indices))
        return self._pool.get_page_buffer_meta(indices)


class Scattered(Counting):
    """Its pages do not lie at one distance: two have changed places."""

    def get_page_buffer_meta(self, indices):
        places = torch.arange(self.size)
        tokens = self.page_size
        places[2 * tokens : 3 * tokens] += tokens
        places[3 * tokens : 4 * tokens] -= tokens
        return super().get_page_buffer_meta(places[indices])


def addresses(pool):
    layout = probe(pool, "pool")
    return PageAddresses(pool, layout), layout


def same(found, pool, layout, slots, pages):
    return np.array_equal(found, page_pointers(pool, layout, slots, pages))


@pytest.mark.parametrize("make", POOLS.values(), ids=POOLS)
def test_every_page_of_every_pool(make):
    pool = make()
    known, layout = addresses(pool)
    count = pool.size // pool.page_size
    for pages in 2 * [range(count), [p % count for p in SCATTERED], [count - 1]]:
        slots = kit.slots(pool, pages)
        assert same(known.find(slots, len(pages)), pool, layout, slots, len(pages))


def test_the_pool_is_asked_for_each_page_once_and_then_for_one_of_them():
    asked, pool = [], kit.mha()
    known, _ = addresses(Counting(pool, asked))
    slots, some = kit.slots(pool, SCATTERED), kit.slots(pool, [0, 2])
    asked.clear()
    for wanted in (slots, some, slots, kit.slots(pool, [0, 1])):
        known.find(wanted, len(wanted) // pool.page_size)
    page = pool.page_size
    assert asked == [len(slots), page, page, 2 * page]


def test_pages_at_different_distances_are_asked_for():
    pool = kit.mha(pages=64)
    scattered = Scattered(pool, [])
    known, layout = addresses(scattered)
    for pages in 2 * [[0, 9], [2, 3, 9], [63, 2, 9], range(64)]:
        slots = kit.slots(pool, pages)
        assert same(known.find(slots, len(pages)), scattered, layout, slots, len(pages))


class Envelopes(SimpleNamespace):
    """The device side of SGLang's unified pages, in CPU memory."""

    def get_page_envelope_buffer(self):
        return self.buffer

    def get_contiguous_buf_infos(self):
        return [self.buffer.data_ptr()], [self.buffer.numel()], [4096]


def test_a_pool_that_moves_its_pages():
    """SGLang's own, which no store but one of its own gets today: it compacts its domain."""
    page, buffer = 4, torch.zeros((80, 4096), dtype=torch.uint8)
    device = Envelopes(buffer=buffer, page_size=page, size=64 * page)
    device.host_capacity_tokens, device.grow_direction = 64 * page, "up"
    device.start_layer, device.end_layer, device.store_dtype = 0, 1, torch.uint8
    pool = UnifiedPageEnvelopeHostPool(
        *(device, 1.0, 0, page, "page_first"), pin_memory=False, pool_label="swa"
    )
    held = len(pool.alloc(pool.available_size())) // page
    known, layout = addresses(pool)
    slots = kit.slots(pool, range(held))
    known.find(slots, held)
    pool.free(kit.slots(pool, [5]))
    with pool._shared_backing.lock:
        pool._shared_backing._compact()
    for number in {*range(held)} - {5}:
        slots = kit.slots(pool, [number, 2])
        assert same(known.find(slots, 2), pool, layout, slots, 2)


@pytest.mark.parametrize("shift", [1, -1, 8 * kit.PAGE, -8 * kit.PAGE])
def test_slots_that_start_no_page_are_the_pools_affair(shift):
    """Between two pages, before the first and behind the last one: the pool is asked."""
    asked, pool = [], kit.mha()
    counting = Counting(pool, asked)
    known, layout = addresses(counting)
    slots = kit.slots(pool, [0, 3, 7])
    slots[pool.page_size : 2 * pool.page_size] += shift
    expected = page_pointers(pool, layout, slots, 3)
    known.find(kit.slots(pool, range(8)), 8)
    asked.clear()
    assert np.array_equal(known.find(slots, 3), expected)
    assert asked == [len(slots)]


def test_a_page_of_another_size_is_refused():
    pool = kit.mha()
    known, _ = addresses(pool)
    pool.get_page_buffer_meta = lambda slots: ([8192, 8192], [64, 64])
    with pytest.raises(LayoutError, match="registered were"):
        known.find(kit.slots(pool, [1]), 1)


def test_a_pool_that_is_smaller_than_a_page_is_asked():
    pool = kit.mha(pages=1)
    pool.size = 1
    known, layout = addresses(pool)
    slots = kit.slots(pool, [0, 0])
    assert same(known.find(slots, 2), pool, layout, slots, 2)


@pytest.mark.parametrize("op", ["set", "get"])
def test_a_buffer_that_moved(site, op):
    """A pool that is given other memory after its registration moves its pages there."""
    pool, keys = kit.mha(), kit.keys(6)
    data = kit.fill(pool, SCATTERED[:4])
    store = site.attach(kit.logical(), {PoolName.SWA: pool})
    kit.put(
        store, PoolName.SWA, pool, keys[:4], SCATTERED[:4]
    )  # the pages are known now
    left = pool.kv_buffer
    pool.kv_buffer = left.clone()
    if op == "get":
        kit.poison(pool, range(8))
        left.fill_(3)
        moved = kit.transfer(PoolName.SWA, pool, keys[:4], SCATTERED[:4])
        assert store.batch_get_v2([moved]) == {PoolName.SWA: [True] * 4}
        assert torch.equal(kit.contents(pool, SCATTERED[:4]), data)
        assert (left == 3).all()
        return
    fresh = kit.fill(pool, SCATTERED[:4], seed=1)
    names = kit.keys(4, "new")
    kit.put(store, PoolName.SWA, pool, names, SCATTERED[:4])
    kit.poison(pool, range(8))
    moved = kit.transfer(PoolName.SWA, pool, names, SCATTERED[:4])
    assert store.batch_get_v2([moved]) == {PoolName.SWA: [True] * 4}
    assert torch.equal(kit.contents(pool, SCATTERED[:4]), fresh)
