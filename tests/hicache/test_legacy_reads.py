"""Failed sidecar reads on releases that do not look at them: mitigations a, b and c."""

import hicache_kit as kit
import pytest
import torch
from hicache_kit import PoolName

from ucm.integration.sglang import ucm_connector

SWA, MAMBA, C4 = PoolName.SWA, PoolName.MAMBA, PoolName.DEEPSEEK_V4_C4
STATE, INDEXER = PoolName.DEEPSEEK_V4_C4_STATE, PoolName.INDEXER
ERAS = {"B": (0, 5, 12), "C first": (0, 5, 13), "C last": (0, 5, 16), "D": (0, 5, 17)}


@pytest.fixture
def attach(site, monkeypatch):
    """Attach as under another release, with pages 0..2 of three keys in every pool."""

    def attach(version, anchor, pools, lost=()):
        # Not there before the entry that looks at it, whose proof this file is.
        monkeypatch.setattr(ucm_connector, "release", lambda: version, raising=False)
        store, names = site.attach(anchor, pools), kit.keys(3)
        if anchor.kv_buffer is not None:
            kit.fill(anchor, range(3))
            kit.put_kv(store, anchor, names, range(3))
        for name, pool in pools.items():
            kit.fill(pool, range(3))
            here = [i for i in range(3) if (name, i) not in lost]
            kit.put(store, name, pool, [names[i] for i in here], here)
        return store, names

    return attach


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("make", [kit.mla, kit.logical])
def test_a_kv_pages_load_their_followers_too(attach, era, make):
    """0.5.13 to 0.5.16: batch_get_v1 also loads every KV-derived pool at the same slots."""
    anchor = make()
    pools = {C4: kit.paged("c4"), INDEXER: kit.paged("indexer"), SWA: kit.paged("swa")}
    store, names = attach(ERAS[era], anchor, pools, lost={(C4, 1), (SWA, 0)})
    for pool in pools.values():
        kit.poison(pool, range(3, 6))
    found = store.batch_get_v1(names, kit.slots(anchor, range(3, 6)))
    assert (kit.contents(pools[SWA], range(3, 6)) == 0xEE).all()
    if not era.startswith("C"):
        assert found == [True] * 3
        assert (kit.contents(pools[C4], range(3, 6)) == 0xEE).all()
        return
    assert found == [True, False, True]
    data = kit.contents(pools[C4], [0, 2])
    assert torch.equal(kit.contents(pools[C4], [3, 5]), data)
    data = kit.contents(pools[INDEXER], range(3))
    assert torch.equal(kit.contents(pools[INDEXER], range(3, 6)), data)


def test_a_another_page_size_fails_the_pages(attach):
    """A follower that cannot be addressed by the KV slots is not taken as loaded."""
    anchor = kit.mla()
    store, names = attach((0, 5, 16), anchor, {INDEXER: kit.paged("indexer", page=8)})
    assert store.batch_get_v1(names, kit.slots(anchor, range(3))) == [False] * 3


@pytest.mark.parametrize("era", ERAS)
def test_b_a_failed_follower_of_swa_fails_the_swa_page(attach, era):
    pools = {SWA: kit.paged("swa"), STATE: kit.state("state"), MAMBA: kit.mamba()}
    store, names = attach(
        ERAS[era], kit.logical(), pools, lost={(STATE, 1), (MAMBA, 0)}
    )
    found = store.batch_get_v2(
        [kit.transfer(n, p, names, range(3, 6)) for n, p in pools.items()]
    )
    folded = era.startswith("C")
    assert found[STATE] == [True, False, True] and found[MAMBA] == [False, True, True]
    assert found[SWA] == [True, not folded, True]
    # A draft whose transfer names SWA as its source counts the same way.


def test_b_follows_the_source_that_a_transfer_names(attach):
    pools = {SWA: kit.paged("swa"), "new": kit.paged("new")}
    store, names = attach((0, 5, 16), kit.logical(), pools, lost={("new", 2)})
    transfers = [kit.transfer(n, p, names, range(3, 6)) for n, p in pools.items()]
    assert store.batch_get_v2(transfers)[SWA] == [True] * 3
    transfers[1].indices_from_pool = SWA
    assert store.batch_get_v2(transfers)[SWA] == [True, True, False]


@pytest.mark.parametrize("era", ERAS)
def test_c_failed_sidecars_fail_the_kv_pages_that_follow(attach, era):
    """Up to 0.5.12 sidecars are read first; their failed keys fail once in batch_get_v1."""
    anchor, pools = kit.mla(), {MAMBA: kit.mamba()}
    store, names = attach(ERAS[era], anchor, pools, lost={(MAMBA, 2)})
    found = store.batch_get_v2([kit.transfer(MAMBA, pools[MAMBA], names, range(3, 6))])
    assert found == {MAMBA: [True, True, False]}
    indices = kit.slots(anchor, range(3))
    first = store.batch_get_v1(names, indices)
    assert first == [True, True, era != "B"]
    assert store.batch_get_v1(names, indices) == [True] * 3


def test_c_a_later_success_is_believed(attach):
    anchor, mamba = kit.mla(), kit.mamba()
    store, names = attach((0, 5, 12), anchor, {MAMBA: mamba}, lost={(MAMBA, 2)})
    load = [kit.transfer(MAMBA, mamba, names[2:], [5])]
    assert store.batch_get_v2(load) == {MAMBA: [False]}
    kit.put(store, MAMBA, mamba, names[2:], [2])
    assert store.batch_get_v2(load) == {MAMBA: [True]}
    assert store.batch_get_v1(names, kit.slots(anchor, range(3))) == [True] * 3
