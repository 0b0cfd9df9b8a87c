"""What every call answers, above all when something is wrong."""

import threading

import hicache_kit as kit
import pytest
import torch
from hicache_kit import FaultStore, PoolName

SWA, MAMBA, C4 = PoolName.SWA, PoolName.MAMBA, PoolName.DEEPSEEK_V4_C4


@pytest.fixture
def attached(site):
    """A physical anchor with two pools that hold pages 0..3 of four keys."""
    anchor, pools = kit.mha(), {SWA: kit.paged("swa"), MAMBA: kit.mamba()}
    store = site.attach(anchor, pools)
    names = kit.keys(4)
    for pool in (anchor, *pools.values()):
        kit.fill(pool, range(4))
    kit.put_kv(store, anchor, names, range(4))
    for name, pool in pools.items():
        kit.put(store, name, pool, names, range(4))
    return store, anchor, pools, names


def all_transfers(pools, names, pages):
    return [kit.transfer(n, p, names, pages) for n, p in pools.items()]


def boom(*_):
    raise RuntimeError("injected")


@pytest.mark.parametrize("call", ["load", "dump", "wait", "lookup"])
def test_no_fault_of_the_store_gets_out(attached, call):
    """Misses while it lasts, right answers after it."""
    store, anchor, pools, names = attached
    failed = {SWA: [False] * 4, MAMBA: [False] * 4}
    queries = [kit.query(SWA), kit.query(MAMBA, kit.TRAILING, 1)]
    FaultStore.faults[call] = boom
    if call in ("load", "wait"):
        assert store.batch_get_v2(all_transfers(pools, names, range(4, 8))) == failed
        assert store.batch_get_v1(names, kit.slots(anchor, range(4))) == [False] * 4
    if call in ("dump", "wait"):
        assert store.batch_set_v2(all_transfers(pools, names, range(4))) == failed
        assert store.batch_set_v1(names, kit.slots(anchor, range(4))) == [False] * 4
    if call == "lookup":
        assert store.batch_exists(names) == 0 and store.exists(names[0]) is False
        hit = store.batch_exists_v2(names, queries)
        assert (hit.kv_hit_pages, hit.restorable_prefix_pages) == (0, [])
        assert hit.extra_pool_hit_pages == {"kv": 0, SWA: 0, MAMBA: 0}
    FaultStore.faults.clear()
    assert store.batch_get_v2(all_transfers(pools, names, range(4))) == dict.fromkeys(
        pools, [True] * 4
    )
    assert store.batch_exists_v2(names, queries).restorable_prefix_pages == [1, 2, 3, 4]


@pytest.mark.parametrize("call", ["batch_get_v2", "batch_set_v2"])
def test_every_pool_is_submitted_before_the_first_wait(attached, call):
    store, _, pools, names = attached
    seen = []
    for what in ("load", "dump", "wait"):
        FaultStore.faults[what] = lambda _, what=what: seen.append(what)
    moved = getattr(store, call)(all_transfers(pools, names, range(4)))
    assert moved == dict.fromkeys(pools, [True] * 4)
    submitted = seen[: seen.index("wait")]
    assert len(submitted) == seen.count("load") + seen.count("dump") >= len(pools) > 1


@pytest.mark.parametrize(
    "accessor", ["get_data_page", "_iter_page_tensors", "set_from_flat_data_page"]
)
def test_no_fault_of_a_pool_gets_out(attached, monkeypatch, accessor):
    """One page that the pool cannot give or take fails alone."""
    store, _, pools, names = attached
    if accessor == "get_data_page":  # of zeros every page is made there
        pools[MAMBA].conv_buffer[0].zero_()
        store.register_mem_host_pool_v2(pools[MAMBA], MAMBA)
    real = getattr(pools[MAMBA], accessor)

    def fault(index, *args, **kw):
        return boom() if index == 2 else real(index, *args, **kw)

    monkeypatch.setattr(pools[MAMBA], accessor, fault)
    sets = accessor != "set_from_flat_data_page"
    move = store.batch_set_v2 if sets else store.batch_get_v2
    found = move([kit.transfer(MAMBA, pools[MAMBA], names, range(4))])
    assert found == {MAMBA: [True, True, False, True]}


