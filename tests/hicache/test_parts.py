"""The connector's parts, each alone: with no part that a later entry of the series brings."""

import hashlib
import os
from dataclasses import asdict

import hicache_kit as kit
import pytest
import test_config
import test_pools
import torch


def test_digests_are_those_of_python():
    """Every length around MD5's block borders, in batches that fill the lanes or do not."""
    from ucm.store.pipeline.ucmpipelinestore import Md5Digests

    texts = ["ä" * (length // 2) + "a" * (length % 2) for length in range(140)]
    for some in (texts, texts[:3], texts[:1], []):
        wanted = [hashlib.md5(f"{text}_0_1".encode()).digest() for text in some]
        assert Md5Digests(some, "_0_1") == wanted


@pytest.mark.parametrize(
    "name, make, folder", test_pools.SIDECARS.values(), ids=test_pools.SIDECARS
)
def test_layout_of_a_pool(name, make, folder):
    """One address a component and page, or flat pages; all within the pool's own bytes."""
    from ucm.integration.sglang import page_layout

    pool, name = make(), str(getattr(name, "value", name))
    layout = page_layout.probe(pool, name, flattened=name == "mamba")
    size, count = layout.component_size, layout.component_count
    assert f"{name}_{size}x{count}" == folder
    assert layout.page_bytes == kit.page_bytes(pool)
    if not layout.flattened:
        data = kit.fill(pool, [0, 1, 2])
        slots = page_layout.page_slots(layout, kit.slots(pool, [0, 1, 2]), 3)
        pointers = page_layout.page_pointers(pool, layout, slots, 3)
        found = [bytes(kit.bytes_at(start, size)) for start in pointers.reshape(-1)]
        assert pointers.shape == (3, count) and b"".join(found) == bytes(data.numpy())


REFUSED = {k: v for k, v in test_pools.REFUSED.items() if k != "not a folder name"}


@pytest.mark.parametrize("name, make, words", REFUSED.values(), ids=REFUSED)
def test_layout_that_no_store_can_keep(name, make, words):
    from ucm.integration.sglang import page_layout

    name = str(getattr(name, "value", name))
    with pytest.raises(page_layout.LayoutError) as refusal:
        page_layout.probe(make(), name, flattened=name == "mamba")
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_counts_of_one_pool():
    """Pages and bytes, hits and failures; an exporter that fails is asked once."""
    from ucm.integration.sglang.pool_stats import PoolStats

    told, asked = [], []

    def broken(*_):
        asked.append(1)
        raise OSError(28, "No space left on device")

    stats = PoolStats("swa", 100, [broken, lambda *call: told.append(call)])
    stats.looked_up(5, 3, 0.0)
    stats.lookup_failed(2)
    stats.loaded([True, False, True], 0.0)
    stats.stored([True], 0.0)
    stats.error("get: ENOENT")
    found = {k: v for k, v in asdict(stats.counts()).items() if "seconds" not in k}
    assert {k: v for k, v in found.items() if v} == {
        "lookups": 2,
        "failed_lookups": 1,
        "looked_up_pages": 7,
        "hit_pages": 3,
        "loads": 1,
        "loaded_pages": 2,
        "failed_load_pages": 1,
        "loaded_bytes": 200,
        "stores": 1,
        "stored_pages": 1,
        "stored_bytes": 100,
        "last_error": "get: ENOENT",
    }
    assert len(told) == 4 and len(asked) == 1


@pytest.mark.parametrize(
    "path, value, key", test_config.BAD.values(), ids=test_config.BAD
)
def test_config_is_refused(site, path, value, key):
    from ucm.integration.sglang.hicache_config import load_config

    with pytest.raises(ValueError, match=key) as refusal:
        load_config(test_config.edited(site, path, value), device_id=0)
    assert "for example" in str(refusal.value)


def test_config_is_read(site):
    from ucm.integration.sglang.hicache_config import load_config

    made = site.config(backends=2, namespace="fp8", posix_open_concurrency=3)
    config = load_config(made, device_id=1)
    assert config.backends == [str(path / "ns-fp8") for path in site.backends]
    assert (config.connector_name, config.device_id) == ("FaultStore", 1)
    assert config.options["posix_open_concurrency"] == 3


def test_files_of_two_stores(tmp_path):
    """Laid by hand: a primary store's and, in a namespace, one of a sidecar pool."""
    from ucm.integration.sglang.block_files import Kind, block_path, store_folders

    block, sidecar = b"\x5a" * 16, "ns-fp8/sglang_v2/swa_384x2"
    laid = {
        block_path(block, 1): Kind.BLOCK,
        f"{block_path(block, 1)}.bak": Kind.UNKNOWN,
        f".tmp/{block.hex()}.1": Kind.TEMPORARY,
        f".layout/{block.hex()}.json": Kind.MARKER,
        "notes.txt": Kind.UNKNOWN,
        f"{sidecar}/{block_path(block, 0)}": Kind.BLOCK,
        f"{sidecar}/b/{block.hex()}": Kind.UNKNOWN,
    }
    for name in laid:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    folders = list(store_folders(str(tmp_path)))
    told = {(f.pool, f.deployment, f.page_bytes) for f in folders}
    assert told == {("kv", "", 0), ("kv", "fp8", 0), ("swa", "fp8", 768)}
    pairs = [pair for folder in folders for pair in folder.files()]
    found = {os.path.relpath(entry.path, tmp_path): kind for kind, entry in pairs}
    assert found == laid and len(pairs) == len(laid)


@pytest.mark.parametrize(
    "name, make, folder", test_pools.SIDECARS.values(), ids=test_pools.SIDECARS
)
def test_store_of_one_pool(site, name, make, folder):
    """Zero-copy or flattened: pages come back in other, poisoned pages, byte for byte."""
    from ucm.integration.sglang.hicache_config import load_config
    from ucm.integration.sglang.hicache_keys import KeyScheme, pool_name
    from ucm.integration.sglang.store_factory import StoreFactory

    made = site.config(backends=2)
    keys = KeyScheme.from_storage_config(made)
    factory = StoreFactory(load_config(made, device_id=0), keys)
    pool, names = make(), kit.keys(3)
    store = factory.open_sidecar(pool_name(name), pool, replicated=False)
    data = kit.fill(pool, [0, 1, 2])
    assert store.start_set(names, kit.slots(pool, [0, 1, 2]))() == [True] * 3
    assert store.presence([*names, "absent"]).tolist() == [True] * 3 + [False]
    kit.poison(pool, range(8))
    order = [*names[::-1], "absent"]
    done = store.start_get(order, kit.slots(pool, [6, 5, 4, 7]))()
    assert done == [True] * 3 + [False]
    assert torch.equal(kit.contents(pool, [4, 5, 6]), data)
    assert (kit.contents(pool, [0, 1, 2, 3]) == 0xEE).all()
    assert {path.parts[-3] for path in site.files()} == {folder}
    store.close()


@pytest.mark.parametrize("make", [kit.mha, kit.logical])
def test_connector_of_a_hybrid_model(site, make):
    """What SGLang's interface will call: each pool moves its own pages, all decide a hit."""
    from ucm.integration.sglang.ucm_connector import SglangUcmConnector

    anchor, names = make(), kit.keys(3)
    pools = {"swa": kit.paged("swa"), "mamba": kit.mamba()}
    connector = SglangUcmConnector.from_hicache(site.config(), anchor)
    for name, pool in pools.items():
        connector.register_pool_v2(pool, name)
    data = {name: kit.fill(pool, range(3)) for name, pool in pools.items()}
    connector.batch_set_v1(names, kit.slots(anchor, range(3)))
    counts = {"swa": 3, "mamba": 2}
    moves = [kit.transfer(n, pools[n], names[:c], range(c)) for n, c in counts.items()]
    stored = {name: [True] * count for name, count in counts.items()}
    assert connector.batch_set_v2(moves) == stored
    queries = [kit.query("swa"), kit.query("mamba", kit.TRAILING, 1)]
    hit = connector.batch_exists_v2(names, queries)
    assert (hit.kv_hit_pages, hit.restorable_prefix_pages) == (2, [1, 2])
    kit.poison(pools["mamba"], range(8))
    moves = [kit.transfer(n, pool, names, range(4, 7)) for n, pool in pools.items()]
    missed = {"swa": [True] * 3, "mamba": [True, True, False]}
    assert connector.batch_get_v2(moves) == missed
    for name, count in counts.items():
        pages = range(4, 4 + count)
        assert torch.equal(kit.contents(pools[name], pages), data[name][:count])
    for store in connector.pools.stores():
        store.close()
