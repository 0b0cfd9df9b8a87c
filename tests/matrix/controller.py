"""SGLang's real cache controller on the CPU: its threads, its queues, the dynamic backend.

Releases differ in how a controller is told its rank and how a prefetch is driven; all of
that is here, decided by what the release has, never by its number.
"""

import hashlib
import importlib
import inspect
import json
import queue
import sys
import threading
import time
from array import array
from dataclasses import dataclass
from types import SimpleNamespace

import host_pools
import sglang.srt.managers.cache_controller as base
import sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller as hybrid
import torch
from host_pools import LAYERS, PAGE
from mixes import NODES, TOKENS, Mix, Sidecar, Slots, member
from recorded_store import calls

WAIT_S = 30.0
PLACEHOLDER = "__placeholder__"


def cache_arguments(extra_config: dict) -> dict:
    """The server's arguments with which a tree asks for our storage."""
    return {
        "hicache_storage_backend": "dynamic",
        "hicache_storage_backend_extra_config": json.dumps(extra_config),
        "hicache_size": 0,
        "hicache_io_backend": "kernel",
        "hicache_mem_layout": "page_first",
        "hicache_write_policy": "write_through",
        "hicache_host_memory_mode": "cache",
        "served_model_name": "org/model",
        "page_size": PAGE,
        "kv_cache_dtype": "auto",
    }


def parallel(rank: int, size: int) -> SimpleNamespace:
    """What get_parallel() says in a server with tensor parallelism only."""
    return SimpleNamespace(
        tp_rank=rank,
        tp_size=size,
        pp_rank=0,
        pp_size=1,
        attn_tp_rank=rank,
        attn_tp_size=size,
        attn_dp_rank=0,
        attn_dcp_size=1,
        attn_dcp_rank=0,
        attn_cp_rank=0,
        attn_cp_size=1,
    )


def prepare(rank: int, size: int) -> None:
    """Let this process be one rank of a server that runs on the CPU."""
    loaded = [m for name, m in sys.modules.items() if name.startswith("sglang.srt.")]
    for module in loaded:
        if vars(module).get("device_module") is torch.cuda:
            module.device_module = torch.cpu
    _use_python_hash()
    answers = {
        "get_parallel": parallel(rank, size),
        "get_tensor_model_parallel_rank": rank,
        "get_tensor_model_parallel_world_size": size,
        "get_pipeline_model_parallel_rank": 0,
        "get_pipeline_model_parallel_world_size": 1,
        "is_dp_attention_enabled": False,
    }
    for module in (base, hybrid):
        for name, answer in answers.items():
            if hasattr(module, name):
                setattr(module, name, lambda answer=answer: answer)


def _use_python_hash() -> None:
    """0.5.15 on hash pages in a C++ extension that would be compiled first: minutes.

    What is hashed is the same: the digest before, then each token as 4 bytes.
    """
    utils = sys.modules.get("sglang.srt.mem_cache.utils")
    if not hasattr(utils, "get_native_hash"):
        return

    def chain(tokens, prior=None, page_size=None):
        tokens = list(getattr(tokens, "token_ids", tokens))
        size, found = page_size or max(1, len(tokens)), []
        for first in range(0, len(tokens), size):
            page = array("I", tokens[first : first + size]).tobytes()
            prior = hashlib.sha256((prior or b"") + page).digest()
            found.append(prior.hex())
        return found if page_size else found[0]

    utils.get_native_hash = chain


def device_pool(kind: str):
    """What get_kvcache() gives: an object of the class that decides is_mla_model."""
    places = ("memory_pool", "swa_memory_pool", "deepseek_v4_memory_pool")
    for place in places:
        try:
            module = importlib.import_module(f"sglang.srt.mem_cache.{place}")
        except ModuleNotFoundError:
            continue
        if hasattr(module, kind):
            pool = object.__new__(getattr(module, kind))
            layers = {"layer_num": LAYERS, "start_layer": 0, "end_layer": LAYERS}
            pool.__dict__.update(device="cpu", size=64, **layers)
            pool.__dict__["register_layer_transfer_counter"] = lambda counter: None
            return pool
    raise LookupError(f"this release has no {kind}")


def page_hashes(tokens: list[int]) -> list[str]:
    """SGLang's own page hashes of these tokens."""
    get_hash_str = importlib.import_module("sglang.srt.mem_cache.hicache_storage")
    if not hasattr(get_hash_str, "get_hash_str"):
        get_hash_str = importlib.import_module("sglang.srt.mem_cache.utils")
    hashes, last = [], None
    for first in range(0, len(tokens), PAGE):
        last = get_hash_str.get_hash_str(tokens[first : first + PAGE], last)
        hashes.append(last[0] if isinstance(last, list) else last)
    return hashes


