"""Store DeepSeek V4 Flash's six pools through SGLang's own host pools, read them back elsewhere.

The first process stores random pages. A second one looks them up, loads them into other,
poisoned pages, compares every byte, truncates one block of each pool and expects a miss.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch

PAGE_TOKENS = 256
PAGES = 8
POISON = 0xA5
KEYS = [f"{page:064x}" for page in range(PAGES)]


@dataclass(frozen=True)
class V4Pool:
    """One pool of DeepSeek V4 Flash: `layers` rows of `row` bytes make a page.

    The sizes are those of the feature request (docs/design.md).
    """

    name: str
    layers: int
    row: int
    state_ring: int = 0

    @property
    def namespace(self) -> str:
        return f"{self.name}_{self.layers * self.row}x1"


POOLS = [
    V4Pool("swa", 44, 149760),
    V4Pool("deepseek_v4_c4", 21, 37440),
    V4Pool("deepseek_v4_c4_indexer", 21, 8448),
    V4Pool("deepseek_v4_c4_state", 21, 131072, state_ring=8),
    V4Pool("deepseek_v4_c4_indexer_state", 21, 32768, state_ring=8),
    V4Pool("deepseek_v4_c128", 20, 1728),
]


def host_pool(pool: V4Pool):
    """SGLang's host pool with twice PAGES pages, page_first, on the CPU."""
    from sglang.srt.mem_cache.memory_pool_host import (
        DeepSeekV4PagedHostPool,
        DeepSeekV4StateHostPool,
    )

    place = {"layout": "page_first", "pin_memory": False}
    if not pool.state_ring:
        rows = [torch.zeros((1, pool.row), dtype=torch.uint8)] * pool.layers
        return DeepSeekV4PagedHostPool(
            pool.name, rows, pool.row, 2 * PAGES, PAGE_TOKENS, **place
        )
    score = torch.zeros((pool.state_ring, pool.row // pool.state_ring // 4))
    state = SimpleNamespace(
        ring_size=pool.state_ring,
        swa_page_size=PAGE_TOKENS,
        kv_score_buffer=SimpleNamespace(kv_score=score),
    )
    return DeepSeekV4StateHostPool(
        pool.name, [state] * pool.layers, 2 * PAGES, PAGE_TOKENS, **place
    )


def backend(root: Path):
    """The patched backend as SGLang makes it, with the six pools registered."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

    from ucm.integration.sglang.unifiedcache_store import UnifiedCacheStore

    extra = {
        "interface_v1": 1,
        "kv_connector_extra_config": {
            "ucm_connector_name": "UcmPipelineStore",
            "ucm_connector_config": {"storage_backends": str(root)},
        },
    }
    config = HiCacheStorageConfig(
        **{"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1},
        **{"attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": True},
        **{"enable_storage_metrics": False, "is_page_first_layout": True},
        model_name="deepseek-ai/DeepSeek-V4-Flash",
        extra_config=extra,
    )
    store = UnifiedCacheStore(config, {})
    anchor = LogicalHostPool(2 * PAGES * PAGE_TOKENS, PAGE_TOKENS, layout="page_first")
    store.register_mem_pool_host(anchor)
    store.register_mem_host_pool_v2(anchor, "kv")
    pools = {pool.name: host_pool(pool) for pool in POOLS}
    for name, pool in pools.items():
        store.register_mem_host_pool_v2(pool, name)
    return store, pools


def transfer(name: str, first_page: int):
    from sglang.srt.mem_cache.hicache_storage import PoolTransfer

    slots = torch.arange(first_page * PAGE_TOKENS, (first_page + PAGES) * PAGE_TOKENS)
    return PoolTransfer(name=name, keys=KEYS, host_indices=slots)


def pages_of(pool, first_page: int) -> torch.Tensor:
    """The bytes of PAGES pages, shape (pages, bytes of a page)."""
    return pool.kv_buffer[first_page : first_page + PAGES].reshape(PAGES, -1)


def random_pages(number: int, pool: V4Pool) -> torch.Tensor:
    """The same bytes in both processes."""
    source = torch.Generator().manual_seed(number)
    shape = (PAGES, pool.layers * pool.row)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=source)


def write(root: Path) -> dict:
    store, pools = backend(root)
    speed = {}
    for number, pool in enumerate(POOLS):
        pages_of(pools[pool.name], 0).copy_(random_pages(number, pool))
        start = time.perf_counter()
        stored = store.batch_set_v2([transfer(pool.name, 0)])[pool.name]
        speed[pool.name] = time.perf_counter() - start
        assert stored == [True] * PAGES, f"{pool.name}: stored {stored}"
    store.close()
    return speed


def read(root: Path) -> dict:
    """Per pool: seconds to load, and what was wrong ("" when every byte is right)."""
    store, pools = backend(root)
    hit = store.batch_exists_v2(KEYS, [transfer(pool.name, 0) for pool in POOLS])
    assert hit.kv_hit_pages == PAGES, f"looked up {PAGES} pages, hit {hit}"
    rows = {}
    for number, pool in enumerate(POOLS):
        loaded = pages_of(pools[pool.name], PAGES).fill_(POISON)
        start = time.perf_counter()
        result = store.batch_get_v2([transfer(pool.name, PAGES)])[pool.name]
        seconds = time.perf_counter() - start
        same = torch.equal(loaded, random_pages(number, pool))
        fault = "" if result == [True] * PAGES and same else f"get {result}, {same=}"
        rows[pool.name] = (seconds, fault or truncated(store, root, pool))
    store.close()
    return rows


def truncated(store, root: Path, pool: V4Pool) -> str:
    """Halve one block on disk: exactly that page must be a miss, in lookup and in load."""
    size = pool.layers * pool.row
    folder = root / "sglang_v2" / pool.namespace
    blocks = [p for p in folder.rglob("*") if p.is_file() and p.stat().st_size == size]
    if len(blocks) != PAGES:
        return f"{folder} holds {len(blocks)} blocks"
    with blocks[0].open("r+b") as file:
        file.truncate(size // 2)
    hit = store.batch_exists_v2(KEYS, [transfer(pool.name, 0)])
    result = store.batch_get_v2([transfer(pool.name, PAGES)])[pool.name]
    if result.count(False) != 1 or hit.kv_hit_pages != result.index(False):
        return f"one block truncated: lookup {hit}, load {result}"
    return ""


def child(role: str, root: Path) -> dict:
    """Run one half in a process of its own; its log lines show only when it fails."""
    command = [sys.executable, __file__, "--role", role, "--root", str(root)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        sys.exit(f"demo: the {role} process failed\nnext: read its output above")
    return json.loads(done.stdout.splitlines()[-1])


def table(written: dict, found: dict) -> bool:
    head = ("namespace", "pages", "bytes", "store MB/s", "load MB/s")
    print("{:<46} {:>5} {:>9} {:>10} {:>10}  verdict".format(*head))
    for pool in POOLS:
        size = PAGES * pool.layers * pool.row
        seconds, fault = found[pool.name]
        print(
            f"{pool.namespace:<46} {PAGES:>5} {size // PAGES:>9} "
            f"{size / written[pool.name] / 1e6:>10.0f} {size / seconds / 1e6:>10.0f}  "
            f"{fault or 'equal, truncated block is a miss'}"
        )
    return not any(fault for _, fault in found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["write", "read"], help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    if args.role:
        print(json.dumps({"write": write, "read": read}[args.role](args.root)))
        return 0
    with tempfile.TemporaryDirectory(prefix="ucm-demo-") as scratch:
        good = table(child("write", Path(scratch)), child("read", Path(scratch)))
    print("demo: ok\nnext: make test" if good else "demo: FAILED, see the verdicts")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
