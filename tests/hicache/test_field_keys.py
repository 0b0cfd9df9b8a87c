"""Field cases B13 to B36: keys, namespaces, layouts and the logical anchor."""

import hicache_kit as kit
import pytest
import torch
from hicache_kit import PoolName

SWA, MAMBA, C4 = PoolName.SWA, PoolName.MAMBA, PoolName.DEEPSEEK_V4_C4
INDEXER, KV = PoolName.INDEXER, PoolName.KV


@pytest.mark.parametrize("first, second", [(1, 2), (2, 1)])
def test_b13_pages_of_another_size_are_absent(site, first, second):
    """bf16 then fp8 and the reverse, v1 and v2. Same size, other dtype: test_markers.py."""
    pools = {1: kit.mha(dtype=torch.uint8), 2: kit.mha(dtype=torch.bfloat16)}
    names = kit.keys(1)
    for turn, size in enumerate((first, second)):
        pool = pools[size]
        store = site.attach(pool, {SWA: pool})
        assert store.exists(names[0]) is False
        assert store.batch_exists_v2(names, [kit.query(SWA)]).kv_hit_pages == 0
        if turn == 0:
            kit.put_kv(store, pool, names, [0])
            kit.put(store, SWA, pool, names, [0])
        store.close()


def test_b14_revisions_are_kept_apart_by_the_namespace(site):
    anchor, names = kit.mha(), kit.keys(1)
    rev1 = site.attach(anchor, namespace="rev1")
    kit.put_kv(rev1, anchor, names, [0])
    assert rev1.batch_exists(names) == 1
    assert site.attach(anchor, namespace="rev2").batch_exists(names) == 0
    assert site.attach(anchor).batch_exists(names) == 0


@pytest.mark.parametrize("model", [None, "", "x" * 5000, "a b/c:d"])
def test_b15_any_model_name_works(site, model):
    """Names that become one key text are refused: test_markers.py."""
    pool, names = kit.paged("swa"), kit.keys(2)
    store = site.attach(kit.logical(), {SWA: pool}, model=model)
    data = kit.fill(pool, [0, 1])
    kit.put(store, SWA, pool, names, [0, 1])
    store.batch_get_v2([kit.transfer(SWA, pool, names, [2, 3])])
    assert torch.equal(kit.contents(pool, [2, 3]), data)


RANKS = {
    "b16 pp": [
        {"pp_rank": r, "pp_size": 2, "tp": (t, 2)} for r in (0, 1) for t in (0, 1)
    ],
    "b16 pp and mla": [{"pp_rank": r, "pp_size": 2, "mla": True} for r in (0, 1)],
    "b17 cp": [{"attn_cp_rank": r, "attn_cp_size": 2} for r in (0, 1)],
    "b17 cp and mla": [
        {"attn_cp_rank": r, "attn_cp_size": 2, "mla": True} for r in (0, 1)
    ],
    "b18 tp": [{"tp": (0, 2)}, {"tp": (1, 2)}, {"tp": (0, 1)}],
}


@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS)
def test_b16_b17_b18_ranks_read_their_own_bytes(site, ranks):
    """Same keys, other shards: each reads back its own, and none answers for another."""
    names, held = kit.keys(1), []
    for i, rank in enumerate(ranks):
        anchor, pool = kit.mla() if rank.get("mla") else kit.mha(), kit.paged("swa")
        store = site.attach(anchor, {SWA: pool}, **rank)
        assert store.batch_exists(names) == 0
        hit = store.batch_exists_v2(names, [kit.query(SWA)])
        assert hit.extra_pool_hit_pages[SWA] == 0
        data = kit.fill(anchor, [0], i), kit.fill(pool, [0], 100 + i)
        kit.put_kv(store, anchor, names, [0])
        kit.put(store, SWA, pool, names, [0])
        held.append((store, anchor, pool, data))
    assert len(site.files()) == 2 * len(ranks)
    for store, anchor, pool, (kv, side) in held:
        assert store.batch_get_v1(names, kit.slots(anchor, [1])) == [True]
        store.batch_get_v2([kit.transfer(SWA, pool, names, [1])])
        assert torch.equal(kit.contents(anchor, [1]), kv)
        assert torch.equal(kit.contents(pool, [1]), side)


