"""Every host pool class of SGLang that can be built on a CPU: stored, read back, or refused."""

import hicache_kit as kit
import pytest
import torch
from hicache_kit import PoolName

SIDECARS = {
    "mha": (PoolName.SWA, kit.mha, "swa_384x2"),
    "mha with packed draft layers": (
        PoolName.SWA,
        lambda: kit.mha(draft=(kit.mha_info(layers=1),)),
        "swa_512x2",
    ),
    "mla": (PoolName.DRAFT, kit.mla, "draft_480x1"),
    "v4 paged": (
        PoolName.DEEPSEEK_V4_C4,
        lambda: kit.paged("c4"),
        "deepseek_v4_c4_192x1",
    ),
    "v4 state": (
        PoolName.DEEPSEEK_V4_C4_STATE,
        lambda: kit.state("c4_state"),
        "deepseek_v4_c4_state_192x1",
    ),
    "mamba": (PoolName.MAMBA, kit.mamba, "mamba_360x1"),
    "mamba without temporal state": (
        PoolName.MAMBA,
        lambda: kit.mamba(temporal=(0,)),
        "mamba_120x1",
    ),
    "mamba with slot side state": (
        PoolName.MAMBA,
        lambda: kit.mamba(side_states=((7,),)),
        "mamba_416x1",
    ),
    "k only": (PoolName.INDEXER, kit.k_only, "indexer_128x1"),
    "dsa indexer": (PoolName.INDEXER, kit.dsa_indexer, "indexer_1056x1"),
    "qsa indexer": (PoolName.INDEXER, kit.qsa_indexer, "indexer_64x1"),
    "nvfp4 main, 4 layers": ("nvfp4", lambda: kit.nvfp4_main(4), "nvfp4_128x2"),
    "nvfp4 main, 1 layer: flat pages only": (
        "nvfp4",
        lambda: kit.nvfp4_main(1),
        "nvfp4_64x1",
    ),
    "nvfp4 index": (PoolName.INDEXER, kit.nvfp4_index, "indexer_64x1"),
    "unknown name": (
        "brand_new_pool",
        lambda: kit.paged("new"),
        "brand_new_pool_192x1",
    ),
}


@pytest.mark.parametrize("name, make, namespace", SIDECARS.values(), ids=SIDECARS)
def test_sidecar_round_trip(site, name, make, namespace):
    """Stored pages come back in other, poisoned pages of a new store, byte for byte."""
    pool, keys = make(), kit.keys(3)
    data = kit.fill(pool, [0, 1, 2])
    store = site.attach(kit.logical(), {name: pool})
    kit.put(store, name, pool, keys, [0, 1, 2])
    assert [p.name for p in (site.backends[0] / "sglang_v2").iterdir()] == [namespace]
    store.close()

    store = site.attach(kit.logical(), {name: pool})
    kit.poison(pool, range(8))
    moved = kit.transfer(name, pool, keys[::-1], [6, 5, 4])
    assert store.batch_get_v2([moved]) == {name: [True] * 3}
    assert torch.equal(kit.contents(pool, [4, 5, 6]), data)
    assert (kit.contents(pool, [0, 1, 2, 3, 7]) == 0xEE).all()


