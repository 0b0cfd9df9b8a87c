"""Field cases B01 to B11 and B58: which prefix counts as a hit."""

import hicache_kit as kit
import pytest
from hicache_kit import PoolName

SWA, MAMBA, C4 = PoolName.SWA, PoolName.MAMBA, PoolName.DEEPSEEK_V4_C4
STATE, INDEXER, DRAFT = PoolName.DEEPSEEK_V4_C4_STATE, PoolName.INDEXER, PoolName.DRAFT


def there(text):
    return [i for i, c in enumerate(text) if c == "1"]


@pytest.fixture
def hit_of(site):
    """Ask about pools given as (name, pool, presence, query); anchor presence, None if logical."""

    def hit_of(kv, *pools, **kw):
        longest = len(kv if kv is not None else pools[0][2])
        anchor = kit.logical(pages=256) if kv is None else kit.mha(pages=256)
        store = site.attach(anchor, {name: pool for name, pool, _, _ in pools}, **kw)
        names = kit.keys(longest)
        if kv is not None:
            kit.put_kv(store, anchor, [names[i] for i in there(kv)], there(kv))
        for name, pool, presence, _ in pools:
            chosen = there(presence)
            if chosen:
                kit.put(store, name, pool, [names[i] for i in chosen], chosen)
        hit = store.batch_exists_v2(names, [query for _, _, _, query in pools])
        hit_of.store, hit_of.names = store, names
        return hit.kv_hit_pages, hit.restorable_prefix_pages, hit.extra_pool_hit_pages

    return hit_of


def swa(presence, window=1):
    return (
        SWA,
        kit.paged("swa", pages=256),
        presence,
        kit.query(SWA, kit.TRAILING, window),
    )


def mamba(presence):
    return MAMBA, kit.mamba(), presence, kit.query(MAMBA, kit.TRAILING, 1)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "swa_pages, mamba_pages, hit, ends, own",
    [
        ("001", "001", 3, [3], (3, 3)),
        ("001", "010", 0, [], (3, 2)),
        ("101", "110", 1, [1], (3, 2)),
    ],
)
def test_b01_trailing_pools_meet_or_miss(
    hit_of, order, swa_pages, mamba_pages, hit, ends, own
):
    found = hit_of("111", *[swa(swa_pages), mamba(mamba_pages)][::order])
    assert found == (hit, ends, {"kv": 3, SWA: own[0], MAMBA: own[1]})


def test_b02_sparse_pages_are_found(hit_of, site):
    assert hit_of("111", swa("001"))[:2] == (3, [3])
    site.close()
    assert hit_of("1111", mamba("0101"), namespace="second")[:2] == (4, [2, 4])


def test_b03_state_window_beside_a_complete_pool(hit_of):
    c4 = (C4, kit.paged("c4"), "1111", kit.query(C4, indices_from_pool=PoolName.KV))
    state = (STATE, kit.state("s"), "0110", kit.query(STATE, kit.TRAILING, 2))
    assert hit_of(None, c4, state) == (3, [3], {C4: 4, STATE: 3})


def test_b05_ranks_answer_whole_sets(site):
    """Each rank lists all its lengths, so that SGLang can intersect; a miss is [], not None."""
    ends = []
    for rank, presence in enumerate(("101", "110")):
        anchor, pool = kit.mha(), kit.mamba()
        store, names = site.attach(anchor, {MAMBA: pool}, tp=(rank, 2)), kit.keys(3)
        kit.put_kv(store, anchor, names, range(3))
        some = there(presence)
        kit.put(store, MAMBA, pool, [names[i] for i in some], some)
        query = kit.query(MAMBA, kit.TRAILING, 1)
        ends.append(store.batch_exists_v2(names, [query]).restorable_prefix_pages)
        absent = store.batch_exists_v2(kit.keys(3, "absent"), [query])
        assert absent.restorable_prefix_pages == []
    assert ends == [[1, 3], [1, 2]]


def test_b06_missing_indexer_pages_limit_the_prefix(hit_of):
    pool = kit.paged("indexer")
    found = hit_of("1111", (INDEXER, pool, "1101", kit.query(INDEXER)))
    assert found == (2, [1, 2], {"kv": 4, INDEXER: 2})
    load = kit.transfer(INDEXER, pool, hit_of.names, range(4))
    assert hit_of.store.batch_get_v2([load]) == {INDEXER: [True, True, False, True]}


def test_b07_pages_without_a_head_are_no_hit(hit_of):
    found = hit_of("00" + "1" * 126, swa("00" + "1" * 126))
    assert found == (0, [], {"kv": 0, SWA: 0})


def test_b09_first_run_beside_an_old_kv_cache(hit_of):
    assert hit_of("1111", mamba("0000")) == (0, [], {"kv": 4, MAMBA: 0})
    store, names = hit_of.store, hit_of.names
    pool = store.registered_pools[MAMBA]
    kit.put(store, MAMBA, pool, names[3:], [0])
    hit = store.batch_exists_v2(names, [kit.query(MAMBA, kit.TRAILING, 1)])
    assert (hit.kv_hit_pages, hit.restorable_prefix_pages) == (4, [4])


@pytest.mark.parametrize("policy", [kit.ALL, kit.TRAILING])
@pytest.mark.parametrize("tag", [{}, {"namespace": ""}, {"namespace": "t1"}])
def test_b10_one_key_form_for_set_exists_and_get(site, policy, tag):
    pools = {SWA: kit.paged("swa"), MAMBA: kit.mamba()}
    anchor, names = kit.mha(), kit.keys(2)
    store = site.attach(anchor, pools, **tag)
    other = site.attach(anchor, pools, namespace="t2")
    kit.put_kv(store, anchor, names, [0, 1])
    queries = [kit.query(name, policy, 1) for name in pools]
    for name, pool in pools.items():
        kit.put(store, name, pool, names, [0, 1])
    assert store.batch_exists_v2(names, queries).kv_hit_pages == 2
    for name, pool in pools.items():
        load = kit.transfer(name, pool, names, [2, 3])
        assert store.batch_get_v2([load]) == {name: [True, True]}
        assert other.batch_get_v2([load]) == {name: [False, False]}
    assert other.batch_exists_v2(names, queries).kv_hit_pages == 0


def test_b11_exists_does_not_insist_on_a_broken_page(site):
    anchor, names = kit.mha(), kit.keys(3)
    store = site.attach(anchor)
    kit.put_kv(store, anchor, names, range(3))
    path = kit.block_of(site, store, "kv", names[1])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert store.batch_get_v1(names, kit.slots(anchor, range(3))) == [True, False, True]
    assert store.batch_exists(names) == 1
    kit.put_kv(store, anchor, names[1:2], [1])
    assert store.batch_exists(names) == 3


def test_b58_draft_pages_limit_the_hit_when_they_are_listed(site):
    anchor, draft, names = kit.mha(), kit.mha(), kit.keys(3)
    store = site.attach(anchor, {DRAFT: draft})
    kit.put_kv(store, anchor, names, range(3))
    kit.put(store, DRAFT, draft, names[:2], [0, 1])
    assert store.batch_exists_v2(names, [kit.query(DRAFT)]).kv_hit_pages == 2
    assert store.batch_exists_v2(names, []).kv_hit_pages == 3
    # A draft pool need not have a kv_buffer: the page calls are all that is used.
    bare = kit.Pages(kit.paged("draft"))
    store.register_mem_host_pool_v2(bare, PoolName.DRAFT_SWA)
    kit.put(store, PoolName.DRAFT_SWA, bare, names, range(3))
