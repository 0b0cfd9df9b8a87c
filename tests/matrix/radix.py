"""SGLang's unified radix tree with a sliding window, whole, on the CPU.

What a GPU does is done by torch instead: the copies between device and host pages, and
pinning host memory. Everything else is SGLang's own: pools, allocators, tree, controller.
"""

import importlib
import sys
import time
from array import array
from types import SimpleNamespace

import controller
import host_pools
import torch
from host_pools import PAGE

WINDOW = 2 * PAGE
TOKENS = 6 * PAGE
LAYERS = {"full": [0, 2], "swa": [1, 3]}
WAIT_S = 30.0
# By these a release reads the server's arguments once a server has published them.
PUBLISHED = {
    "get_disagg",
    "get_memory",
    "get_observability",
    "get_server_args",
    "get_serving",
    "get_spec",
}


class Arguments(SimpleNamespace):
    """The server's arguments; what a release asks for beyond these is not set."""

    def __getattr__(self, name):
        return None


PARALLEL = Arguments(
    **vars(controller.parallel(0, 1)),
    dcp_enabled=False,
    launch_world_size=1,
    world_group=SimpleNamespace(local_rank=0),
)


def first_module(*names):
    for name in names:
        try:
            return importlib.import_module(f"sglang.srt.mem_cache.{name}")
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(names[-1])


def arguments(extra_config) -> Arguments:
    return Arguments(
        **controller.cache_arguments({**extra_config, "prefetch_threshold": PAGE}),
        hicache_storage_prefetch_policy="wait_complete",
        hicache_ratio=2.0,
        radix_eviction_policy="lru",
    )


def replace_gpu(monkeypatch, args) -> None:
    """Copies by torch, nothing pinned, and the arguments where a server publishes them."""
    cls = host_pools.find("MHATokenToKVPoolHost")
    monkeypatch.setattr(cls, "backup_from_device_all_layer", _to_host)
    monkeypatch.setattr(cls, "load_to_device_per_layer", _to_device)
    pinned = Arguments(cudaHostRegister=_pinned, cudaHostUnregister=_pinned)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: pinned)
    loaded = [m for name, m in sys.modules.items() if name.startswith("sglang.srt.")]
    for module in loaded:
        if module.__name__.endswith("runtime_context"):
            continue
        for name in PUBLISHED.intersection(vars(module)):
            monkeypatch.setattr(module, name, lambda: args)
        if "get_parallel" in vars(module):
            monkeypatch.setattr(module, "get_parallel", lambda: PARALLEL)


def _pinned(*_) -> int:
    return 0


def _to_host(self, device_pool, host_indices, device_indices, io_backend, **_):
    for layer in range(self.layer_num):
        self.k_buffer[host_indices, layer] = device_pool.k_buffer[layer][device_indices]
        self.v_buffer[host_indices, layer] = device_pool.v_buffer[layer][device_indices]


def _to_device(self, device_pool, host_indices, device_indices, layer, io_backend, **_):
    device_pool.k_buffer[layer][device_indices] = self.k_buffer[host_indices, layer]
    device_pool.v_buffer[layer][device_indices] = self.v_buffer[host_indices, layer]


