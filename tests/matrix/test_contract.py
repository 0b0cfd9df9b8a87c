"""The interface between a SGLang release and the backend, call by call; no threads, one page or two."""

import dataclasses
import inspect

import host_pools
import pytest
import recorded_store
import torch
from controller import Controller
from mixes import MIXES, kv_swa, plain_kv
from sglang.srt.mem_cache import hicache_storage
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

from ucm.integration.sglang.unifiedcache_store import UnifiedCacheStore

KEYS = [f"{page:064x}" for page in range(1, 5)]


def config(extra, **fields):
    """HiCacheStorageConfig with those of the fields that the release has."""
    wanted = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": True,
        "model_name": "org/model",
        "extra_config": extra,
        **fields,
    }
    known = {field.name for field in dataclasses.fields(HiCacheStorageConfig)}
    return HiCacheStorageConfig(**{k: v for k, v in wanted.items() if k in known})


@pytest.fixture
def create(extra_config):
    """Backends from SGLang's own factory, with the pools of a mix registered."""
    made = []

    def create(mix, **fields):
        backend = StorageBackendFactory.create_backend(
            "dynamic", config(extra_config, **fields), mix.anchor
        )
        made.append(backend)
        backend.register_mem_pool_host(mix.anchor)
        for name, pool in mix.pools.items():
            backend.register_mem_host_pool_v2(pool, name)
        return backend

    yield create
    for backend in made:
        backend.close()


def overrides():
    """Every public method that the release's base class has: (name, its own, ours)."""
    for name, base in vars(HiCacheStorage).items():
        if inspect.isfunction(base) and not name.startswith("_"):
            yield name, base, getattr(UnifiedCacheStore, name)


def test_the_factory_makes_the_class(create):
    backend = create(plain_kv())
    assert isinstance(backend, UnifiedCacheStore)
    (made,) = recorded_store.calls("__init__")
    assert len(made.args) == 2 and made.kwargs == {}
    assert isinstance(made.args[0], HiCacheStorageConfig) and made.args[1] == {}
    assert backend.store is not None


def test_the_class_is_concrete():
    assert issubclass(UnifiedCacheStore, HiCacheStorage)
    assert UnifiedCacheStore.__abstractmethods__ == frozenset()


@pytest.mark.parametrize(("name", "base", "ours"), overrides())
def test_every_call_of_the_base_class_fits(name, base, ours):
    """By position and by keyword, with and without what is optional."""
    theirs = inspect.signature(base).parameters.values()
    given = [p for p in theirs if p.kind is not inspect.Parameter.VAR_KEYWORD]
    required = [p for p in given if p.default is inspect.Parameter.empty]
    for chosen in (given, required):
        inspect.signature(ours).bind(*[p.name for p in chosen])
        first, *rest = [p.name for p in chosen]
        inspect.signature(ours).bind(first, **dict.fromkeys(rest))


def test_no_method_is_left_to_the_base():
    """A new method of the base class wants a decision: inherit on purpose, or override."""
    inherited = {name for name, base, ours in overrides() if ours is base}
    assert inherited == set()


def test_registration(supported_mix, extra_config, release):
    """Order and objects, as SGLang's own controller does it."""
    mix = MIXES[supported_mix]()
    controller = Controller(mix, extra_config)
    try:
        calls = [c for c in recorded_store.CALLS if c.name != "get_stats"]
        names = [call.name for call in calls]
        assert names[:2] == ["__init__", "register_mem_pool_host"]
        anchor = calls[1].args[0]
        wrapped = getattr(anchor, "anchor_entry", None) is not None
        grouped = release["registers"] == "group" and bool(mix.sidecars)
        assert wrapped == grouped
        assert controller.backend.mem_pool_host is mix.anchor
        v2 = [call.args for call in calls if call.name == "register_mem_host_pool_v2"]
        if v2:
            assert [(pool, name.value) for pool, name in v2] == [
                (pool, name) for name, pool in mix.pools.items()
            ]
            assert all(isinstance(name, PoolName) for _, name in v2)
        assert bool(v2) or not mix.sidecars
        told = hasattr(HiCacheStorage, "on_host_pools_registered")
        assert (names[-1] == "on_host_pools_registered") == told
    finally:
        controller.detach()


def query(name, **fields):
    return PoolTransfer(name=name, **fields)


def test_the_result_is_the_release_s_own(create):
    backend = create(kv_swa())
    result = backend.batch_exists_v2(KEYS, [query("swa")])
    assert type(result) is PoolTransferResult
    assert type(result.kv_hit_pages) is int and result.kv_hit_pages == 0
    fields = {field.name for field in dataclasses.fields(PoolTransferResult)}
    assert set(vars(result)) == fields
    if "restorable_prefix_pages" in fields:
        assert result.restorable_prefix_pages == []