@dataclass
class Fetched:
    """How a prefetch ended, in SGLang's own counts of pages.

    hit: what it decided to load. counts: what came, by pool. pages: by pool, the numbers of
    the pages that were asked for; their bytes are in this pool's slots, from the first on.
    """

    hit: int
    counts: dict[str, int]
    pages: dict[str, range]
    slots: dict[str, Slots]


class Controller:
    """One rank's controller over the pools of a mix."""

    def __init__(self, mix: Mix, extra_config: dict, model: str = "org/model"):
        self.mix = mix
        device = device_pool(mix.kind)
        allocator = SimpleNamespace(get_kvcache=lambda: device)
        cls, self.host = self._class_and_pool()
        self.storage = {
            "storage_backend": "dynamic",
            "model_name": model,
            "prefetch_threshold": PAGE,
            "storage_backend_extra_config": extra_config,
        }
        world = torch.distributed.group.WORLD
        event = threading.Event()
        options = {**self.storage, "io_backend": "direct"}
        self.sglang = cls(allocator, self.host, PAGE, world, event, **options)

    def attach(self) -> None:
        """What SGLang does when storage is attached to a running server."""
        entries = {"host_pools": getattr(self.host, "entries", None)}
        attach = self.sglang.attach_storage_backend
        attach(**self.storage, **host_pools.accepted(attach, **entries))

    def _class_and_pool(self):
        """Without sidecars releases up to 0.5.20 use the plain controller on the bare pool."""
        if not self.mix.sidecars and not _plain_models_are_hybrid():
            return base.HiCacheController, self.mix.anchor
        return hybrid.HybridCacheController, self._group()

    def _group(self):
        entry, group = host_pools.find("PoolEntry"), host_pools.find("HostPoolGroup")
        sources = {sidecar.name: sidecar.source for sidecar in self.mix.sidecars}
        entries = [
            entry(
                **host_pools.accepted(
                    entry,
                    name=member(name),
                    host_pool=pool,
                    device_pool=None,
                    layer_mapper=lambda layer: layer,
                    is_primary_index_anchor=name == "kv",
                    share_indices_with_anchor=sources.get(name) == "kv",
                )
            )
            for name, pool in self.mix.pools.items()
        ]
        return group(entries)

    @property
    def backend(self):
        return self.sglang.storage_backend

    # ---- write ----

    def write(self, slots: dict[str, Slots], hashes: list[str], nodes=NODES) -> None:
        """Back up the nodes as the tree does; returns when SGLang has acknowledged all."""
        first = 0
        for count in nodes:
            end = first + count
            extra = list(self._backup(slots, hashes, first, end))
            pools = {"extra_pools": extra} if extra else {}
            tokens = list(range(first * PAGE + 1, end * PAGE + 1))
            indices = slots["kv"].pages(first, end)
            self.sglang.write_storage(indices, tokens, hashes[first:end], None, **pools)
            self._acknowledged(self.sglang.ack_backup_queue)
            first = end

    def _backup(self, slots, hashes, first, end):
        for sidecar in self.mix.sidecars:
            if sidecar.source == "kv":  # the controller fills in keys and slots
                yield sidecar.transfer()
                continue
            start = max(first, end - sidecar.window)
            keys, indices = hashes[start:end], slots[sidecar.name].pages(start, end)
            if sidecar.source:
                indices = None
            yield sidecar.transfer(keys=keys, host_indices=indices)

    def _acknowledged(self, acks: queue.Queue):
        return acks.get(timeout=WAIT_S)

    # ---- prefetch ----

    def prefetch(self, tokens: list[int]) -> Fetched:
        """Ask for these tokens and take what comes, as the scheduler would."""
        early = "host_indices" in inspect.signature(self.sglang.prefetch).parameters
        slots = self.mix.allocate()
        extra = [self._query(sidecar, slots) for sidecar in self.mix.sidecars]
        options = {"new_input_tokens": tokens, "last_hash": None, "prefix_keys": None}
        if extra:
            options["extra_pools"] = extra
        parameters = inspect.signature(self.sglang.prefetch).parameters
        if "handle" in parameters:
            from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
            from sglang.srt.mem_cache.radix_cache import RadixKey

            options["handle"] = CacheRequestHandle("request", 0)
            options["new_input_tokens"] = RadixKey(array("q", tokens))
        else:
            options["request_id"] = "request"
        if early:
            options["host_indices"] = slots["kv"].indices
        operation = self.sglang.prefetch(**options)
        hit, counts = self._hit(operation, early), {}
        if hit:
            if not early:
                operation.host_indices = slots["kv"].pages(0, hit)
                self._stage(operation, slots, hit)
                self.sglang.prefetch_buffer.put(operation)
            counts = self._finished(operation)
        pages = {"kv": range(hit)}
        for sidecar in self.mix.sidecars:
            window = sidecar.window or hit
            pages[sidecar.name] = range(max(0, hit - window), hit)
        return Fetched(hit, counts, pages, slots)

    def _query(self, sidecar: Sidecar, slots):
        keys = [PLACEHOLDER] * sidecar.window if sidecar.window else None
        indices = None
        if sidecar.window and not sidecar.source and not _staging_comes_late():
            indices = slots[sidecar.name].pages(0, sidecar.window)
        return sidecar.transfer(keys=keys, host_indices=indices)

    def _hit(self, operation, early: bool) -> int:
        """Pages that SGLang will load; 0 when it gave the request up."""
        revoked = getattr(self.sglang, "prefetch_revoke_queue", None)
        hits = getattr(self.sglang, "prefetch_hit_queue", None)
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if revoked is not None and not revoked.empty():
                revoked.get()
                return 0
            if hits is not None and not hits.empty():
                found = hits.get()
                assert found is operation
                return found.storage_hit_count // PAGE
            if early and getattr(operation, "hash_value", None):
                return len(operation.hash_value)
            time.sleep(0.005)
        raise TimeoutError("SGLang never answered the storage query")

    def _stage(self, operation, slots, hit: int) -> None:
        """Late releases allocate what a sidecar needs once the hit is known."""
        by_name = {sidecar.name: sidecar for sidecar in self.mix.sidecars}
        for transfer in getattr(operation, "pool_transfers", None) or []:
            sidecar = by_name[_text(transfer.name)]
            if sidecar.window and not sidecar.source and _staging_comes_late():
                count = min(hit, sidecar.window)
                transfer.host_indices = slots[sidecar.name].pages(0, count)

    def _finished(self, operation) -> dict[str, int]:
        """Wait for the end of the transfer; returns the pages that came, by pool."""
        acks = getattr(self.sglang, "ack_prefetch_queue", None)
        counts: dict[str, int] = {}
        while acks is not None:
            ack = self._acknowledged(acks)
            hits = _by_text(ack.pool_hits or {})
            if ack.completed_tokens is not None:
                # Pools that follow the anchor are folded into its count.
                names = ["kv", *self._names("kv")]
                hits = dict.fromkeys(names, ack.completed_tokens // PAGE)
            elif hits:
                hits = {name: hits[name] for name in self._names("", "swa")}
            counts |= hits
            if ack.completed_req:
                return counts
        wanted, deadline = len(operation.hash_value) * PAGE, time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            # Set last where it exists; up to 0.5.12 the anchor's pages come last.
            whole = operation.completed_tokens == wanted
            if getattr(operation, "pool_transfers_done", whole):
                return self._counted(operation)
            if self._given_up(operation):
                return self._counted(operation)
            time.sleep(0.005)
        raise TimeoutError("SGLang never finished the prefetch")

    def _names(self, *sources: str) -> list[str]:
        return [s.name for s in self.mix.sidecars if s.source in sources]

    def _given_up(self, operation) -> bool:
        """Up to 0.5.12 nothing says that a transfer ended early: its thread waits again."""
        if hasattr(operation, "pool_transfers_done"):
            return False
        reads = [call for call in calls("batch_get_v1") if call.result is not None]
        return bool(reads) and not all(reads[-1].result)

    def _counted(self, operation) -> dict[str, int]:
        counts = {"kv": operation.completed_tokens // PAGE}
        result = getattr(operation, "pool_storage_result", None)
        return counts | _by_text(getattr(result, "extra_pool_hit_pages", {}))

    # ---- end ----

    def detach(self) -> list[threading.Thread]:
        """Returns threads that outlived it."""
        self.sglang.detach_storage_backend()
        targets = [(t, getattr(t, "_target", None)) for t in threading.enumerate()]
        return [
            t for t, run in targets if getattr(run, "__self__", None) is self.sglang
        ]


def tokens_of(seed: int) -> list[int]:
    return [1 + (seed * 7919 + i) % 50000 for i in range(TOKENS)]


def _plain_models_are_hybrid() -> bool:
    """From 0.5.21 there is one radix tree and it knows only the hybrid controller."""
    try:
        importlib.import_module("sglang.srt.mem_cache.hiradix_cache")
    except ModuleNotFoundError:
        return True
    return False


def _staging_comes_late() -> bool:
    """From 0.5.20 the slots of trailing pools are allocated after the query."""
    return (
        "handle" in inspect.signature(hybrid.HybridCacheController.prefetch).parameters
    )


def _by_text(counts: dict) -> dict[str, int]:
    return {_text(name): count for name, count in counts.items()}


def _text(name) -> str:
    return getattr(name, "value", name)