class Tree:
    """One radix tree over device pools of its own."""

    def __init__(self, extra_config, monkeypatch):
        args = arguments(extra_config)
        swa = importlib.import_module("sglang.srt.mem_cache.swa_memory_pool")
        allocators = first_module("allocator.swa", "swa_memory_pool")
        unified = importlib.import_module("sglang.srt.mem_cache.unified_radix_cache")
        importlib.import_module(
            "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler"
        )
        replace_gpu(monkeypatch, args)
        controller.prepare(0, 1)
        self.device = swa.SWAKVPool(
            size=256,
            size_swa=128,
            page_size=PAGE,
            dtype=torch.bfloat16,
            head_num=2,
            head_dim=8,
            swa_attention_layer_ids=LAYERS["swa"],
            full_attention_layer_ids=LAYERS["full"],
            device="cpu",
            **host_pools.accepted(swa.SWAKVPool, enable_kvcache_transpose=False),
        )
        self.allocator = allocators.SWATokenToKVPoolAllocator(
            256, 128, PAGE, torch.bfloat16, "cpu", self.device, False
        )
        params = self._parameters()
        self.tree = unified.UnifiedRadixCache(params)
        self.tree.init_hicache(
            **host_pools.accepted(
                self.tree.init_hicache, server_args=args, params=params
            )
        )

    def _parameters(self):
        module = importlib.import_module("sglang.srt.mem_cache.cache_init_params")
        kinds = first_module(
            "unified_cache_components", "unified_cache.components", "unified_cache"
        ).ComponentType
        wanted = {
            "disable": False,
            "req_to_token_pool": None,
            "token_to_kv_pool_allocator": self.allocator,
            "page_size": PAGE,
            "tp_cache_group": torch.distributed.group.WORLD,
            "sliding_window_size": WINDOW,
            "tree_components": (kinds.FULL, kinds.SWA),
        }
        return module.CacheInitParams(
            **host_pools.accepted(module.CacheInitParams, **wanted)
        )

    def layers(self):
        """(K, V) of every layer with the indices that tokens have in its pool."""
        for pool, windowed in (
            (self.device.full_kv_pool, False),
            (self.device.swa_kv_pool, True),
        ):
            for k, v in zip(pool.k_buffer, pool.v_buffer, strict=True):
                yield k, v, windowed

    def slots(self, full: torch.Tensor, windowed: bool) -> torch.Tensor:
        return self.allocator.full_to_swa_index_mapping[full] if windowed else full

    def prefill(self, tokens: array) -> torch.Tensor:
        """Slots with random keys and values for these tokens, and the tree told of them."""
        full = self.allocator.full_attn_allocator.alloc(len(tokens))
        swa = self.allocator.swa_attn_allocator.alloc(len(tokens))
        self.allocator.full_to_swa_index_mapping[full] = swa
        for k, v, windowed in self.layers():
            for buffer in (k, v):
                content = torch.randn(len(tokens), 2, 8).to(torch.bfloat16)
                buffer[self.slots(full, windowed)] = content
        self.tree.insert(
            self._params("InsertParams", key=self._key(tokens), value=full)
        )
        return full

    def contents(self, full: torch.Tensor) -> list[torch.Tensor]:
        """K and V of these tokens in every layer; of the last window where it slides."""
        found = []
        for k, v, windowed in self.layers():
            kept = full[-WINDOW:] if windowed else full
            slots = self.slots(kept, windowed)
            found += [k[slots].clone(), v[slots].clone()]
        return found

    def wait(self, done) -> None:
        """Let the scheduler's event loop run until then."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            self.tree.check_hicache_events()
            if done():
                return
            time.sleep(0.005)
        raise TimeoutError("the tree never got there")

    def flush(self) -> None:
        """Forget everything on device and host, as the server's flush does."""
        self.tree.reset()
        self.allocator.clear()
        for k, v, _ in self.layers():
            k.zero_()
            v.zero_()

    def on_device(self, tokens: array) -> int:
        """Tokens of the prefix that are in device slots."""
        at = self.match(tokens)
        if hasattr(at, "device_prefix_len"):
            return at.device_prefix_len
        return len(at.device_indices)

    def match(self, tokens: array):
        return self.tree.match_prefix(
            self._params("MatchPrefixParams", key=self._key(tokens))
        )

    def prefetch(self, tokens: array) -> int:
        """Tokens that came from storage into host memory."""
        at = self.match(tokens)
        self.tree.prefetch_from_storage(self._request(), at.last_host_node, tokens)
        self.wait(lambda: self.tree.check_prefetch_progress(self._request()))
        return self.tree.pop_prefetch_loaded_tokens(self._request())

    def _request(self):
        try:
            from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
        except ImportError:
            return "request"
        return CacheRequestHandle("request", 0)

    def load_back(self, tokens: array) -> torch.Tensor:
        """Device slots of the prefix, brought back from host memory."""
        at = self.match(tokens)
        request = Arguments(
            rid="request",
            last_node=at.last_device_node,
            swa_host_hit_length=at.swa_host_hit_length,
            mamba_host_hit_length=0,
            kv=Arguments(),
        )
        wanted = self._params(
            "InitLoadBackParams",
            best_match_node=at.best_match_node,
            host_hit_length=at.host_hit_length,
            req=request,
        )
        slots, node = self.tree.init_load_back(wanted)
        if isinstance(slots, int):  # from 0.5.22 a count; the path has the slots
            slots = self.tree.path_device_indices(node)
        self.tree.ready_to_load_host_cache()
        self.wait(lambda: not self.tree.ongoing_load_back)
        return slots

    def _params(self, name, **fields):
        module = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
        cls = getattr(module, name)
        return cls(**host_pools.accepted(cls, **fields))

    def _key(self, tokens):
        module = importlib.import_module("sglang.srt.mem_cache.radix_cache")
        return module.RadixKey(tokens)
