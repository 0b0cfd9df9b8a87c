"""What an operator can see of each pool: counts, SGLang's metrics, UCM's metrics, log lines."""

import os
import subprocess
import sys
import textwrap

import hicache_kit as kit
import prometheus_client as prometheus
import pytest
from hicache_kit import FaultStore, PoolName

from ucm.integration.sglang import ucm_connector

SWA, MAMBA = PoolName.SWA, PoolName.MAMBA


def boom(*_):
    raise RuntimeError("injected")


@pytest.fixture
def attached(site):
    """A physical anchor with two pools, pages 0..3 filled, nothing stored."""
    anchor, pools = kit.mha(), {SWA: kit.paged("swa"), MAMBA: kit.mamba()}
    store = site.attach(anchor, pools, enable_storage_metrics=True)
    for pool in (anchor, *pools.values()):
        kit.fill(pool, range(4))
    return store, anchor, pools, kit.keys(4)


def counts(store, pool):
    return store.connector.statistics()[pool]


def test_pages_and_bytes_of_each_pool(attached):
    store, anchor, pools, names = attached
    kit.put_kv(store, anchor, names, range(4))
    kit.put(store, SWA, pools[SWA], names[:3], range(3))
    store.batch_get_v1(names[:2], kit.slots(anchor, range(4, 6)))
    store.batch_get_v2([kit.transfer(SWA, pools[SWA], names, range(4, 8))])
    kv, swa, mamba = (counts(store, name) for name in ("kv", "swa", "mamba"))
    assert (kv.stores, kv.stored_pages, kv.failed_store_pages) == (1, 4, 0)
    assert (kv.loads, kv.loaded_pages, kv.failed_load_pages) == (1, 2, 0)
    assert kv.stored_bytes == 4 * kit.page_bytes(anchor) == 2 * kv.loaded_bytes
    assert (swa.stored_pages, swa.loaded_pages, swa.failed_load_pages) == (3, 3, 1)
    assert swa.loaded_bytes == 3 * kit.page_bytes(pools[SWA])
    assert 0 < swa.load_seconds < 10 and 0 < swa.store_seconds < 10
    assert swa.last_error.startswith("get: ") and "ENOENT" in swa.last_error
    assert (mamba.loads, mamba.stores, mamba.last_error) == (0, 0, "")


def test_lookups_are_not_loads(attached):
    """A hit rate is pages found of pages asked for, whatever is loaded afterwards."""
    store, anchor, pools, names = attached
    kit.put_kv(store, anchor, names, range(4))
    kit.put(store, SWA, pools[SWA], names[:1], range(1))
    store.batch_exists_v2([*names, "gone"], [kit.query(SWA), kit.query(MAMBA)])
    kv, swa, mamba = (counts(store, name) for name in ("kv", "swa", "mamba"))
    assert (kv.lookups, kv.looked_up_pages, kv.hit_pages) == (1, 5, 4)
    assert (swa.lookups, swa.looked_up_pages, swa.hit_pages) == (1, 4, 1)
    assert (mamba.looked_up_pages, mamba.hit_pages) == (4, 0)
    assert kv.loads == swa.loads == 0


@pytest.mark.parametrize("fault", ["lookup", "load", "wait"])
def test_failures_are_counted_and_named(attached, fault):
    store, _, pools, names = attached
    kit.put(store, SWA, pools[SWA], names, range(4))
    FaultStore.faults[fault] = boom
    store.connector.pools.get("swa").presence(names)
    store.batch_get_v2([kit.transfer(SWA, pools[SWA], names, range(4))])
    swa = counts(store, "swa")
    if fault == "lookup":
        assert (swa.failed_lookups, swa.looked_up_pages, swa.hit_pages) == (1, 4, 0)
        assert swa.loaded_pages == 4
    else:
        assert (swa.loaded_pages, swa.failed_load_pages) == (0, 4)
        assert swa.hit_pages == 4
    assert "injected" in swa.last_error