LIMIT = ["1 to 2147479552", "--page-size"]
REFUSED = {
    "asymmetric K and V": (PoolName.SWA, kit.asymmetric_mha, ["swa", "576", "384"]),
    "nvfp4 main, 3 layers": (
        "nvfp4",
        lambda: kit.nvfp4_main(3),
        ["nvfp4", "128", "64"],
    ),
    "mxfp8": (PoolName.DRAFT, kit.mxfp8, ["draft", "MHATokenToKVPoolMXFP8Host"]),
    "page_unified": (PoolName.SWA, kit.page_unified, ["swa", "page_unified"]),
    "page_first_direct": (
        PoolName.SWA,
        lambda: kit.mha(layout="page_first_direct"),
        ["swa", "page_first_direct", "--hicache-mem-layout page_first"],
    ),
    "layer_first": (
        PoolName.DEEPSEEK_V4_C4,
        lambda: kit.paged("c4", layout="layer_first"),
        ["deepseek_v4_c4", "layer_first"],
    ),
    "page_head": (
        PoolName.SWA,
        lambda: kit.mha(layout="page_head"),
        ["swa", "page_head"],
    ),
    "logical pool as a sidecar": (PoolName.SWA, kit.logical, ["swa"]),
    "MLA without a buffer": (
        PoolName.DRAFT,
        kit.mla_dummy,
        ["draft", "MLATokenToKVPoolHost"],
    ),
    "null pointer": (PoolName.SWA, lambda: kit.Meta(([0], [64])), ["swa", "address 0"]),
    "True as a pointer": (
        PoolName.SWA,
        lambda: kit.Meta(([True], [64])),
        ["swa", "address 1"],
    ),
    "no pointer": (
        PoolName.SWA,
        lambda: kit.Meta(([None], [64])),
        ["swa", "addresses"],
    ),
    "pointer as text": (
        PoolName.SWA,
        lambda: kit.Meta((["8192"], [64])),
        ["swa", "addresses", "'8192'"],
    ),
    "half a pointer": (
        PoolName.SWA,
        lambda: kit.Meta(([8192.5], [64])),
        ["swa", "addresses", "8192.5"],
    ),
    "sizes of no page and of one": (
        PoolName.SWA,
        lambda: kit.Meta(([8192, 8192], [[], 64])),
        ["swa", "mixes"],
    ),
    "malformed meta": (PoolName.SWA, lambda: kit.Meta(([1], [])), ["swa", "1", "0"]),
    "2 GiB": (PoolName.SWA, lambda: kit.huge(2**31), ["swa", *LIMIT, "2147483648"]),
    "1 TiB": (PoolName.SWA, lambda: kit.huge(2**40), ["swa", *LIMIT, "1099511627776"]),
    "a sum of 2 GiB": (
        PoolName.SWA,
        lambda: kit.huge(2**30, 2),
        ["swa", *LIMIT, "2 x 1073741824 = 2147483648"],
    ),
    "a sum over 64 bits": (PoolName.SWA, lambda: kit.huge(2**63, 2), ["swa", *LIMIT]),
    "less than nothing": (PoolName.SWA, lambda: kit.huge(-64), ["swa", *LIMIT, "-64"]),
    "half a byte": (PoolName.SWA, lambda: kit.huge(64.5), ["swa", "64.5"]),
    "a flat page of 2 GiB": (PoolName.MAMBA, kit.huge_flat, ["mamba", *LIMIT]),
    "no meta and no flat page": (PoolName.SWA, lambda: kit.Meta(None), ["swa"]),
    "not a folder name": ("../swa", lambda: kit.paged("swa"), ["../swa"]),
}


@pytest.mark.parametrize("name, make, words", REFUSED.values(), ids=REFUSED)
def test_refused_pool_leaves_nothing_behind(site, name, make, words):
    """ValueError with the pool and the reason, before any folder, thread or file exists."""
    pool = make()
    store = site.attach(kit.logical(), {PoolName.INDEXER: kit.paged("indexer")})
    before = site.everything(), kit.threads(), kit.descriptors()
    with pytest.raises(ValueError) as refusal:
        store.register_mem_host_pool_v2(pool, name)
    assert (site.everything(), kit.threads(), kit.descriptors()) == before
    assert all(word in str(refusal.value) for word in words), refusal.value
    assert name not in store.registered_pools


ANCHORS = {
    "mha": (kit.mha, False, (384, 2)),
    "mla": (kit.mla, True, (480, 1)),
    "mla pages while is_mla_model is false": (kit.mla, False, (480, 1)),
    "mha in a group": (lambda: kit.group(kit.mha()), False, (384, 2)),
}


@pytest.mark.parametrize("make, mla, sizes", ANCHORS.values(), ids=ANCHORS)
def test_anchor_round_trip(site, make, mla, sizes):
    """The primary KV's store has the sizes that its own pages have."""
    anchor, names = make(), kit.keys(4)
    store = site.attach(anchor, mla=mla)
    pool = store.mem_pool_host
    data = kit.fill(pool, range(4))
    kit.put_kv(store, pool, names, range(4))
    assert {p.stat().st_size for p in site.files()} == {sizes[0] * sizes[1]}
    assert store.batch_exists([*names, "other"]) == 4
    kit.poison(pool, range(8))
    assert store.batch_get_v1(names, kit.slots(pool, range(4, 8))) == [True] * 4
    assert torch.equal(kit.contents(pool, range(4, 8)), data)
    assert (kit.contents(pool, range(4)) == 0xEE).all()


BAD_ANCHORS = {
    "asymmetric": (kit.asymmetric_mha, "576"),
    "layer_first": (lambda: kit.mha(layout="layer_first"), "layer_first"),
    "MLA without a buffer": (kit.mla_dummy, "MLATokenToKVPoolHost"),
    "1 TiB": (lambda: kit.huge(2**40), "'kv' .*1099511627776"),
}


@pytest.mark.parametrize("make, word", BAD_ANCHORS.values(), ids=BAD_ANCHORS)
def test_refused_anchor_leaves_nothing_behind(site, make, word):
    anchor, before = make(), (site.everything(), kit.threads())
    with pytest.raises(ValueError, match=word):
        site.attach(anchor)
    assert (site.everything(), kit.threads()) == before


