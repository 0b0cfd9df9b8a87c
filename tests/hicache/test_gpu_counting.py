"""The backend of the GPU runs: it answers as UnifiedCacheStore does, writes counts and calls down."""

import importlib
import json
import os
import sys
from pathlib import Path

import hicache_kit as kit
import pytest
from hicache_kit import PoolName

ROOT = Path(__file__).resolve().parents[2]
SWA = PoolName.SWA


@pytest.fixture
def counting(tmp_path, monkeypatch):
    """The module as an engine loads it, and the folder it writes to."""
    monkeypatch.syspath_prepend(str(ROOT / "ci" / "gpu"))
    monkeypatch.setenv("GPU_E2E_STATS", str(tmp_path))
    monkeypatch.setenv("GPU_E2E_SPOIL", str(tmp_path / "spoil"))
    yield importlib.import_module("counting_store")
    for name in ("counting_store", "blocks"):
        sys.modules.pop(name, None)


@pytest.fixture
def store(site, counting):
    """SWA beside KV; three keys written."""
    config = site.config()
    options = config.extra_config["kv_connector_extra_config"]["ucm_connector_config"]
    options["storage_backends"] = options["storage_backends"][0]
    made = counting.CountingStore(config, {})
    site._attached.append(made)
    made.anchor, made.swa = kit.mha(), kit.mha()
    made.register_mem_pool_host(made.anchor)
    made.register_mem_host_pool_v2(made.anchor, PoolName.KV)
    made.register_mem_host_pool_v2(made.swa, SWA)
    kit.fill(made.anchor, range(3))
    kit.fill(made.swa, range(3))
    names = kit.keys(3)
    kit.put(made, SWA, made.swa, names, range(3))
    kit.put_kv(made, made.anchor, names, range(3))
    return made


def counts(folder):
    return json.loads((folder / f"counts-0-{os.getpid()}.json").read_text())


def calls(folder):
    lines = (folder / f"calls-0-{os.getpid()}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_pages_and_bytes_are_counted_by_pool(store, tmp_path):
    names = kit.keys(3)
    assert store.batch_get_v1(names, kit.slots(store.anchor, range(3))) == [True] * 3
    wanted = [*names[1:], "f" * 64]
    done = store.batch_get_v2([kit.transfer(SWA, store.swa, wanted, range(3))])
    assert done == {SWA: [True, True, False]}
    found = counts(tmp_path)
    page = kit.page_bytes(store.swa)
    assert (found["kv set pages"], found["kv get pages"]) == (3, 3)
    assert (found["swa get pages"], found["swa get failed"]) == (2, 1)
    assert found["swa get bytes"] == 2 * page and found["swa get seconds"] > 0


def test_calls_are_written_down_with_keys_and_pages(store, tmp_path):
    names = kit.keys(3)
    store.batch_exists_v2(names, [kit.query(SWA, kit.TRAILING, 2)])
    *_, written, query = calls(tmp_path)
    assert written == {
        "call": "batch_set_v1",
        "keys": [[0, 3]],
        "pages": [[0, 3]],
        "done": [[1, 3]],
    }
    assert (query["hit"], query["keys"]) == (3, [[0, 3]])
    assert query["transfers"] == [
        {
            "pool": "swa",
            "policy": "trailing_pages",
            "keys": "2 placeholders",
            "pages": None,
            "from": None,
        }
    ]


def test_a_spoilt_pool_loses_its_blocks_after_the_lookup(store, tmp_path):
    (tmp_path / "spoil").write_text("swa delete")
    names, asked = kit.keys(3), [kit.query(SWA, kit.TRAILING, 2)]
    assert store.batch_exists_v2(names, asked).kv_hit_pages == 3
    done = store.batch_get_v2([kit.transfer(SWA, store.swa, names, range(3))])
    assert done == {SWA: [False] * 3} and not (tmp_path / "spoil").exists()
    assert store.batch_exists_v2(names, asked).kv_hit_pages == 0
