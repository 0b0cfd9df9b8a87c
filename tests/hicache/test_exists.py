"""batch_exists_v2 on the real store, against a brute-force oracle."""

import itertools
from types import SimpleNamespace

import hicache_kit as kit
import numpy as np
import pytest
from hicache_kit import PoolHitPolicy, PoolName
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ucm.integration.sglang import hit_policy

SWA, MAMBA, C4 = PoolName.SWA, PoolName.MAMBA, PoolName.DEEPSEEK_V4_C4
MAX_PAGES = 6
_run = itertools.count()


@pytest.fixture(scope="module", params=["physical", "logical"])
def attached(request):
    """One store for all examples; each example has keys of its own."""
    pools = {SWA: kit.paged("swa"), MAMBA: kit.mamba(), C4: kit.paged("c4", row=32)}
    anchor = kit.mha() if request.param == "physical" else kit.logical()
    with kit.Site.temporary() as site:
        store = site.attach(anchor, pools, backends=2)
        yield SimpleNamespace(
            store=store, pools=pools, anchor=anchor, kind=request.param
        )


def put_present(attached, name, names, present):
    chosen = [i for i, there in enumerate(present) if there]
    if not chosen:
        return
    some = [names[i] for i in chosen]
    if name == "kv":
        kit.put_kv(attached.store, attached.anchor, some, chosen)
    else:
        kit.put(attached.store, name, attached.pools[name], some, chosen)


def oracle(pages, requirements):
    """Straight from the definition: (restorable lengths, each pool's own boundary)."""

    def legal(present, policy, window, p):
        first = 0 if policy == kit.ALL else max(0, p - max(1, window))
        return all(present[first:p])

    lengths = range(1, pages + 1)
    ends = {
        name: [p for p in lengths if legal(present, policy, window, p)]
        for name, present, policy, window in requirements
    }
    both = [p for p in lengths if all(p in e for e in ends.values())]
    return both, {name: max(e, default=0) for name, e in ends.items()}


requirement = st.tuples(
    st.sampled_from([SWA, MAMBA, C4]),
    st.lists(st.booleans(), min_size=MAX_PAGES, max_size=MAX_PAGES),
    st.sampled_from([kit.ALL, kit.TRAILING]),
    st.integers(0, 4),
)
requirements_of = st.lists(requirement, max_size=3, unique_by=lambda r: r[0])


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    length=st.integers(0, MAX_PAGES),
    kv=st.lists(st.booleans(), min_size=MAX_PAGES, max_size=MAX_PAGES),
    requirements=requirements_of,
)
def test_against_the_oracle(attached, length, kv, requirements):
    names = kit.keys(MAX_PAGES, f"run{next(_run)}")
    for name, present, _, _ in requirements:
        put_present(attached, name, names, present)
    pages, expected = length, {}
    if attached.kind == "physical":
        put_present(attached, "kv", names, kv)
        pages = [*kv[:length], False].index(False)
        expected[PoolName.KV] = pages
    ends, boundaries = oracle(pages, requirements)
    if attached.kind == "logical" and not requirements:
        ends = []
    queries = [kit.query(name, policy, w) for name, _, policy, w in requirements]
    hit = attached.store.batch_exists_v2(names[:length], queries)
    assert hit.restorable_prefix_pages == ends
    assert hit.kv_hit_pages == max(ends, default=0)
    assert hit.extra_pool_hit_pages == expected | boundaries


@given(pages=st.integers(0, 40), requirements=requirements_of)
def test_policy_against_the_oracle(pages, requirements):
    """The pure part alone, over longer prefixes."""
    requirements = [
        (name, (present * 7)[:pages], policy, window)
        for name, present, policy, window in requirements
    ]
    verdict = hit_policy.judge(
        pages,
        [
            hit_policy.PoolPresence(n.value, np.array(p, dtype=bool), policy.value, w)
            for n, p, policy, w in requirements
        ],
    )
    ends, boundaries = oracle(pages, requirements)
    assert (verdict.restorable, verdict.boundaries) == (ends, boundaries)


