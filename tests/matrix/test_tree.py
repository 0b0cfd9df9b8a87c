"""Which pools SGLang's own radix trees bring to a storage backend, and which we turn down."""

import importlib
import json
from importlib.util import find_spec
from types import SimpleNamespace

import host_pools
import pytest
import recorded_store
import torch
from controller import Controller, device_pool
from mixes import MIXES

SERVED = "SGLang {} brings it to storage: test_controller.py moves it"


class Reached(Exception):
    """SGLang is about to build the controller; `storage` is the backend that it asks for."""

    def __init__(self, storage):
        super().__init__(storage)
        self.storage = storage


def server(extra_config) -> SimpleNamespace:
    """The server's arguments that the trees read: storage is asked for."""
    return SimpleNamespace(
        hicache_storage_backend="dynamic",
        hicache_storage_backend_extra_config=json.dumps(extra_config),
        hicache_storage_prefetch_policy="timeout",
        hicache_ratio=1.0,
        hicache_size=0,
        hicache_io_backend="kernel",
        hicache_mem_layout="page_first",
        hicache_write_policy="write_through",
        served_model_name="org/model",
        extra_metric_labels=None,
        kv_cache_dtype="auto",
        page_size=host_pools.PAGE,
    )


def parameters(device) -> SimpleNamespace:
    world = torch.distributed.group.WORLD
    return SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: device),
        page_size=host_pools.PAGE,
        tp_cache_group=world,
        attn_cp_cache_group=None,
        attn_tp_cache_group=None,
        pp_cache_group=None,
        pp_rank=0,
        pp_size=1,
        enable_metrics=False,
    )


def unified(device, args):
    """UnifiedRadixCache.init_hicache, up to where it would build the controller."""
    module = importlib.import_module("sglang.srt.mem_cache.unified_radix_cache")
    kinds = importlib.import_module("sglang.srt.mem_cache.unified_cache_components")
    if not hasattr(module.UnifiedRadixCache, "init_hicache"):
        raise Reached(None)  # 0.5.11: this tree has no host cache at all
    tree = object.__new__(module.UnifiedRadixCache)
    wanted = [getattr(kinds.ComponentType, name) for name in ("FULL", "SWA")]
    tree.__dict__.update(
        page_size=host_pools.PAGE,
        components={kind: None for kind in wanted},
        sidecar_pool_specs=[],
        _enable_metrics_flag=False,
    )
    tree.init_hicache(args, parameters(device))


def hiradix(device, args):
    module = importlib.import_module("sglang.srt.mem_cache.hiradix_cache")
    module.HiRadixCache(parameters(device), args)


@pytest.fixture
def builders(monkeypatch):
    """SGLang's functions that build pools and controller stop there and say what they got."""
    try:
        name = "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler"
        assembler = importlib.import_module(name)
    except ModuleNotFoundError:
        return

    def stop(**options):
        raise Reached(options["storage_backend"])

    for name in [n for n in vars(assembler) if n.startswith("build_")]:
        if name.endswith("_stack"):
            monkeypatch.setattr(assembler, name, stop)


def sliding_window():
    device = device_pool("SWAKVPool")
    layers = {0: (0, False), 1: (0, True)}
    device.__dict__.update(full_kv_pool=None, swa_kv_pool=None, layers_mapping=layers)
    return device


TREES = {
    "KV + SWA": sliding_window,
    "DeepSeek V4": lambda: device_pool("DeepSeekV4TokenToKVPool"),
}


def evidence(mix, extra_config) -> list[str]:
    """What each tree of the release does with this kind of model when storage is configured.

    The name of the storage that it asks for, "none", or the words with which SGLang itself
    refuses the model; nothing for a kind of model that the release does not know.
    """
    try:
        device = TREES[mix]()
    except LookupError:
        return []
    found, args = [], server(extra_config)
    for tree in (unified, hiradix):
        try:
            tree(device, args)
        except Reached as reached:
            found.append(reached.storage or "none")
        except ModuleNotFoundError as e:
            assert "sglang" in str(e)  # a tree that this release does not have
        except (ValueError, AssertionError, NotImplementedError) as e:
            found.append(f"refused: {e}")
    return found


@pytest.mark.parametrize("mix", MIXES)
def test_no_l3(mix, release, extra_config, builders, record_property):
    """With storage configured, SGLang's own trees make a controller without any, or none."""
    if mix in release["l3"]:
        pytest.skip(SERVED.format(release["version"]))
    record_property("mix", mix)
    record_property("verdict", "no L3 in SGLang")
    found = evidence(mix, extra_config)
    assert all(f == "none" or f.startswith("refused") for f in found)
    assert recorded_store.CALLS == []


@pytest.mark.parametrize("mix", TREES)
def test_the_tree_asks_for_storage(mix, release, extra_config, builders):
    """The other way round, so that the test above can fail."""
    if mix not in release["l3"]:
        pytest.skip("test_no_l3 shows that it does not")
    if not find_spec("sglang.srt.mem_cache.unified_cache_components"):
        pytest.skip("the tree wants a whole server; 0.5.13 to 0.5.16 run this")
    assert "dynamic" in evidence(mix, extra_config)


@pytest.mark.parametrize("mix", MIXES)
def test_refused(mix, release, extra_config, monkeypatch, record_property):
    """What SGLang can give of these pools is turned down when it attaches, with the reason."""
    if mix not in release.get("refused", {}):
        pytest.skip("nothing to refuse: test_controller.py moves what there is")
    reason = release["refused"][mix]
    record_property("mix", mix)
    record_property("verdict", f"refused: {reason}")
    if "page_first_direct" in reason:
        with pytest.raises(ValueError, match="MambaPoolHost only supports"):
            MIXES[mix]()  # SGLang itself has no other layout to give
        monkeypatch.setattr(host_pools, "LAYOUT", "page_first_direct")
    with pytest.raises(ValueError, match=reason):
        Controller(MIXES[mix](), extra_config)