def test_b17_followers_of_a_replicated_anchor_look_for_themselves(site, messages):
    """The base answered "all there" on every rank but 0 without looking."""
    anchor, pool, names = kit.mla(), kit.paged("c4"), kit.keys(2)
    follower = site.attach(anchor, {C4: pool}, mla=True, tp=(1, 2))
    assert follower.batch_exists(names) == 0 and not follower.exists(names[0])
    writer = site.attach(anchor, {C4: pool}, mla=True, tp=(0, 2))
    kit.put_kv(writer, anchor, names, [0, 1])
    kit.put(writer, C4, pool, names, [0, 1])
    assert follower.batch_exists_v2(names, [kit.query(C4)]).kv_hit_pages == 2
    site.attach(anchor, mla=True, attn_cp_rank=1, attn_cp_size=2)
    assert "CP size is 2" in messages()


def test_b20_keys_are_opaque_and_whole(site):
    """Keys that agree in their first characters are two blocks; every id has 16 bytes."""
    pool = kit.paged("swa")
    names = ["0" * 16 + "a" * 48, "0" * 16 + "b" * 48, "0" * 63 + "é", "x", ""]
    store = site.attach(kit.logical(), {SWA: pool})
    data = kit.fill(pool, range(5))
    kit.put(store, SWA, pool, names, range(5))
    assert {len(i) for i in store.connector.pools.get(SWA).ids(names)} == {16}
    assert len(site.files()) == 5
    kit.poison(pool, range(5))
    store.batch_get_v2([kit.transfer(SWA, pool, names, range(5))])
    assert torch.equal(kit.contents(pool, range(5)), data)


def test_b21_names_as_text_and_as_enumeration(site):
    pool, names = kit.paged("swa"), kit.keys(1)
    store = site.attach(kit.logical(), {SWA: pool})
    kit.put(store, "swa", pool, names, [0])
    kit.put(store, SWA, pool, names, [0])
    store.register_mem_host_pool_v2(pool, "swa")
    assert len(site.files()) == 1
    assert [p.name for p in site.files()[0].parents[1].parent.iterdir()] == [
        "swa_192x1"
    ]
    assert store.batch_exists_v2(names, [kit.query("swa")]).kv_hit_pages == 1


def test_b22_unknown_names_get_a_store_of_their_own(site, messages):
    pool, names = kit.paged("new"), kit.keys(1)
    store = site.attach(kit.logical(), {"brand_new_pool": pool}, mla=True, tp=(1, 2))
    assert "brand_new_pool is unknown" in messages()
    assert "L3 is off for this deployment" in messages()
    kit.put(store, "brand_new_pool", pool, names, [0])
    assert store.batch_exists_v2(names, [kit.query("brand_new_pool")]).kv_hit_pages == 1
    other = site.attach(kit.logical(), {"brand_new_pool": pool}, mla=True, tp=(0, 2))
    assert other.batch_exists_v2(names, [kit.query("brand_new_pool")]).kv_hit_pages == 0


def test_b23_sizes_are_those_of_what_is_moved(site):
    """K and V count; every transfer carries component_count pointers of tensor_size bytes."""
    store = site.attach(kit.logical(), {SWA: kit.mha()})
    options = store.connector.pools.get(SWA).store.config
    assert options["block_size"] == 2 * options["tensor_size"] == 768
    pool, names = store.registered_pools[SWA], kit.keys(2)
    kit.put(store, SWA, pool, names, [0, 1])
    assert {p.stat().st_size for p in site.files()} == {768}


