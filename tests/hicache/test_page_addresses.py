"""Addresses told by the distance of pages are those that the pool itself would give."""

from types import SimpleNamespace

import hicache_kit as kit
import numpy as np
import pytest
import torch
from hicache_kit import PoolName
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.mem_cache.pool_host.unified import UnifiedPageEnvelopeHostPool

from ucm.integration.sglang import page_addresses
from ucm.integration.sglang.page_layout import LayoutError, page_pointers, probe
from ucm.store.pipeline.ucmpipelinestore import PageAddresses

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
    return page_addresses.PageAddresses(pool, layout), layout


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


@pytest.mark.parametrize("shift", [1, -1])
def test_slots_between_two_pages_are_the_pools_affair(shift):
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


def outside(pool):
    """First slots whose page would not lie in the pool, whole."""
    return [-pool.page_size, -1, pool.size - pool.page_size + 1, pool.size, 2**62]


@pytest.mark.parametrize("name", ["swa", "mamba", "kv"])
@pytest.mark.parametrize("op", ["get", "set"])
@pytest.mark.parametrize("case", range(5))
@pytest.mark.parametrize("known", [True, False], ids=["known pages", "new pages"])
def test_slots_outside_the_pool_are_refused(site, messages, name, op, case, known):
    """Their addresses would be those of other memory. Nothing is moved."""
    pool, keys = (kit.mamba if name == "mamba" else kit.mha)(), kit.keys(3)
    if name == "kv":
        store = site.attach(pool, {})
        move = {"get": store.batch_get_v1, "set": store.batch_set_v1}[op]
    else:
        store = site.attach(kit.logical(), {name: pool})
        v2 = {"get": store.batch_get_v2, "set": store.batch_set_v2}[op]

        def move(keys, slots):
            return v2([kit.PoolTransfer(name, slots, keys=keys)])[name]

    kit.fill(pool, range(3))
    slots = kit.slots(pool, range(3))
    if known:
        names = keys if op == "get" else kit.keys(3, "others")
        if name == "kv":
            kit.put_kv(store, pool, names, range(3))
        else:
            kit.put(store, name, pool, names, range(3))
    files, before = site.files(), kit.contents(pool, range(8))
    slots[pool.page_size :: 2 * pool.page_size] = outside(pool)[case]
    assert move(keys, slots) == [False] * 3
    assert site.files() == files
    assert torch.equal(kit.contents(pool, range(8)), before)
    assert f"starts no page of {pool.page_size} in {pool.size} slots" in messages()


@st.composite
def grids(draw):
    """Slots, slots a page, addresses of page 0, step, and which pages are known."""
    tokens = draw(st.sampled_from([1, 4, 64]))
    known = draw(st.lists(st.booleans(), max_size=6))
    inside = [page * tokens for page in range(len(known))]
    wild = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-2, 7 * tokens + 1))
    start = st.sampled_from(inside) if inside else wild
    starts = draw(st.lists(st.one_of(start, start, start, start, wild), max_size=5))
    slots = [slot for start in starts for slot in [start] + (tokens - 1) * [-7]]
    rest = draw(st.integers(0, tokens - 1))
    firsts = draw(st.lists(st.integers(0, 2**64 - 1), max_size=3))
    return (
        slots + rest * [-9],
        tokens,
        firsts,
        draw(st.integers(-(2**63), 2**63 - 1)),
        known,
    )


@settings(max_examples=500, deadline=None, database=None, derandomize=True)
@given(grids())
def test_computed_addresses_are_those_of_python(grid):
    slots, tokens, firsts, step, known = grid
    starts = slots[: len(slots) // tokens * tokens : tokens]
    pages = [slot // tokens for slot in starts]
    found = PageAddresses(
        np.array(slots, dtype=np.int64), tokens, firsts, step, np.array(known, np.uint8)
    )
    if any(s % tokens or not 0 <= s < len(known) * tokens for s in starts):
        assert found is None
        return
    expected = [[(first + page * step) % 2**64 for first in firsts] for page in pages]
    assert found[0].dtype == np.uint64 and found[0].shape == (len(pages), len(firsts))
    assert found[0].tolist() == expected
    assert found[1] == all(known[page] for page in pages)


@pytest.mark.parametrize(
    "change",
    [
        {"slots": np.zeros(4, np.int32)},
        {"slots": np.zeros(4)},
        {"slots": np.zeros((2, 2), np.int64)},
        {"slots": [0, 1, 2, 3]},
        {"tokens": 0},
        {"tokens": -4},
        {"known": np.zeros((1, 1), np.uint8)},
        {"known": np.zeros(1, np.int64)},
        {"firsts": [-1]},
        {"step": 2**63},
    ],
    ids=lambda change: "{}, {}".format(*next(iter(change.items())))[:40],
)
def test_arguments_of_another_form_are_refused(change):
    good = {"slots": np.arange(4), "tokens": 4, "firsts": [4096], "step": 64}
    good["known"] = np.ones(1, np.uint8)
    assert PageAddresses(**good)[0].tolist() == [[4096]]
    with pytest.raises((TypeError, ValueError)):
        PageAddresses(**{**good, **change})


@pytest.mark.parametrize(
    "other",
    [
        lambda slots: slots.to(torch.int32),
        lambda slots: slots.repeat_interleave(2)[::2],
        lambda slots: torch.stack([slots, slots])[1],
    ],
    ids=["int32", "every second", "a row"],
)
def test_slots_of_another_form(other):
    pool = kit.mha()
    known, layout = addresses(pool)
    slots = kit.slots(pool, SCATTERED)
    for _ in range(2):
        found = known.find(other(slots), len(SCATTERED))
        assert same(found, pool, layout, slots, len(SCATTERED))


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
