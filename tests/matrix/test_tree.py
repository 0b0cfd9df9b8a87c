"""Which pools SGLang's own radix trees bring to a storage backend, and which we turn down."""

import importlib
from importlib.util import find_spec
from types import SimpleNamespace

import host_pools
import pytest
import torch
from controller import Controller, cache_arguments, device_pool
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
        **cache_arguments(extra_config),
        hicache_storage_prefetch_policy="timeout",
        hicache_ratio=1.0,
        extra_metric_labels=None,
        file_storage_path=None,
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
    if not hasattr(module.UnifiedRadixCache, "init_hicache"):
        raise Reached(None)  # 0.5.11: this tree has no host cache at all
    tree = object.__new__(module.UnifiedRadixCache)
    wanted = [getattr(module.ComponentType, name) for name in ("FULL", "SWA")]
    tree.__dict__.update(
        page_size=host_pools.PAGE,
        components={kind: None for kind in wanted},
        sidecar_pool_specs=[],
        _enable_metrics_flag=False,
        _sliding_window_size=None,
    )
    tree.init_hicache(args, parameters(device))


def hiradix(device, args):
    module = importlib.import_module("sglang.srt.mem_cache.hiradix_cache")
    module.HiRadixCache(parameters(device), args)


@pytest.fixture
def builders(monkeypatch, extra_config):
    """SGLang's functions that build pools and controller stop there and say what they got."""
    if find_spec(
        "sglang.srt.runtime_context"
    ):  # where a server publishes its arguments
        context = importlib.import_module("sglang.srt.runtime_context")
        if hasattr(context._CONTEXT, "config_bag"):
            bag = lambda self, name: server(extra_config)  # noqa: E731
            monkeypatch.setattr(type(context._CONTEXT), "config_bag", bag)
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


def deepseek_v4():
    device = device_pool("DeepSeekV4TokenToKVPool")
    device.__dict__.update(swa_kv_pool=None, layer_mapping=[])
    return device


DEVICES = {"KV + SWA": sliding_window, "DeepSeek V4": deepseek_v4}
FIRST = {"DeepSeek V4": [0, 5, 12]}  # the first release that has such a pool at all
TREES = {"unified_radix_cache": unified, "hiradix_cache": hiradix}
REFUSAL = "HiRadixCache only supports MHA"


def evidence(mix, extra_config) -> dict[str, str]:
    """What each tree of the release does with this kind of model when storage is configured.

    The name of the storage that it asks for, "none", or "refused" where SGLang itself says
    that the tree is not for such a model. Any other error is one of this test.
    """
    device, args, found = DEVICES[mix](), server(extra_config), {}
    for name, tree in TREES.items():
        if not find_spec(f"sglang.srt.mem_cache.{name}"):
            continue
        try:
            tree(device, args)
            raise AssertionError(f"{name} built a cache without its pools")
        except Reached as reached:
            found[name] = reached.storage or "none"
        except ValueError as e:
            if not str(e).startswith(REFUSAL):
                raise
            found[name] = "refused"
    return found


@pytest.mark.parametrize("mix", MIXES)
def test_no_l3(mix, release, extra_config, builders, record_property):
    """With storage configured, SGLang's own trees make a controller without any, or none."""
    if mix in release["l3"]:
        pytest.skip(SERVED.format(release["version"]))
    record_property("mix", mix)
    record_property("verdict", "no L3 in SGLang")
    assert mix in DEVICES, "no tree is asked here: what shows that SGLang has no L3?"
    if release["number"] < FIRST.get(mix, []):
        with pytest.raises(LookupError, match="this release has no"):
            DEVICES[mix]()
        return
    found = evidence(mix, extra_config)
    assert found and set(found.values()) <= {"none", "refused"}


@pytest.mark.parametrize("mix", DEVICES)
def test_the_tree_asks_for_storage(mix, release, extra_config, builders):
    """The other way round, by the same way of asking."""
    if mix not in release["l3"]:
        pytest.skip("test_no_l3 shows that it does not")
    assert evidence(mix, extra_config)["unified_radix_cache"] == "dynamic"


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