def move(backend, mix, call, keys, count=None):
    """batch_set_v2 or batch_get_v2 for the first pages of the first sidecar."""
    sidecar = mix.sidecars[0]
    pages = len(keys) if count is None else count
    indices = torch.arange(pages * sidecar.pool.page_size, dtype=torch.int64)
    transfer = PoolTransfer(name=sidecar.name, keys=keys, host_indices=indices)
    return getattr(backend, call)([transfer])


def test_transfers_answer_a_real_bool_per_key(create):
    mix = kv_swa()
    backend = create(mix)
    assert move(backend, mix, "batch_set_v2", KEYS[:3]) == {"swa": [True] * 3}
    found = move(backend, mix, "batch_get_v2", KEYS)
    assert found == {"swa": [True, True, True, False]}
    assert all(type(ok) is bool for ok in found["swa"])
    # Up to 0.5.18 more host indices than keys can come.
    assert move(backend, mix, "batch_get_v2", KEYS[:2], count=4) == {"swa": [True] * 2}
    assert backend.batch_get_v2([]) == {}


def test_sglang_counts_our_answers_right(create):
    """With the release's own code, for the member of PoolName and for its text."""
    mix = kv_swa()
    backend = create(mix)
    move(backend, mix, "batch_set_v2", KEYS[:3])
    found = move(backend, mix, "batch_get_v2", KEYS)
    result = PoolTransferResult.empty()
    count = getattr(hicache_storage, "count_pool_hits", lambda answer: answer)
    result.update_extra_pool_hit_pages(count(found))
    assert result.extra_pool_hit_pages == {"swa": 3}


def test_v1_with_and_without_extra_info(create):
    mix = plain_kv()
    backend, info = create(mix), HiCacheStorageExtraInfo()
    indices = torch.arange(4 * host_pools.PAGE, dtype=torch.int64)
    assert backend.batch_set_v1(KEYS[:2], indices[:8], info) == [True] * 2
    assert backend.batch_exists(KEYS, info) == backend.batch_exists(KEYS) == 2
    assert backend.batch_get_v1(KEYS, indices, info) == [True, True, False, False]
    assert backend.batch_get_v1(keys=KEYS[:1], host_indices=indices[:4]) == [True]
    assert backend.exists(KEYS[0]) is True and backend.exists(KEYS[3]) is False


def test_prefix_keys_of_every_shape(create):
    """None, a list, and the 1-tuple that is the default of 0.5.10 and 0.5.11."""
    mix = plain_kv()
    backend = create(mix)
    indices = torch.arange(host_pools.PAGE, dtype=torch.int64)
    for prefix in (None, [], ["a"], (None,)):
        info = HiCacheStorageExtraInfo(prefix_keys=prefix)
        assert backend.batch_set_v1(KEYS[:1], indices, info) == [True]
        assert backend.batch_exists_v2(KEYS, None, info).kv_hit_pages == 1


def test_draft_calls_never_claim_success(create):
    """0.5.11 to 0.5.18 call them for drafts even with interface_v1."""
    backend = create(plain_kv())
    page = torch.zeros(8)
    assert backend.get("key", page) is None
    assert backend.batch_get(["a", "b"], [page, page]) == [None, None]
    assert (
        backend.set("key", page) is False and backend.batch_set(["a"], [page]) is False
    )


def test_metrics_and_clear(create):
    """get_stats() is this release's record; clear() takes what this model stored."""
    mix = plain_kv()
    backend = create(mix)
    indices = torch.arange(host_pools.PAGE, dtype=torch.int64)
    assert backend.batch_set_v1(KEYS[:1], indices) == [True]
    metrics = backend.get_stats()
    assert type(metrics).__name__ == "StorageMetrics"
    assert (metrics.backup_pgs, metrics.prefetch_pgs) == ([1], [])
    assert backend.exists(KEYS[0]) is True
    assert backend.clear() is True
    assert backend.exists(KEYS[0]) is False


def test_hit_policies_are_known():
    """A policy that the connector does not know would be judged as another one."""
    assert {policy.value for policy in PoolHitPolicy} <= {
        "all_pages",
        "trailing_pages",
        "block_groups",
    }


def test_a_pool_name_that_does_not_exist_yet(create):
    mix = kv_swa()
    backend = create(mix)
    backend.register_mem_host_pool_v2(host_pools.mha(heads=1), "brand_new")
    indices = torch.arange(host_pools.PAGE, dtype=torch.int64)
    new = PoolTransfer(name="brand_new", keys=KEYS[:1], host_indices=indices)
    assert backend.batch_set_v2([new]) == {"brand_new": [True]}
    backend.batch_set_v1(KEYS[:1], indices)
    assert backend.batch_exists_v2(KEYS, [query("brand_new")]).kv_hit_pages == 1
