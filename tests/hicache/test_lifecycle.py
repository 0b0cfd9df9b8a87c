"""Attach, detach, and what late calls get."""

import gc
import threading
import time

import hicache_kit as kit
import pytest
import torch
from hicache_kit import FaultStore, PoolName

SWA, MAMBA, C4 = PoolName.SWA, PoolName.MAMBA, PoolName.DEEPSEEK_V4_C4


def pools():
    return {SWA: kit.paged("swa"), C4: kit.paged("c4"), MAMBA: kit.mamba()}


def test_attach_and_detach_leave_no_thread_and_no_descriptor(site):
    anchor, sidecars, names = kit.mha(), pools(), kit.keys(2)
    counts = []
    for _ in range(5):
        store = site.attach(anchor, sidecars)
        kit.put_kv(store, anchor, names, [0, 1])
        for name, pool in sidecars.items():
            kit.put(store, name, pool, names, [0, 1])
        store.batch_get_v2(
            [kit.transfer(n, p, names, [2, 3]) for n, p in sidecars.items()]
        )
        store.close()
        store.close()
        counts.append((kit.threads(), kit.descriptors()))
    assert len(set(counts[1:])) == 1
    assert store.store is None


def test_close_ends_with_the_last_call():
    from ucm.integration.sglang.call_gate import CallGate

    gate, ended = CallGate(), []
    assert gate.enter()
    closing = threading.Thread(target=lambda: ended.append(gate.close(60)))
    closing.start()
    while not gate.closed:
        time.sleep(0.001)
    gate.leave()
    closing.join(20)
    assert ended == [True]


def test_calls_after_close_answer_misses(site):
    anchor, sidecars, names = kit.logical(), pools(), kit.keys(2)
    for anchor in (kit.mha(), kit.logical()):
        store = site.attach(anchor, sidecars)
        store.close()
        transfers = [kit.transfer(SWA, sidecars[SWA], names, [0, 1])]
        assert store.batch_get_v2(transfers) == {SWA: [False, False]}
        assert store.batch_set_v2(transfers) == {SWA: [False, False]}
        assert store.batch_get_v1(names, kit.slots(anchor, [0, 1])) == [False, False]
        assert store.batch_set_v1(names, kit.slots(anchor, [0, 1])) == [False, False]
        assert store.batch_exists(names) == 0 and store.exists(names[0]) is False
        hit = store.batch_exists_v2(names, [kit.query(SWA)])
        assert (hit.kv_hit_pages, hit.restorable_prefix_pages) == (0, [])


def test_no_samples_once_closed(site):
    store = site.attach(kit.logical(), pools())
    store.close()
    assert store.get_stats().prefetch_pgs == []


def test_a_pool_that_comes_after_close_opens_nothing(site):
    """A late registration that races a detach: nobody would close its store."""
    store = site.attach(kit.logical(), {C4: kit.paged("c4")})
    store.close()
    before = kit.threads(), kit.descriptors()
    with pytest.raises(ValueError, match="swa.*closed"):
        store.register_mem_host_pool_v2(kit.paged("swa"), SWA)
    store.on_host_pools_registered()
    store.register_mem_host_pool_v2(kit.paged("swa"), SWA)
    assert (kit.threads(), kit.descriptors()) == before
    assert store.connector.pools.names() == []


def test_a_host_pool_that_raises_anything_is_refused_by_name(site):
    """SGLang's pools raise all sorts; during attach the operator gets one kind of error."""
    store, pool = site.attach(kit.logical(), {}), kit.paged("swa")

    def meta(indices):
        raise OSError("no such page")

    pool.get_page_buffer_meta = meta
    pool.get_dummy_flat_data_page = meta
    store.attached = False
    with pytest.raises(ValueError, match="swa"):
        store.register_mem_host_pool_v2(pool, SWA)


@pytest.mark.parametrize("error", [None, RuntimeError("injected")])
def test_every_store_is_closed_once(site, monkeypatch, messages, error):
    """A store class that has a close of its own gets the call; primary and all sidecars."""
    closed = []

    def close(self):
        closed.append(self)
        if error:
            raise error

    monkeypatch.setattr(FaultStore, "close", close, raising=False)
    store = site.attach(kit.mha(), pools())
    store.close()
    store.close()
    assert len(closed) == len({id(s) for s in closed}) == 4
    assert messages().count("injected") == (4 if error else 0)


def test_close_waits_for_calls_in_flight(site):
    anchor, names = kit.mha(), kit.keys(1)
    store = site.attach(anchor)
    kit.put_kv(store, anchor, names, [0])
    inside, go = threading.Event(), threading.Event()
    FaultStore.faults["load"] = lambda _: (inside.set(), go.wait(10))
    found = []
    get = threading.Thread(
        target=lambda: found.extend(store.batch_get_v1(names, kit.slots(anchor, [1])))
    )
    get.start()
    inside.wait(10)
    close = threading.Thread(target=store.close)
    close.start()
    time.sleep(0.1)
    assert close.is_alive() and store.batch_exists(names) == 0
    go.set()
    get.join()
    close.join()
    assert found == [True]