def test_b25_unequal_components_are_refused(site):
    """Refused with pool and sizes, as sidecar and as anchor; nothing is left."""
    store = site.attach(kit.logical())
    before = site.everything(), kit.threads()
    with pytest.raises(ValueError, match=r"'swa' has unequal.*\[576, 384\]"):
        store.register_mem_host_pool_v2(kit.asymmetric_mha(), SWA)
    with pytest.raises(ValueError, match=r"'kv' has unequal.*\[576, 384\]"):
        site.attach(kit.asymmetric_mha())
    assert (site.everything(), kit.threads()) == before


def test_b26_staging_has_the_form_of_the_flat_page(site):
    """uint8 pages of a bf16 pool come back byte for byte; aligned, whole, unconverted."""
    pool, names = kit.mamba(), kit.keys(1)
    assert pool.conv_dtype == torch.bfloat16
    store = site.attach(kit.logical(), {MAMBA: pool})
    content = torch.arange(kit.page_bytes(pool), dtype=torch.int64).to(torch.uint8)
    kit.write(pool, 0, content)
    kit.put(store, MAMBA, pool, names, [0])
    assert site.files()[0].read_bytes() == bytes(content.numpy())
    kit.poison(pool, [1])
    store.batch_get_v2([kit.transfer(MAMBA, pool, names, [1])])
    assert torch.equal(kit.read(pool, 1), content)


@pytest.mark.parametrize("temporal", [(2, 3, 5), (0,)])
def test_b27_every_state_component_is_stored(site, temporal):
    """Temporal and all convolution states; flipping one conv byte shows after a restore."""
    pool, names = kit.mamba(temporal=temporal), kit.keys(1)
    _, sizes = pool.get_page_buffer_meta(torch.arange(1))
    store = site.attach(kit.logical(), {MAMBA: pool})
    kit.fill(pool, [0])
    kit.put(store, MAMBA, pool, names, [0])
    assert site.files()[0].stat().st_size == sum(sizes) == kit.page_bytes(pool)
    before = kit.read(pool, 0)
    pool.conv_buffer[-1][0].view(torch.uint8).reshape(-1)[-1] ^= 0xFF
    assert not torch.equal(kit.read(pool, 0), before)
    store.batch_get_v2([kit.transfer(MAMBA, pool, names, [0])])
    assert torch.equal(kit.read(pool, 0), before)


def test_b28_state_is_per_rank_beside_a_replicated_anchor(site):
    names, held = kit.keys(1), []
    for rank in range(2):
        pool = kit.mamba()
        store = site.attach(kit.mla(), {MAMBA: pool}, mla=True, tp=(rank, 2))
        data = kit.fill(pool, [0], rank)
        kit.put(store, MAMBA, pool, names, [0])
        held.append((store, pool, data))
    assert len(site.files()) == 2
    for store, pool, data in held:
        kit.poison(pool, [1])
        store.batch_get_v2([kit.transfer(MAMBA, pool, names, [1])])
        assert torch.equal(kit.contents(pool, [1]), data)


@pytest.mark.parametrize(
    "version, name, make, off",
    [
        ((0, 5, 16), MAMBA, kit.mamba, True),
        ((0, 5, 17), MAMBA, kit.mamba, False),
        ((0, 5, 23), PoolName.DRAFT, kit.mha, True),
        ((0, 5, 23), PoolName.DRAFT, kit.mla, False),
        ((0, 5, 23), INDEXER, lambda: kit.paged("indexer"), False),
    ],
)
def test_b28_deployments_that_cannot_hit_are_told(
    site, messages, monkeypatch, version, name, make, off
):
    from ucm.integration.sglang import sglang_release

    monkeypatch.setattr(sglang_release, "release", lambda: version)
    site.attach(kit.mla(), {name: make()}, mla=True, tp=(0, 2))
    assert ("L3 is off for this deployment" in messages()) == off
    site.attach(kit.mla(), {name: make()}, mla=True, namespace="tp1")
    assert messages().count("L3 is off") == off


def test_b29_no_work_is_success(site, monkeypatch):
    """Empty lists succeed without a call into the store."""
    store = site.attach(kit.logical(), {SWA: kit.paged("swa")}, mla=True, tp=(1, 2))
    for call in ("load_data", "dump_data", kit.WAIT, "lookup"):
        monkeypatch.setattr(kit.FaultStore, call, None)
    empty = kit.PoolTransfer(name=SWA, keys=[], host_indices=torch.empty(0))
    for move in (store.batch_get_v2, store.batch_set_v2):
        assert move([]) == {}
        assert move([empty]) == {SWA: []}