def test_sglang_gets_one_sample_a_call(attached):
    """Pages of the longest pool; bytes of all pools in the call's time."""
    store, anchor, pools, names = attached
    kit.put_kv(store, anchor, names, range(4))
    store.batch_set_v2(
        [
            kit.transfer(SWA, pools[SWA], names, range(4)),
            kit.transfer(MAMBA, pools[MAMBA], names[:1], range(1)),
        ]
    )
    store.batch_get_v2([kit.transfer(SWA, pools[SWA], names[:2], range(2))])
    metrics = store.get_stats()
    assert (metrics.backup_pgs, metrics.prefetch_pgs) == ([4, 4], [2])
    assert all(0 < speed < 1000 for speed in metrics.backup_bandwidth)
    assert len(metrics.prefetch_bandwidth) == 1
    again = store.get_stats()
    assert (again.backup_pgs, again.prefetch_pgs) == ([], [])


def test_a_call_that_moved_nothing_is_no_sample(attached):
    store, _, pools, names = attached
    store.batch_get_v2([kit.transfer(SWA, pools[SWA], names, range(4))])
    store.batch_get_v2([])
    assert store.get_stats().prefetch_pgs == []


def test_an_unasked_sglang_costs_no_memory(attached):
    store, _, pools, names = attached
    kit.put(store, SWA, pools[SWA], names[:1], range(1))
    one = [kit.transfer(SWA, pools[SWA], names[:1], range(1))]
    for _ in range(1500):
        store.batch_get_v2(one)
    assert len(store.get_stats().prefetch_pgs) <= 1024


def test_prometheus_counters_by_pool_and_rank(site):
    anchor, swa = kit.mha(), kit.paged("swa")
    kit.fill(swa, range(2))
    store = site.attach(
        anchor, {SWA: swa}, enable_storage_metrics=True, tp=(1, 2), model="org/counted"
    )
    kit.put(store, SWA, swa, kit.keys(2), range(2))

    def value(name, pool="swa"):
        labels = {
            "model_name": "org/counted",
            "tp_rank": "1",
            "pp_rank": "0",
            "cp_rank": "0",
            "pool": pool,
        }
        return prometheus.REGISTRY.get_sample_value(f"ucm:hicache_{name}_total", labels)

    assert value("stored_pages") == 2
    assert value("stored_bytes") == 2 * kit.page_bytes(swa)
    assert value("loaded_pages") is None and value("stored_pages", "kv") is None
    store.close()
    again = site.attach(
        anchor, {SWA: swa}, enable_storage_metrics=True, tp=(1, 2), model="org/counted"
    )
    kit.put(again, SWA, swa, kit.keys(2, "b"), range(2))
    assert value("stored_pages") == 4


def test_no_metrics_unless_asked_for(site):
    swa = kit.paged("swa")
    store = site.attach(kit.mha(), {SWA: swa}, model="org/silent")
    kit.put(store, SWA, swa, kit.keys(1), range(1))
    text = prometheus.generate_latest().decode()
    assert "org/silent" not in text
    assert counts(store, "swa").stored_pages == 1


UCM_METRICS = """
    import json, os, sys, tempfile
    from pathlib import Path
    sys.path[:0] = [{tests!r}, {tree!r}]
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp()
    import hicache_kit as kit
    from ucm.shared.metrics import ucmmetrics
    with kit.Site.temporary() as site:
        config = site.config()
        section = config.extra_config["kv_connector_extra_config"]
        section["metrics_config_path"] = {yaml!r}
        swa = kit.paged("swa")
        store = site.attach(kit.mha(), {{kit.PoolName.SWA: swa}}, config)
        kit.put(store, kit.PoolName.SWA, swa, kit.keys(2), range(2))
        print(json.dumps(ucmmetrics.get_all_stats_and_clear()[0]))
"""


def run(script, timeout=120):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LOGGER = """
    import atexit, os, sys, tempfile
    atexit.register(lambda: print("alive" if made.thread.is_alive() else "ended"))
    sys.path.insert(0, {tree!r})
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp()
    from ucm.observability import PrometheusStatsLogger
    made = PrometheusStatsLogger("org/model", 0, {yaml!r})
"""


def test_a_process_with_metrics_ends(tmp_path):
    """UCM's thread that updates them has ended then: Python ends none in native code."""
    tree = os.environ.get("UCM_TREE") or str(kit_tree())
    assert run(LOGGER.format(tree=tree, yaml=str(tmp_path / "none"))) == "ended\n"


def test_ucm_metrics(tmp_path):
    """The counters of the file, and only those."""
    yaml = tmp_path / "metrics.yaml"
    yaml.write_text(
        "log_interval: 60\n"
        f"multiproc_dir: {tmp_path}\n"
        "counter:\n"
        "  - {name: hicache_swa_stored_pages, documentation: pages}\n"
    )
    tree = os.environ.get("UCM_TREE") or str(kit_tree())
    here = os.path.dirname(kit.__file__)
    script = UCM_METRICS.format(tests=here, tree=tree, yaml=str(yaml))
    assert '{"hicache_swa_stored_pages": 2.0}' in run(script)