def test_registering_again(site):
    """The same pool changes nothing, another geometry is refused, after close all is new."""
    anchor, swa = kit.mha(), kit.paged("swa")
    store = site.attach(anchor, {SWA: swa})
    before = kit.threads(), site.everything()
    store.register_mem_pool_host(anchor)
    store.register_mem_host_pool_v2(swa, SWA)
    store.register_mem_host_pool_v2(kit.paged("swa"), SWA)
    assert (kit.threads(), site.everything()) == before
    with pytest.raises(ValueError, match="swa.*192.*96"):
        store.register_mem_host_pool_v2(kit.paged("swa", row=32), SWA)
    with pytest.raises(ValueError, match="kv.*384"):
        store.register_mem_pool_host(kit.mha(heads=4))
    same_size = kit.paged("swa", layers=4, row=48)
    assert kit.page_bytes(same_size) == kit.page_bytes(swa)
    with pytest.raises(ValueError, match="swa.*layers: 3, now 4"):
        store.register_mem_host_pool_v2(same_size, SWA)
    with pytest.raises(ValueError, match="kv.*bfloat16', now 'torch.float16"):
        store.register_mem_pool_host(kit.mha(dtype=torch.float16))
    assert (kit.threads(), site.everything()) == before
    store.close()
    store.register_mem_pool_host(anchor)
    store.register_mem_host_pool_v2(kit.paged("swa", row=32), SWA)
    names = kit.keys(1)
    kit.put_kv(store, anchor, names, [0])
    assert store.batch_exists(names) == 1


def test_a_replaced_pool_is_the_one_that_is_read(site):
    old, new, names = kit.paged("swa"), kit.paged("swa"), kit.keys(1)
    store = site.attach(kit.logical(), {SWA: old})
    data = kit.fill(new, [0])
    store.register_mem_host_pool_v2(new, SWA)
    kit.put(store, SWA, new, names, [0])
    kit.poison(new, [1])
    store.batch_get_v2([kit.transfer(SWA, new, names, [1])])
    assert (kit.contents(new, [1]) == data).all()


def test_before_registration(site):
    """An error with the reason: this is SGLang's fault or ours, never a miss."""
    from ucm.integration.sglang.unifiedcache_store import UnifiedCacheStore

    store = UnifiedCacheStore(site.config(), {})
    for call in (
        lambda: store.batch_get_v1(["k"], None),
        lambda: store.batch_exists(["k"]),
        lambda: store.batch_exists_v2(["k"]),
        lambda: store.register_mem_host_pool_v2(kit.paged("swa"), SWA),
    ):
        with pytest.raises(RuntimeError, match="register_mem_pool_host"):
            call()
    store.close()
    store.register_mem_pool_host(kit.mha())
    store.connector._anchor = None
    with pytest.raises(RuntimeError, match="no store"):
        store.batch_set_v1(["k"], None)
    with pytest.raises(ValueError, match="storage_config"):
        UnifiedCacheStore()


@pytest.mark.parametrize("trigger", ["on_host_pools_registered", "traffic"])
def test_refusal_after_attach(site, messages, trigger):
    """It no longer stops the server: logged, and every prefix that needs the pool misses."""
    anchor, c4, names = kit.mha(), kit.paged("c4"), kit.keys(2)
    store = site.attach(anchor, {C4: c4})
    kit.put_kv(store, anchor, names, [0, 1])
    kit.put(store, C4, c4, names, [0, 1])
    if trigger == "traffic":
        store.batch_exists(names)
    else:
        store.on_host_pools_registered()
        assert "deepseek_v4_c4" in messages()
    store.register_mem_host_pool_v2(kit.asymmetric_mha(), SWA)
    assert "'swa' has unequal components" in messages()
    hit = store.batch_exists_v2(names, [kit.query(C4), kit.query(SWA)])
    assert (hit.kv_hit_pages, hit.restorable_prefix_pages) == (0, [])
    assert hit.extra_pool_hit_pages == {"kv": 2, C4: 2, SWA: 0}
    assert store.batch_exists_v2(names, [kit.query(C4)]).kv_hit_pages == 2
    # A pool that served until now and comes back with another geometry is refused as well.
    store.register_mem_host_pool_v2(kit.paged("c4", row=32), C4)
    assert store.batch_exists_v2(names, [kit.query(C4)]).kv_hit_pages == 0
    store.register_mem_host_pool_v2(c4, C4)
    assert store.batch_exists_v2(names, [kit.query(C4)]).kv_hit_pages == 2


def test_refused_pool_silences_the_logical_anchor(site):
    c4, names = kit.paged("c4"), kit.keys(1)
    store = site.attach(kit.logical(), {C4: c4})
    kit.put(store, C4, c4, names, [0])
    assert store.batch_exists(names) == 1
    store.register_mem_host_pool_v2(kit.asymmetric_mha(), PoolName.DEEPSEEK_V4_C128)
    assert store.batch_exists(names) == 0


def test_dropped_backend_frees_everything_by_itself(site):
    """SGLang may drop the object without close, for example when attach fails."""
    store = site.attach(kit.mha(), pools())
    site._attached.clear()
    before = kit.open_stores()
    del store
    gc.collect()
    assert kit.open_stores() == before - 4