def test_b30_only_page_calls_are_used(site, monkeypatch):
    """A pool whose buffers have other names works; a null pointer fails, and nothing crashes."""
    pool, names = kit.Pages(kit.paged("indexer")), kit.keys(2)
    store = site.attach(kit.logical(), {INDEXER: pool})
    data = kit.fill(pool, [0, 1])
    kit.put(store, INDEXER, pool, names, [0, 1])
    store.batch_get_v2([kit.transfer(INDEXER, pool, names, [2, 3])])
    assert torch.equal(kit.contents(pool, [2, 3]), data)
    monkeypatch.setattr(
        kit.Pages, "get_page_buffer_meta", lambda self, i: ([0] * 2, [192] * 2)
    )
    for move in (store.batch_get_v2, store.batch_set_v2):
        assert move([kit.transfer(INDEXER, pool, names, [0, 1])]) == {
            INDEXER: [False] * 2
        }


def test_b31_unaligned_pools_do_buffered_io(site, messages):
    """One warning a pool; staging pages are aligned whatever the engine."""
    pools = {INDEXER: kit.paged("indexer", layers=1, row=10296), MAMBA: kit.mamba()}
    store, names = site.attach(kit.logical(), pools, io_direct=True), kit.keys(2)
    for name, pool in pools.items():
        data = kit.fill(pool, [0, 1])
        kit.put(store, name, pool, names, [0, 1])
        kit.poison(pool, [2, 3])
        store.batch_get_v2([kit.transfer(name, pool, names, [2, 3])])
        assert torch.equal(kit.contents(pool, [2, 3]), data)
        assert messages().count(f"\npool {name.value}: pages of") <= 1
    assert messages().count("uses buffered psync") == 2
    (page,) = store.connector.pools.get(MAMBA).staging.lease(1)
    assert page.data_ptr() % 4096 == 0


def test_b34_active_pools_are_named(site, messages):
    pools = {INDEXER: kit.paged("indexer"), MAMBA: kit.mamba()}
    site.attach(kit.mla(), pools, mla=True).on_host_pools_registered()
    for text in (
        "indexer: pages of 1 x 192",
        "mamba: pages of 1 x 360",
        "indexer_192x1",
    ):
        assert text in messages()
    assert "L3 sidecar pools: ['indexer', 'mamba']" in messages()


def test_b35_logical_anchor(site):
    """Neither size nor layout of the anchor is looked at; it opens no store."""
    anchor, names = kit.logical(layout="layer_first"), kit.keys(2)
    store = site.attach(anchor)
    assert not site.everything()[2:]
    for move in (store.batch_set_v1, store.batch_get_v1):
        assert move(names, kit.slots(anchor, [0, 1])) == [True, True]
    assert store.batch_exists(names) == 0
    pool = kit.paged("c4")
    store.register_mem_host_pool_v2(pool, C4)
    kit.put(store, C4, pool, names[:1], [0])
    assert store.batch_exists(names) == 1 and len(site.files()) == 1


def test_b36_both_forms_of_no_layout(site):
    """None and (None, None) are logical; other odd shapes are errors; no pool, no hit."""
    names = kit.keys(2)
    for meta in (None, (None, None)):
        anchor = kit.Meta(meta)
        anchor.kv_buffer = None
        store = site.attach(anchor)
        assert store.store is None
        anchor.meta = ([1], [])
        with pytest.raises(ValueError, match="1 pointers and 0 sizes"):
            store.register_mem_host_pool_v2(anchor, KV)
        for transfers in (None, [], [kit.query(SWA)]):
            hit = store.batch_exists_v2(names, transfers)
            assert (hit.kv_hit_pages, hit.restorable_prefix_pages) == (0, [])
    assert not site.files()