def test_the_longest_page(site):
    """One that a single system call still moves; the largest of a real model has 28 MB."""
    name, limit = PoolName.SWA, 0x7FFFF000
    site.attach(kit.logical(), {name: kit.huge(limit // 2, 2)})
    (folder,) = (site.backends[0] / "sglang_v2").iterdir()
    assert folder.name == f"swa_{limit // 2}x2"


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_logical_anchor_needs_no_size_and_no_store(site, layout):
    """Neither its layout label nor a size is looked at; the v1 calls move nothing."""
    anchor = kit.logical(layout=layout)
    store, names = site.attach(anchor), kit.keys(2)
    assert store.store is None and not site.files()
    assert store.batch_set_v1(names, kit.slots(anchor, [0, 1])) == [True, True]
    assert store.batch_get_v1(names, kit.slots(anchor, [0, 1])) == [True, True]
    assert store.batch_set_v1([], None) == store.batch_get_v1([], None) == []
    assert not site.files()


def test_deepseek_v4_flash(site):
    """Six pools, six stores, the sizes and namespaces of the request; one hit over all."""
    pools = kit.v4_pools(page=256, pages=4)
    store = site.attach(kit.logical(page=256, pages=4), pools, mla=True)
    names = kit.keys(2)
    data = {name: kit.fill(pool, [0, 1]) for name, pool in pools.items()}
    transfers = [
        kit.transfer(name, pool, names, [0, 1]) for name, pool in pools.items()
    ]
    assert store.batch_set_v2(transfers) == dict.fromkeys(pools, [True, True])
    folders = {p.name for p in (site.backends[0] / "sglang_v2").iterdir()}
    assert folders == {
        "swa_6589440x1",
        "deepseek_v4_c4_786240x1",
        "deepseek_v4_c4_indexer_177408x1",
        "deepseek_v4_c4_state_2752512x1",
        "deepseek_v4_c4_indexer_state_688128x1",
        "deepseek_v4_c128_34560x1",
    }
    assert len(site.files()) == 12
    trailing = ["swa", *(name for name in pools if name.endswith("_state"))]
    queries = [
        kit.query(n, kit.TRAILING, 1) if n in trailing else kit.query(n) for n in pools
    ]
    hit = store.batch_exists_v2([*names, "absent"], queries)
    assert (hit.kv_hit_pages, hit.restorable_prefix_pages) == (2, [1, 2])
    assert hit.extra_pool_hit_pages == dict.fromkeys(pools, 2)
    loads = [kit.transfer(name, pool, names, [2, 3]) for name, pool in pools.items()]
    assert store.batch_get_v2(loads) == dict.fromkeys(pools, [True, True])
    for name, pool in pools.items():
        assert torch.equal(kit.contents(pool, [2, 3]), data[name])


ENGINES = {
    "psync": {},
    "psync direct": {"io_direct": True},
    "aio": {"posix_io_engine": "aio"},
    "aio direct": {"posix_io_engine": "aio", "io_direct": True},
}


@pytest.mark.parametrize("backends", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_engines_and_backends(site, engine, backends):
    """Pools that direct I/O can serve and one that it cannot, over one and two backends."""
    if not kit.engine_works(site, ENGINES[engine]):
        pytest.skip(f"this store refuses {engine}")
    pools = {
        PoolName.SWA: kit.aligned(kit.nvfp4_main(4, row=2048)),
        PoolName.DEEPSEEK_V4_C4: kit.aligned(kit.paged("c4", layers=2, row=4096)),
        PoolName.INDEXER: kit.paged("indexer"),
        PoolName.MAMBA: kit.mamba(),
    }
    store, names = site.attach(
        kit.logical(), pools, backends=backends, **ENGINES[engine]
    ), kit.keys(4)
    data = {name: kit.fill(pool, range(4)) for name, pool in pools.items()}
    moved = [kit.transfer(n, p, names, range(4)) for n, p in pools.items()]
    assert store.batch_set_v2(moved) == dict.fromkeys(pools, [True] * 4)
    hit = store.batch_exists_v2(names, [kit.query(n) for n in pools])
    assert hit.restorable_prefix_pages == [1, 2, 3, 4]
    assert len({p.relative_to(site.root).parts[0] for p in site.files()}) == backends
    for pool in pools.values():
        kit.poison(pool, range(8))
    moved = [kit.transfer(n, p, names, range(4, 8)) for n, p in pools.items()]
    assert store.batch_get_v2(moved) == dict.fromkeys(pools, [True] * 4)
    for name, pool in pools.items():
        assert torch.equal(kit.contents(pool, range(4, 8)), data[name])
    kit.block_of(site, store, PoolName.SWA, names[1]).unlink()
    moved = [kit.transfer(n, p, names, range(4, 8)) for n, p in pools.items()]
    found = store.batch_get_v2(moved)
    assert found.pop(PoolName.SWA) == [True, False, True, True]
    assert all(all(done) for done in found.values())
