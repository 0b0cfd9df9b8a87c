"""The backend that the runs load: UnifiedCacheStore that writes its statistics and calls down.

Environment: GPU_E2E_STATS is a folder for counts-<rank>-<pid>.json and calls-<rank>-<pid>.jsonl;
GPU_E2E_SPOIL names a file that holds "<pool> <zero|truncate|delete>": after the next lookup that
hits, this pool's blocks are spoiled, so that reads fail which a lookup has just promised.
"""

import json
import os
import threading
from pathlib import Path

import blocks

from ucm.integration.sglang.unifiedcache_store import UnifiedCacheStore

STATS = Path(os.environ.get("GPU_E2E_STATS", "."))
SPOIL = Path(os.environ.get("GPU_E2E_SPOIL", "/nonexistent"))

# What a run's rows call it, and the connector's own count of it.
COUNTS = {
    "get pages": "loaded_pages",
    "get failed": "failed_load_pages",
    "get bytes": "loaded_bytes",
    "get seconds": "load_seconds",
    "set pages": "stored_pages",
    "set failed": "failed_store_pages",
    "set bytes": "stored_bytes",
    "set seconds": "store_seconds",
}


class Ledger:
    """The connector's statistics, on disk after every transfer."""

    def __init__(self) -> None:
        self.rank = 0
        self._lock = threading.Lock()

    def write(self, connector) -> None:
        path = STATS / f"counts-{self.rank}-{os.getpid()}.json"
        with self._lock:
            counts = {
                f"{pool} {name}": getattr(count, field)
                for pool, count in connector.statistics().items()
                for name, field in COUNTS.items()
            }
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(counts))
            fresh.replace(path)


class Calls:
    """SGLang's calls, one JSON line each: which keys, which pages, what came back.

    A key is its place in the order in which this process first saw it; runs are [first, count].
    """

    def __init__(self) -> None:
        self.rank = 0
        self._places: dict[str, int] = {}
        self._lock = threading.Lock()

    def write(self, call: str, **row) -> None:
        with self._lock:
            path = STATS / f"calls-{self.rank}-{os.getpid()}.jsonl"
            with path.open("a") as file:
                file.write(json.dumps({"call": call, **row}) + "\n")

    def keys(self, keys) -> list | None:
        if keys is None:
            return None
        with self._lock:
            return runs([self._places.setdefault(k, len(self._places)) for k in keys])

    def transfer(self, transfer, pools: dict) -> dict:
        name = text(transfer.name)
        tokens = getattr(pools.get(name), "page_size", 1) or 1
        # A placeholder says how many pages, not which.
        keys = transfer.keys
        if keys and len(set(keys)) < len(keys) or keys == ["__placeholder__"]:
            keys = f"{len(keys)} placeholders"
        source = getattr(transfer, "indices_from_pool", None)
        return {
            "pool": name,
            "policy": text(transfer.hit_policy),
            "keys": keys if isinstance(keys, str) else self.keys(keys),
            "pages": pages(transfer.host_indices, tokens),
            "from": text(source) if source else None,
        }


def text(name) -> str:
    return str(getattr(name, "value", name))


def pages(indices, tokens: int) -> list | None:
    """Host pages, from the first slot of each."""
    if indices is None:
        return None
    return runs([slot // tokens for slot in indices[::tokens].tolist()])


def runs(numbers: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for number in numbers:
        if found and number == sum(found[-1]):
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return found


def outcome(done) -> list[list[int]]:
    """Successes and failures in turn: [[1, 93]] is 93 pages that came."""
    found: list[list[int]] = []
    for ok in done:
        if found and found[-1][0] == int(ok):
            found[-1][1] += 1
        else:
            found.append([int(ok), 1])
    return found


LEDGER, CALLS = Ledger(), Calls()


class CountingStore(UnifiedCacheStore):
    def __init__(self, storage_config=None, context=None):
        super().__init__(storage_config, context)
        LEDGER.rank = CALLS.rank = storage_config.tp_rank
        section = storage_config.extra_config["kv_connector_extra_config"]
        self._root = Path(section["ucm_connector_config"]["storage_backends"])
        fields = ("tp_rank", "tp_size", "is_mla_model", "model_name")
        CALLS.write("init", **{name: getattr(storage_config, name) for name in fields})

    def _describe(self, call: str, pool, name: str) -> None:
        layout = None
        if self.connector is not None:
            anchor, sidecar = self.connector._anchor, self.connector.pools.get(name)
            store = anchor if name == "kv" else sidecar
            layout = None if store is None else list(store.layout.sizes)
        pages_held = getattr(pool, "size", 0) // (getattr(pool, "page_size", 1) or 1)
        CALLS.write(
            call,
            pool=name,
            kind=type(pool).__name__,
            page_size=getattr(pool, "page_size", None),
            pages=pages_held,
            components=layout,
        )

    def register_mem_pool_host(self, mem_pool_host):
        super().register_mem_pool_host(mem_pool_host)
        self._describe("register_mem_pool_host", mem_pool_host, "kv")

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = text(host_pool_name)
        self._describe("register_mem_host_pool_v2", host_pool, name)

    def batch_exists(self, keys, extra_info=None):
        found = super().batch_exists(keys, extra_info)
        CALLS.write("batch_exists", keys=CALLS.keys(keys), hit=found)
        self._spoil(found)
        return found

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        chain = CALLS.keys(keys)
        asked = [CALLS.transfer(t, self.registered_pools) for t in pool_transfers or []]
        found = super().batch_exists_v2(keys, pool_transfers, extra_info)
        extra = {text(k): v for k, v in (found.extra_pool_hit_pages or {}).items()}
        ends = getattr(found, "restorable_prefix_pages", None)
        CALLS.write(
            "batch_exists_v2",
            keys=chain,
            transfers=asked,
            hit=found.kv_hit_pages,
            pools=extra,
            ends=None if ends is None else runs(list(ends)),
        )
        self._spoil(found.kv_hit_pages)
        return found

    def _spoil(self, hit: int) -> None:
        if hit and SPOIL.is_file():
            pool, action = SPOIL.read_text().split()
            SPOIL.unlink()
            blocks.SPOIL[action](blocks.listing(self._root).get(pool, []))

    def _v1(self, call: str, keys, host_indices, extra_info):
        chain = CALLS.keys(keys)
        tokens = self.connector.mem_pool_host.page_size
        done = getattr(super(), call)(keys, host_indices, extra_info)
        LEDGER.write(self.connector)
        CALLS.write(
            call, keys=chain, pages=pages(host_indices, tokens), done=outcome(done)
        )
        return done

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        return self._v1("batch_get_v1", keys, host_indices, extra_info)

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        return self._v1("batch_set_v1", keys, host_indices, extra_info)

    def _v2(self, call: str, transfers, extra_info):
        asked = [CALLS.transfer(t, self.registered_pools) for t in transfers or []]
        done = getattr(super(), call)(transfers, extra_info)
        LEDGER.write(self.connector)
        results = {text(name): outcome(pages) for name, pages in done.items()}
        CALLS.write(call, transfers=asked, done=results)
        return done

    def batch_get_v2(self, transfers, extra_info=None):
        return self._v2("batch_get_v2", transfers, extra_info)

    def batch_set_v2(self, transfers, extra_info=None):
        return self._v2("batch_set_v2", transfers, extra_info)
