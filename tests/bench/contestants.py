"""Who is measured: each turns a set or a get of some pages into one function to be timed.

They all work on the same pages of SGLang's own host pools, and read the same files.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from kernel import FileOps, Kernel
from workloads import FOLDER_DIGITS, KV, MODEL, Pool, Site, Workload

sys.path.append(str(Path(__file__).parents[1] / "hicache"))

import hicache_kit as kit  # noqa: E402
from sglang.srt.mem_cache.pool_host import base as host_pools  # noqa: E402

# SGLang leaves a server 10 GiB; run.py has looked whether these small pools fit.
host_pools.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
POISON = 0xEE
USUAL_TORCH_THREADS = torch.get_num_threads()

Timed = Callable[[], object]


class Wrong(Exception):
    """A contestant moved other bytes, or gave another answer, than it should have."""


def host_pool(pool: Pool, pages: int):
    """SGLang's host pool with this many pages, its buffer on a page border."""
    made = _build(pool, pages)
    if pool.kind == "mamba" or made.kv_buffer.data_ptr() % 4096 == 0:
        return made
    return kit.aligned(made)


def _build(pool: Pool, pages: int):
    size, place = pool.components[0], {"page": pool.tokens, "pages": pages}
    if pool.kind == "mha":
        width = size // (pool.layers * pool.tokens * 2)
        heads = {"heads": 1, "k_dim": width, "v_dim": width}
        return kit.mha(layers=pool.layers, **heads, **place)
    if pool.kind == "mamba" and pool.layers == 23:
        shapes = {"temporal": (9, 128, 256), "convs": ((6912, 3),)}
        return kit.mamba(layers=23, pages=pages, **shapes)
    if pool.kind == "mamba":
        shapes = {"temporal": (2, 3, 25), "convs": ((16, 3),)}
        return kit.mamba(layers=2, pages=pages, **shapes)
    row = size // pool.layers
    if pool.kind == "state":
        shape = {"ring": 8, "width": row // 32}
        return kit.state(pool.name, layers=pool.layers, **shape, **place)
    return kit.paged(pool.name, layers=pool.layers, row=row, **place)


class Pages:
    """The pages of one host pool and the bytes that they should hold."""

    def __init__(self, pool: Pool, pages: int, seed: int) -> None:
        self.pool, self.count = pool, pages
        self.host = host_pool(pool, pages)
        pointers, sizes = self.host.get_page_buffer_meta(self.slots(pages))
        width = len(pool.components)
        if tuple(sizes[:width]) != pool.components or len(sizes) != width * pages:
            raise Wrong(f"{pool.name}: pages of {sizes[:width]}, not {pool.components}")
        self.pointers = np.array(pointers, dtype=np.uint64).reshape(pages, width)
        words = np.random.default_rng(seed).integers(
            0, 2**63, pages * pool.page_bytes // 8 + 1, dtype=np.int64
        )
        data = words.view(np.uint8)[: pages * pool.page_bytes]
        self.truth = data.reshape(pages, pool.page_bytes)

    def slots(self, pages: int) -> torch.Tensor:
        return torch.arange(pages * self.host.page_size, dtype=torch.int64)

    def _pieces(self, pages: int):
        """(address in the pool, address in truth, size) of every component."""
        for page in range(pages):
            at = self.truth[page].ctypes.data
            sizes = self.pool.components
            for address, size in zip(self.pointers[page].tolist(), sizes, strict=True):
                yield address, at, size
                at += size

    def fill(self) -> None:
        for address, truth, size in self._pieces(self.count):
            ctypes.memmove(address, truth, size)

    def poison(self, pages: int) -> None:
        for address, _, size in self._pieces(pages):
            ctypes.memset(address, POISON, size)

    def check(self, pages: int, who: str) -> None:
        for number, (address, truth, size) in enumerate(self._pieces(pages)):
            if _LIBC.memcmp(address, truth, size):
                page = number // len(self.pool.components)
                raise Wrong(f"{who}: page {page} of {self.pool.name} has other bytes")

    def check_files(self, paths: Sequence[str], who: str) -> None:
        for page, path in enumerate(paths):
            found = np.fromfile(path, dtype=np.uint8)
            if not np.array_equal(found, self.truth[page]):
                raise Wrong(f"{who}: {path} does not hold page {page}")


class Contestant:
    """start(): all that is not the contestant's own work, then the function to be timed."""

    def __init__(self, site: Site, pages: Sequence[Pages]) -> None:
        self.site, self.pages = site, pages

    def start(self, op: str, names: Sequence[str]) -> Timed:
        raise NotImplementedError

    def paths(self, pages: Pages, names: Sequence[str]) -> list[str]:
        """Where it keeps these blocks."""
        return self.site.paths(pages.pool, names)

    def close(self) -> None:
        """End its threads."""


def storage_config(site: Site, extra: dict):
    return kit.HiCacheStorageConfig(
        **{"tp_rank": site.rank, "tp_size": site.ranks, "pp_rank": 0, "pp_size": 1},
        **{"attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False},
        **{"enable_storage_metrics": False, "is_page_first_layout": True},
        model_name=MODEL,
        extra_config=extra,
    )


def store_options(threads: int, engine: str = "psync", direct: bool = False) -> dict:
    """The store's settings in every comparison that fixes the number of threads."""
    return {
        "data_dir_shard_bytes": FOLDER_DIGITS,
        "posix_data_trans_concurrency": threads,
        "posix_lookup_concurrency": threads,
        "posix_io_engine": engine,
        "io_direct": direct,
    }


def attach(site: Site, hosts: dict, options: dict):
    """The connector of the tree under test, as SGLang attaches it; {"kv": ...} if physical."""
    config = {"storage_backends": [site.backend], **options}
    extra = {
        "interface_v1": 1,
        "kv_connector_extra_config": {
            "ucm_connector_name": "UcmPipelineStore",
            "ucm_connector_config": config,
        },
    }
    store = kit.UnifiedCacheStore(storage_config(site, extra), {})
    anchor = hosts.get(KV) or kit.logical()
    store.register_mem_pool_host(anchor)
    store.register_mem_host_pool_v2(anchor, KV)
    for name, host in hosts.items():
        if name != KV:
            store.register_mem_host_pool_v2(host, name)
    store.on_host_pools_registered()
    return store


class Calls(Contestant):
    """A HiCache storage backend through SGLang's own v2 calls."""

    store = None

    def start(self, op: str, names: Sequence[str]) -> Timed:
        transfers = [
            kit.PoolTransfer(
                name=p.pool.name, keys=list(names), host_indices=p.slots(len(names))
            )
            for p in self.pages
        ]
        call = getattr(self.store, f"batch_{op}_v2")
        return lambda: self._judge(call(transfers), len(names))

    def _judge(self, answer: dict, count: int) -> None:
        for pages in self.pages:
            done = answer[pages.pool.name]
            if list(done) != [True] * count:
                bad = list(done).count(False)
                raise Wrong(f"{bad} of {count} pages of {pages.pool.name} failed")


class Series(Calls):
    """The connector. The primary KV goes through the v1 calls, as in SGLang."""

    def __init__(self, site, pages, threads, engine="psync", direct=False) -> None:
        super().__init__(site, pages)
        hosts = {p.pool.name: p.host for p in pages}
        self.store = attach(site, hosts, store_options(threads, engine, direct))

    def start(self, op: str, names: Sequence[str]) -> Timed:
        if self.pages[0].pool.name != KV:
            return super().start(op, names)
        call = getattr(self.store, f"batch_{op}_v1")
        keys, slots = list(names), self.pages[0].slots(len(names))
        return lambda: self._judge({KV: call(keys, slots)}, len(keys))

    def close(self) -> None:
        self.store.close()


class HiCacheFile(Calls):
    """SGLang's own file backend, as it ships."""

    def __init__(self, site, pages) -> None:
        from sglang.srt.mem_cache.hicache_storage import HiCacheFile as Backend

        super().__init__(site, pages)
        os.environ.pop("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", None)
        self.store = Backend(storage_config(site, {}), site.file_backend)
        anchor = pages[0].host if pages[0].pool.name == KV else kit.logical()
        self.store.register_mem_pool_host(anchor)
        for p in pages:
            self.store.register_mem_host_pool_v2(p.host, p.pool.name)

    def paths(self, pages: Pages, names: Sequence[str]) -> list[str]:
        return self.site.file_paths(pages.pool, names)


class HiCacheFileWide(HiCacheFile):
    """With torch's usual number of threads, for its copies of pages."""

    def start(self, op: str, names: Sequence[str]) -> Timed:
        move = super().start(op, names)

        def run() -> None:
            torch.set_num_threads(USUAL_TORCH_THREADS)
            try:
                move()
            finally:
                torch.set_num_threads(1)

        return run


def open_store(site: Site, pool: Pool, options: dict, folder: str | None = None):
    """One PosixStore without the connector, in the tree on sys.path."""
    config = {
        "store_pipeline": "Posix",
        "storage_backends": [folder or site.folder(pool)],
        "device_id": 0,
        "tensor_size": pool.stored[0],
        "shard_size": pool.page_bytes,
        "block_size": pool.page_bytes,
        **options,
    }
    return kit.UcmPipelineStore(config)


class Store(Contestant):
    """The raw store: ids and pointers are made beforehand."""

    def __init__(self, site, pages, threads, engine="psync", direct=False) -> None:
        super().__init__(site, pages)
        options = store_options(threads, engine, direct)
        self.stores = [open_store(site, p.pool, options) for p in pages]

    def start(self, op: str, names: Sequence[str]) -> Timed:
        count, jobs = len(names), []
        for store, pages in zip(self.stores, self.pages, strict=True):
            move = store.load_data if op == "get" else store.dump_data
            pointers = np.ascontiguousarray(pages.pointers[:count])
            arguments = (self.site.ids(pages.pool, names), [0] * count, pointers)
            jobs.append((store, move, arguments))

        def run() -> None:
            tasks = [(store, move(*arguments)) for store, move, arguments in jobs]
            for store, task in tasks:
                store.wait(task)

        return run

    def close(self) -> None:
        self.stores.clear()


class Bare(Contestant):
    """kernel.c: the same system calls and nothing else."""

    def __init__(self, site, pages, threads, build: Path, direct=False) -> None:
        super().__init__(site, pages)
        self.kernel, self.direct = Kernel(build, threads), direct

    def ops(self, names: Sequence[str]) -> FileOps:
        """Files of every pool, in the order in which a backend gets them."""
        parts = []
        for pages in self.pages:
            part = FileOps.of(
                self.paths(pages, names),
                pages.pool.page_bytes,
                pages.pointers[: len(names)],
                pages.pool.components,
            )
            parts.append(part)
        return FileOps.join(parts)

    def start(self, op: str, names: Sequence[str]) -> Timed:
        ops = self.ops(names)

        def run() -> None:
            self.kernel.run(op, ops, self.direct)
            if not ops.done.all():
                raise Wrong(f"system calls failed: {ops.errors()}")

        return run

    def close(self) -> None:
        self.kernel.close()


def contestant(name: str, site, workload: Workload, pages, threads, direct, build):
    """By the name that the tables show."""
    if name == "HiCacheFile":
        return HiCacheFileWide(site, pages)
    if name == "HiCacheFile, 1 torch thread":
        return HiCacheFile(site, pages)
    if name == "C":
        return Bare(site, pages, threads, build, direct)
    kind = Series if name.startswith("series") else Store
    engine = "aio" if name.endswith("aio") else "psync"
    return kind(site, pages, threads, engine, direct)
