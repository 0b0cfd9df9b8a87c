"""The commands keys and layout: what they name is what the connector wrote."""

import hashlib
import os

import hicache_kit as kit
import pytest
from hicache_kit import PoolName

POOLS = {
    PoolName.SWA: kit.mha,
    PoolName.MAMBA: kit.mamba,
    PoolName.DEEPSEEK_V4_C4: lambda: kit.paged("c4"),
    PoolName.DRAFT: kit.mla,
    PoolName.INDEXER: kit.dsa_indexer,
}
RANKS = {
    "one rank": ({}, []),
    "sharded": ({"tp": (1, 2)}, ["--tp-rank", "1", "--tp-size", "2"]),
    "replicated": (
        {"mla": True, "tp": (1, 2)},
        ["--replicated", "--mla-draft", "--tp-rank", "1", "--tp-size", "2"],
    ),
    "pipeline": (
        {"pp_rank": 1, "pp_size": 2, "attn_cp_rank": 2, "attn_cp_size": 4},
        ["--pp-rank=1", "--pp-size=2", "--cp-rank=2", "--cp-size=4"],
    ),
}


@pytest.mark.parametrize("config, flags", RANKS.values(), ids=RANKS)
def test_the_named_block_is_the_connector_s(site, tool, config, flags):
    anchor = kit.mla() if config.get("mla") else kit.mha()
    pools = {name: make() for name, make in POOLS.items()}
    store = site.attach(anchor, pools, data_dir_shard_bytes=2, **config)
    names = kit.keys(3)
    kit.put_kv(store, anchor, names, range(3))
    for name, pool in pools.items():
        kit.put(store, name, pool, names, range(3))
    root = str(site.backends[0])
    for name in ("kv", *map(kit.PoolName, POOLS)):
        pool = getattr(name, "value", name)
        code, found = tool(
            *("keys", "--model", "org/model", "--pool", pool, "--json"),
            *("--shard-digits", "2", "--root", root, *flags, *names),
        )
        assert code == 0 and [entry["key"] for entry in found] == names
        for entry in found:
            (file,) = entry["files"]
            block = kit.block_of(site, store, pool, entry["key"])
            assert file["path"] == str(block) and file["whole"] is True
            assert file["bytes"] == os.path.getsize(block)
            assert file["path"].endswith("/" + entry["path"])
            assert block.name == entry["digest"]
            digest = hashlib.md5(entry["text"].encode()).hexdigest()
            assert digest == entry["digest"]


def test_key_texts_to_the_letter(tool):
    texts = {
        ("kv",): "k_org-m_1_2",
        ("kv", "--replicated"): "k_org-m",
        ("swa",): "k_org-m_1_2__v2_tp_1_2__pool_swa__component_0",
        ("swa", "--replicated"): "k_org-m__v2_tp_0_2__pool_swa__component_0",
        ("mamba", "--replicated"): "k_org-m__v2_tp_1_2__pool_mamba__component_0",
        ("draft", "--replicated"): "k_org-m__v2_tp_1_2__pool_draft__component_0",
        ("draft", "--replicated", "--mla-draft"): (
            "k_org-m__v2_tp_0_2__pool_draft__component_0"
        ),
        ("kv", "--pp-size", "2"): "k_org-m_1_2__pp_0_2",
    }
    ranks = ["--tp-rank", "1", "--tp-size", "2"]
    for (pool, *flags), text in texts.items():
        args = ["--model", "org/m", "--pool", pool, *ranks, *flags, "--json", "k"]
        code, (entry,) = tool("keys", *args)
        assert (code, entry["text"]) == (0, text)
        digits = 3 if pool == "kv" else 2  # the defaults of the two kinds of store
        assert entry["path"] == f"{entry['digest'][:digits]}/{entry['digest']}"


def test_a_block_that_is_not_there_or_not_whole(site, tool):
    anchor, (key,) = kit.mha(), kit.keys(1)
    store = site.attach(anchor)
    args = ["keys", "--model", "org/model", "--root", site.backends[0], key]
    code, text = tool(*args)
    assert code == 1 and text.splitlines()[-1].split() == ["file", "none"]
    kit.put_kv(store, anchor, [key], [0])
    code, text = tool(*args)
    assert code == 0 and "768 bytes" in text and "not whole" not in text
    os.truncate(kit.block_of(site, store, "kv", key), 10)
    code, text = tool(*args)
    assert code == 0 and "not whole" in text


@pytest.mark.parametrize(
    "flags, word",
    [
        (["--tp-rank", "2", "--tp-size", "2"], "--tp-rank 2"),
        (["--cp-rank", "-1"], "--cp-rank -1"),
        (["--pool", "a/b"], "a/b"),
        (["--shard-digits", "6"], "--shard-digits"),
        (["--root", "/no/perm"], "/no/perm"),
    ],
)
def test_a_wrong_call(tool, flags, word):
    code, text = tool("keys", "--model", "m", *flags, "k")
    assert code == 2 and word in text


def test_layout_names_every_block(site, tool):
    """Page hash + suffix, digested, is the name of each file in the folders it tells."""
    names = kit.keys(4)
    for model, rank in (("org/a", 0), ("org/a", 1), ("b", 0)):
        anchor, swa = kit.mha(), kit.mha(layers=1)
        store = site.attach(anchor, {PoolName.SWA: swa}, model=model, tp=(rank, 2))
        kit.put_kv(store, anchor, names, range(4))
        kit.put(store, PoolName.SWA, swa, names, range(4))
        store.close()
    code, found = tool("layout", site.backends[0], "--json")
    assert code == 0 and [model["model"] for model in found] == ["b", "org/a"]
    told = set()
    for model in found:
        pools = model["hicache_object_layout"]["pools"]
        assert [pool["pool"] for pool in pools] == ["kv", "swa"]
        for pool in pools:
            assert len(pool["suffixes"]) == (2 if model["model"] == "org/a" else 1)
            for suffix in pool["suffixes"]:
                for name in names:
                    told.add(hashlib.md5((name + suffix).encode()).hexdigest())
    assert told == {path.name for path in site.files()}
    code, text = tool("layout", site.backends[0])
    assert code == 0 and "__pool_swa__component_0" in text
    assert tool("layout", site.backends[1]) == (0, "no format markers\n")