def test_no_fault_of_page_metadata_gets_out(attached, monkeypatch, messages):
    """A layout that changed fails its transfer, and is told with pool, pages and cause."""
    store, anchor, pools, names = attached
    real = pools[SWA].get_page_buffer_meta

    def changed(indices):
        pointers, sizes = real(indices)
        return pointers, [size // 2 for size in sizes]

    monkeypatch.setattr(pools[SWA], "get_page_buffer_meta", changed)
    found = store.batch_get_v2(all_transfers(pools, names, range(4)))
    assert found == {SWA: [False] * 4, MAMBA: [True] * 4}
    for word in ("L3 get failed for 4 of 4 pages of pool swa", "[192]"):
        assert word in messages()
    monkeypatch.setattr(anchor, "get_page_buffer_meta", boom)
    assert store.batch_get_v1(names, kit.slots(anchor, range(4))) == [False] * 4


@pytest.mark.parametrize("name", [SWA, MAMBA])
def test_one_bad_page_fails_alone(site, attached, name):
    """The others are loaded; the host page of the bad one is not trusted by anyone."""
    store, _, pools, names = attached
    pool, data = pools[name], kit.contents(pools[name], range(4))
    kit.block_of(site, store, name, names[1]).unlink()
    kit.poison(pool, range(4, 8))
    found = store.batch_get_v2([kit.transfer(name, pool, names, range(4, 8))])
    assert found == {name: [True, False, True, True]}
    assert torch.equal(kit.contents(pool, [4, 6, 7]), data[[0, 2, 3]])
    hit = store.batch_exists_v2(names, [kit.query(name)])
    assert hit.restorable_prefix_pages == [1]


def test_a_truncated_anchor_page_fails_alone(site, attached):
    store, anchor, _, names = attached
    path = kit.block_of(site, store, "kv", names[2])
    path.write_bytes(path.read_bytes()[:-1])
    assert store.batch_get_v1(names, kit.slots(anchor, range(4))) == [
        True,
        True,
        False,
        True,
    ]
    assert store.batch_exists(names) == 2


def test_shapes_of_answers(attached):
    """Every requested pool is there, with one real bool per key; no work is no failure."""
    store, anchor, pools, names = attached
    assert store.batch_get_v2([]) == store.batch_set_v2([]) == {}
    for move in (store.batch_get_v2, store.batch_set_v2):
        found = move([kit.transfer(SWA, pools[SWA], [], []), kit.query(MAMBA)])
        assert found == {SWA: [], MAMBA: []}
        found = move([kit.transfer(SWA, pools[SWA], names, range(4)), kit.query("new")])
        assert found == {SWA: [True] * 4, "new": []}
        assert all(type(ok) is bool for ok in found[SWA])
        found = move([kit.transfer("new", pools[SWA], names, range(4))])
        assert found == {"new": [False] * 4}
    assert store.batch_get_v1([], torch.empty(0)) == store.batch_set_v1([], None) == []
    assert store.batch_exists([]) == 0 and store.exists("absent") is False


def test_host_indices(attached):
    """Longer ones are cut (older releases), shorter or missing ones fail that transfer."""
    store, anchor, pools, names = attached
    longer = kit.transfer(SWA, pools[SWA], names[:2], range(4))
    assert store.batch_get_v2([longer]) == {SWA: [True, True]}
    shorter = kit.transfer(SWA, pools[SWA], names, range(3))
    missing = kit.transfer(MAMBA, pools[MAMBA], names, range(4))
    missing.host_indices = None
    for move in (store.batch_get_v2, store.batch_set_v2):
        assert move([shorter, missing]) == {SWA: [False] * 4, MAMBA: [False] * 4}
    assert store.batch_get_v1(names, kit.slots(anchor, range(2))) == [False] * 4


def test_generic_calls_answer_misses(attached):
    """SGLang 0.5.11 to 0.5.18 use them for drafts: never an exception, never True."""
    store = attached[0]
    assert store.get("k") is None and store.set("k", torch.zeros(1)) is False
    assert store.batch_get(["a", "b"], [None, None]) == [None, None]
    assert store.batch_set(["a", "b"], [None, None]) is False


def test_extra_info_is_optional_everywhere(attached):
    store, anchor, pools, names = attached
    info = kit.extra_info(["prefix"])
    assert store.batch_exists(names, info) == 4
    assert store.batch_get_v1(names, kit.slots(anchor, range(4)), info) == [True] * 4
    assert store.batch_exists_v2(names, [kit.query(SWA)], info).kv_hit_pages == 4
    assert (
        store.batch_get_v2(all_transfers(pools, names, range(4)), info)[SWA]
        == [True] * 4
    )


def test_failures_are_told_once(attached, messages):
    """One line per failed call and pool; a storm of them does not flood the log."""
    store, _, pools, names = attached
    FaultStore.faults["load"] = boom
    for _ in range(20):
        store.batch_get_v2([kit.transfer(SWA, pools[SWA], names, range(4))])
    assert messages().count("L3 get failed for 4 of 4 pages of pool swa in") == 1
    assert "injected" in messages()


def test_a_pool_without_a_store_is_told_once(attached, messages):
    store, _, _, names = attached
    load = [kit.transfer(C4, kit.paged("c4"), names, range(4))]
    for _ in range(5):
        assert store.batch_get_v2(load) == {"deepseek_v4_c4": [False] * 4}
    assert messages().count("4 of 4 pages of pool deepseek_v4_c4: LookupError") == 1


def test_submits_every_pool_before_waiting(attached, monkeypatch):
    """The disk is not idle between pools, flattened ones included."""
    store, _, pools, names = attached
    order = []
    for call in ("load_data", "dump_data", kit.WAIT):
        real = getattr(FaultStore, call)
        monkeypatch.setattr(
            FaultStore,
            call,
            lambda self, *a, real=real, call=call: order.append(call) or real(self, *a),
        )
    store.batch_get_v2(all_transfers(pools, names, range(4)))
    calls = 1 + 4  # all pages of SWA, each page of MAMBA
    assert order == ["load_data"] * calls + [kit.WAIT] * calls
    order.clear()
    store.batch_set_v2(all_transfers(pools, names, range(4)))
    assert order == ["dump_data"] * calls + [kit.WAIT] * calls


def test_concurrent_calls_and_late_registration(site):
    """Readers, writers and lookups run while pools are registered; all answers stay right."""
    anchor = kit.mha(pages=16)
    pools = {name: kit.paged(name, pages=16) for name in ("new1", "new2", SWA)}
    pools[MAMBA] = kit.mamba(pages=16)
    store, names = site.attach(anchor), kit.keys(8)
    kit.fill(anchor, range(8))
    kit.put_kv(store, anchor, names, range(8))
    wrong, stop = [], threading.Event()

    def use():
        while not stop.is_set():
            if store.batch_exists(names) != 8:
                wrong.append("exists")
            if store.batch_get_v1(names, kit.slots(anchor, range(8, 16))) != [True] * 8:
                wrong.append("get")
            for name in list(store.registered_pools):
                if name in pools:
                    hit = store.batch_exists_v2(names, [kit.query(name)])
                    if hit.kv_hit_pages not in range(9):
                        wrong.append("v2")

    users = [threading.Thread(target=use) for _ in range(3)]
    try:
        for user in users:
            user.start()
        for i, (name, pool) in enumerate(pools.items()):
            store.register_mem_host_pool_v2(pool, name)
            kit.fill(pool, range(8), i)
            kit.put(store, name, pool, names, range(8))
    finally:
        stop.set()
        for user in users:
            user.join()
    assert not wrong
    hit = store.batch_exists_v2(names, [kit.query(n) for n in pools])
    assert hit.kv_hit_pages == 8