@pytest.mark.parametrize(
    "present, block, group, covered",
    [
        ("111111", 2, 1, 6),
        ("101010", 2, 1, 6),
        ("100010", 2, 1, 2),
        ("010101", 2, 1, 0),
        ("11011", 2, 2, 2),
        ("111", 2, 2, 2),
        ("110", 0, 0, 2),
        ("", 2, 1, 0),
        ("1", 2, 1, 0),
    ],
)
def test_block_groups_report_and_never_gate(attached, present, block, group, covered):
    """Pages covered by the leading complete groups; the other pools alone decide the hit."""
    names = kit.keys(len(present), f"groups{next(_run)}")
    put_present(attached, SWA, names, [c == "1" for c in present])
    put_present(attached, C4, names, [True] * len(names))
    if attached.kind == "physical":
        put_present(attached, "kv", names, [True] * len(names))
    groups = kit.query(SWA, PoolHitPolicy.BLOCK_GROUPS)
    groups.block_pages, groups.group_pages = block, group
    hit = attached.store.batch_exists_v2(names, [groups, kit.query(C4)])
    assert hit.extra_pool_hit_pages[SWA] == covered
    assert hit.kv_hit_pages == len(present)
    alone = attached.store.batch_exists_v2(names, [groups])
    assert alone.kv_hit_pages == (len(present) if attached.kind == "physical" else 0)


def test_asks_only_the_listed_pools_and_each_once(attached, monkeypatch):
    """One native lookup per pool and batch, over all candidate pages."""
    names = kit.keys(4, f"asked{next(_run)}")
    if attached.kind == "physical":
        put_present(attached, "kv", names, [True] * 4)
    asked = []
    lookup = kit.FaultStore.lookup
    monkeypatch.setattr(
        kit.FaultStore,
        "lookup",
        lambda self, ids: asked.append(len(ids)) or lookup(self, ids),
    )
    attached.store.batch_exists_v2(names, [kit.query(SWA), kit.query(C4)])
    assert asked == [4, 4]


def test_kv_only(attached):
    """Without transfers a physical anchor hits its own prefix, a logical one nothing."""
    names = kit.keys(3, f"alone{next(_run)}")
    if attached.kind == "physical":
        put_present(attached, "kv", names, [True, True, False])
        hit = attached.store.batch_exists_v2(names)
        assert (hit.kv_hit_pages, hit.restorable_prefix_pages) == (2, [1, 2])
        assert hit.extra_pool_hit_pages == {PoolName.KV: 2}
    for transfers in (None, []):
        hit = attached.store.batch_exists_v2(kit.keys(3, "absent"), transfers)
        assert (hit.kv_hit_pages, hit.restorable_prefix_pages) == (0, [])


def test_results_of_older_releases():
    """A release whose result has no list of lengths gets the two fields it has."""
    from dataclasses import dataclass

    from ucm.integration.sglang.sglang_release import hit_result

    @dataclass
    class Old:
        kv_hit_pages: int
        extra_pool_hit_pages: dict

    assert hit_result(Old, {"swa": 2}, [1, 2]) == Old(2, {"swa": 2})


def test_logical_v1_exists_asks_the_pools_that_follow_kv(site):
    """exists and batch_exists answer from evidence: all registered KV-derived pools."""
    anchor, names = kit.logical(), kit.keys(4)
    store = site.attach(anchor)
    assert store.batch_exists(names) == 0 and not store.exists(names[0])
    pools = {
        C4: kit.paged("c4"),
        PoolName.DEEPSEEK_V4_C128: kit.paged("c128", row=32),
        PoolName.DEEPSEEK_V4_C4_STATE: kit.state("state"),
        PoolName.DRAFT: kit.mla(),
    }
    for name, pool in pools.items():
        store.register_mem_host_pool_v2(pool, name)
    kit.put(store, C4, pools[C4], names[:3], range(3))
    assert store.batch_exists(names) == 0
    kit.put(
        store,
        PoolName.DEEPSEEK_V4_C128,
        pools[PoolName.DEEPSEEK_V4_C128],
        names,
        range(4),
    )
    assert store.batch_exists(names) == 3 and store.exists(names[2])
    assert not store.exists(names[3])
    # A transfer that names its source counts more than what the pool is called.
    draft = kit.query(PoolName.DRAFT, indices_from_pool=PoolName.KV)
    store.batch_exists_v2(names, [draft])
    assert store.batch_exists(names) == 0