def kit_tree():
    import ucm

    return os.path.dirname(os.path.dirname(ucm.__file__))


def test_the_example_names_real_counts():
    import dataclasses

    import yaml

    from ucm.integration.sglang.pool_stats import PoolCounts

    with open(
        os.path.join(kit_tree(), "examples/metrics/sglang_hicache_metrics.yaml"),
        encoding="utf-8",
    ) as f:
        names = [entry["name"] for entry in yaml.safe_load(f)["counter"]]
    fields = [f.name for f in dataclasses.fields(PoolCounts)]
    pools = [str(name.value) for name in PoolName]
    allowed = {f"hicache_{pool}_{field}" for pool in pools for field in fields}
    assert len(names) == len(set(names)) and set(names) <= allowed


def test_a_metrics_file_that_is_not_there_is_refused(site):
    config = site.config()
    section = config.extra_config["kv_connector_extra_config"]
    section["metrics_config_path"] = "/nowhere.yaml"
    with pytest.raises(ValueError, match="metrics_config_path must be a YAML file"):
        site.attach(kit.mha(), {}, config)


def test_one_line_a_pool_at_start(site, messages):
    swa = kit.aligned(kit.paged("swa", layers=1, row=4096))
    site.attach(kit.mla(), {SWA: swa, MAMBA: kit.mamba()}, mla=True, tp=(1, 2))
    lines = [line for line in messages().splitlines() if line.startswith("L3 pool ")]
    assert [line.split()[2] for line in lines] == ["kv:", "swa:", "mamba:"]
    size = kit.page_bytes(swa)
    for part in (
        f"pages of 1 x {size} = {size} bytes, zero-copy",
        "engine psync, direct I/O off, owner rank 0",
        f"sglang_v2/swa_{size}x1",
    ):
        assert part in lines[1]
    assert "flattened" in lines[2] and "owner rank 1" in lines[2]


@pytest.mark.parametrize(
    "error, advice",
    [
        ("open(/x): EMFILE, Too many open files", "raise `ulimit -n`"),
        ("pwritev(/x): ENOSPC, No space left on device", "free space"),
        ("storage is stalled", "look at the device"),
        ("something else", "something else'"),
    ],
)
def test_a_failure_says_what_helps(attached, messages, error, advice):
    store, _, pools, names = attached

    def fail(*_):
        raise RuntimeError(error)

    FaultStore.faults["dump"] = fail
    store.batch_set_v2([kit.transfer(SWA, pools[SWA], names, range(4))])
    line = next(text for text in messages().splitlines() if "L3 set failed" in text)
    assert "4 of 4 pages of pool swa in " in line
    assert f"({kit.page_bytes(pools[SWA])} bytes a page)" in line
    assert error in line and advice in line


def test_a_failing_exporter_costs_no_page(site, monkeypatch, messages):
    """Nor is a transfer left that nobody waited for."""
    anchor, pools = kit.mha(), {SWA: kit.paged("swa"), MAMBA: kit.mamba()}
    broken = []

    def export(pool, changes):
        broken.append(pool)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ucm_connector, "exporters", lambda *_: [export])
    store = site.attach(anchor, pools)
    for pool in pools.values():
        kit.fill(pool, range(2))
    names = kit.keys(2)
    move = [kit.transfer(n, p, names, range(2)) for n, p in pools.items()]
    assert store.batch_set_v2(move) == dict.fromkeys(pools, [True, True])
    assert store.batch_get_v2(move) == dict.fromkeys(pools, [True, True])
    assert sorted(broken) == ["mamba", "swa"]
    assert messages().count("its counts are exported no more") == 2


def test_a_call_that_keeps_failing_is_logged_once(attached, monkeypatch, messages):
    store, _, pools, names = attached
    monkeypatch.setattr(store.connector.pools, "note_sources", boom)
    move = [kit.transfer(SWA, pools[SWA], names, range(4))]
    for _ in range(50):
        assert store.batch_get_v2(move) == {SWA: [False] * 4}
    assert messages().count("batch_get_v2 failed; answering a miss") == 1
