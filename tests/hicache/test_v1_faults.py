"""What went wrong with the primary KV in UCM 0.5.0, through calls and options that it had.

The connector's patch of the v1 calls is proven with these: they run, and fail, on its parent.
"""

from types import SimpleNamespace

import hicache_kit as kit
import pytest
import torch
from sglang.srt.distributed import parallel_state

from ucm.integration.sglang import ucm_connector
from ucm.integration.sglang.unifiedcache_store import UnifiedCacheStore


@pytest.fixture(autouse=True)
def world_group(monkeypatch):
    """The base wants SGLang's, for the rank on its node."""
    group = SimpleNamespace(local_rank=0)
    monkeypatch.setattr(parallel_state, "get_world_group", lambda: group)
    monkeypatch.setattr(ucm_connector, "get_world_group", lambda: group, raising=False)


def attach(site, pool, **options):
    """As the base takes it: one storage backend, as text; nothing of the v2 interface."""
    config = site.config(storage_backends=str(site.backends[0]), **options)
    store = UnifiedCacheStore(config, {})
    store.register_mem_pool_host(pool)
    return store


@pytest.mark.parametrize("make, mla", [(kit.mha, False), (kit.mla, True)])
def test_the_base_serves_what_it_was_made_for(site, make, mla):
    """This one passes on the base too: what fails below is not the way of asking."""
    pool, names = make(), kit.keys(2)
    store, data = attach(site, pool, mla=mla), kit.fill(pool, range(2))
    assert store.batch_set_v1(names, kit.slots(pool, range(2))) == [True, True]
    kit.poison(pool, range(2))
    assert store.batch_get_v1(names, kit.slots(pool, range(2))) == [True, True]
    assert torch.equal(kit.contents(pool, range(2)), data)


def test_mla_pages_while_is_mla_model_is_false(site):
    """SGLang builds such pools; the base halves the page for K and V that are not there."""
    pool, names = kit.mla(), kit.keys(2)
    store, data = attach(site, pool), kit.fill(pool, range(2))
    assert store.batch_set_v1(names, kit.slots(pool, range(2))) == [True, True]
    kit.poison(pool, range(2))
    assert store.batch_get_v1(names, kit.slots(pool, range(2))) == [True, True]
    assert torch.equal(kit.contents(pool, range(2)), data)


def test_one_bad_page_fails_alone(site):
    pool, names = kit.mha(), kit.keys(3)
    store = attach(site, pool)
    kit.fill(pool, range(3))
    assert store.batch_set_v1(names, kit.slots(pool, range(3))) == [True] * 3
    next(iter(site.files())).unlink()
    assert sorted(store.batch_get_v1(names, kit.slots(pool, range(3)))) == [
        False,
        True,
        True,
    ]


def test_a_replicated_rank_looks_for_itself(site):
    """Ranks other than 0 answered "all there" without looking."""
    store = attach(site, kit.mla(), mla=True, tp=(1, 2))
    assert store.batch_exists(kit.keys(3)) == 0
