"""Field cases B37 to B55: failures, concurrency, resources and configuration."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import hicache_kit as kit
import numpy as np
import pytest
import torch
from hicache_kit import FaultStore, PoolName

SWA, MAMBA, C4 = PoolName.SWA, PoolName.MAMBA, PoolName.DEEPSEEK_V4_C4


def swa_store(site, pages=8, **kw):
    pool = kit.paged("swa", pages=pages)
    return site.attach(kit.logical(), {SWA: pool}, **kw), pool


@pytest.mark.parametrize("call", ["load", "dump", "wait", "lookup"])
def test_b37_no_exception_leaves_the_backend(site, call):
    """The same for pools, page by page, in test_results.py."""

    def boom(_):
        raise RuntimeError("injected")

    (store, pool), names = swa_store(site), kit.keys(2)
    moved = [kit.transfer(SWA, pool, names, [0, 1])]
    FaultStore.faults[call] = boom
    put, got = store.batch_set_v2(moved), store.batch_get_v2(moved)
    hit = store.batch_exists_v2(names, [kit.query(SWA)])
    assert put == {SWA: [call in ("load", "lookup")] * 2}
    assert got == {SWA: [call == "lookup"] * 2}
    if (
        call != "wait"
    ):  # Nobody waited for the pages then: they may be there or not yet.
        found = [] if call in ("lookup", "dump") else [1, 2]
        assert hit.restorable_prefix_pages == found
    FaultStore.faults.clear()
    assert store.batch_set_v2(moved) == store.batch_get_v2(moved) == {SWA: [True, True]}


def test_b38_capacity_settings_do_not_reach_sidecars(site):
    """A capacity too small for the formula of a large page no longer stops the server."""
    pools = {MAMBA: kit.mamba(temporal=(64, 128, 128), layers=2, pages=1)}
    assert kit.page_bytes(pools[MAMBA]) > 8 << 20
    site.attach(kit.logical(), pools, posix_capacity_gb=500)


@pytest.mark.parametrize("damage", ["empty", "half", "longer", "folder", "gone"])
def test_b39_a_damaged_file_is_a_miss_of_its_page(site, damage):
    (store, pool), names = swa_store(site), kit.keys(3)
    kit.put(store, SWA, pool, names, range(3))
    path = kit.block_of(site, store, SWA, names[1])
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes(
            {"empty": b"", "half": content[:96], "longer": content * 2}[damage]
        )
    load = kit.transfer(SWA, pool, names, range(3))
    assert store.batch_get_v2([load]) == {SWA: [True, False, True]}
    assert store.batch_exists_v2(names, [kit.query(SWA)]).restorable_prefix_pages == [1]


def test_b40_leftovers_of_a_killed_writer(site):
    """A temporary file is no hit; the next dump of the key is whole."""
    (store, pool), names = swa_store(site), kit.keys(1)
    data = kit.fill(pool, [0])
    kit.put(store, SWA, pool, names, [0])
    path = kit.block_of(site, store, SWA, names[0])
    path.unlink()
    path.with_name(path.name + ".tmp").write_bytes(b"x" * 999)
    assert store.batch_exists_v2(names, [kit.query(SWA)]).kv_hit_pages == 0
    kit.put(store, SWA, pool, names, [0])
    assert path.read_bytes() == bytes(data[0].numpy())


def test_b41_many_writers_of_one_key(site):
    """Every read is one writer's page, whole."""
    stores = [swa_store(site) for _ in range(2)]
    names = kit.keys(1)
    for store, pool in stores:
        for page in range(8):
            kit.write(pool, page, torch.full((192,), page, dtype=torch.uint8))
        kit.put(store, SWA, pool, names, [1])

    def work(i):
        store, pool = stores[i % 2]
        if i < 6:
            return all(
                store.batch_set_v2([kit.transfer(SWA, pool, names, [1])])[SWA][0]
                for _ in range(50)
            )
        spare = kit.paged("swa")
        load, seen = kit.transfer(SWA, spare, names, [i - 6]), True
        for _ in range(50):
            seen &= store.batch_get_v2([load])[SWA][0]
        return seen

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert site.files()[0].read_bytes() == b"\x01" * 192


def test_b41_a_dump_that_cannot_be_published_is_a_failure(site):
    (store, pool), names = swa_store(site), kit.keys(1)
    kit.put(store, SWA, pool, names, [0])
    path = kit.block_of(site, store, SWA, names[0])
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("in the way")
    assert store.batch_set_v2([kit.transfer(SWA, pool, names, [0])]) == {SWA: [False]}
    assert store.batch_exists_v2(names, [kit.query(SWA)]).kv_hit_pages == 0


def test_b44_sidecars_may_come_later_and_twice(site):
    anchor, mamba, names = kit.mha(), kit.mamba(), kit.keys(4)
    store = site.attach(anchor, {MAMBA: mamba})
    kit.put_kv(store, anchor, names, range(4))
    for _ in range(2):
        kit.put(store, MAMBA, mamba, names[3:], [0])
        hit = store.batch_exists_v2(names, [kit.query(MAMBA, kit.TRAILING, 1)])
        assert (hit.kv_hit_pages, hit.restorable_prefix_pages) == (4, [4])


def test_b45_a_late_write_into_staging_reaches_no_page(site, monkeypatch):
    """The wait gives up, the read goes on: its staging page is not handed out until it ends."""
    mamba, names = kit.mamba(), kit.keys(2)
    store = site.attach(kit.logical(), {MAMBA: mamba})
    data = kit.fill(mamba, [0, 1])
    kit.put(store, MAMBA, mamba, names, [0, 1])
    real, late = FaultStore.load_data, {}

    def remember(self, ids, shards, addresses):
        late["page"] = addresses[0][0]
        return real(self, ids, shards, addresses)

    def give_up(self):
        FaultStore.faults.pop("wait")
        raise RuntimeError("timeout")

    monkeypatch.setattr(FaultStore, "load_data", remember)
    monkeypatch.setattr(FaultStore, "check", lambda self, task: "ended" in late)
    FaultStore.faults["wait"] = give_up
    load = [kit.transfer(MAMBA, mamba, names[:1], [2])]
    assert store.batch_get_v2(load) == {MAMBA: [False]}
    held, deadline = late["page"], time.monotonic() + 0.3
    while time.monotonic() < deadline:
        np.ctypeslib.as_array(kit.bytes_at(held, 360))[:] = 0xEE
        assert store.batch_get_v2([kit.transfer(MAMBA, mamba, names, [2, 3])])[MAMBA][0]
        assert torch.equal(kit.contents(mamba, [2, 3]), data)
        assert late["page"] != held
    late["ended"] = True
    staging = store.connector.pools.get(MAMBA).staging
    assert held in {page.data_ptr() for page in staging.lease(staging.limit)}


def test_b45_staging_that_never_comes_free_fails_pages_not_the_engine(
    site, monkeypatch
):
    """Retired pages are bounded; then transfers fail after a wait, and recover."""
    from ucm.integration.sglang import pool_store

    monkeypatch.setattr(pool_store, "_STAGING_TIMEOUT_S", 0.2)
    mamba, names, free = kit.mamba(pages=64), kit.keys(40), []
    store = site.attach(kit.logical(), {MAMBA: mamba})
    kit.put(store, MAMBA, mamba, names, range(40))
    monkeypatch.setattr(FaultStore, "check", lambda self, task: bool(free))

    def give_up(self):
        raise RuntimeError("timeout")

    FaultStore.faults["wait"] = give_up
    load = [kit.transfer(MAMBA, mamba, names, range(40))]
    assert store.batch_get_v2(load) == {MAMBA: [False] * 40}
    FaultStore.faults.clear()
    assert store.batch_get_v2(load) == {MAMBA: [False] * 40}
    free.append(True)
    assert store.batch_get_v2(load) == {MAMBA: [True] * 40}


@pytest.fixture
def small_disk(site):
    """The site's backends on a tmpfs of 1 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "small-disk", str(site.root)]
    run = subprocess.run(mount, capture_output=True, text=True, check=False)
    if run.returncode:
        pytest.skip(f"mounting needs root, as CI has it: {run.stderr.strip()}")
    for path in site.backends:
        path.mkdir()
    yield site.root
    site.close()
    subprocess.run(["umount", "-l", str(site.root)], check=True)


def test_b46_a_full_disk_is_told_and_survived(site, small_disk, messages):
    """A file system without room: told once with errno, pool and path; gone without restart."""
    (store, pool), names = swa_store(site), kit.keys(2)
    moved = [kit.transfer(SWA, pool, names, [0, 1])]
    filler = small_disk / "filler"
    with suppress(OSError), open(filler, "wb", buffering=0) as file:
        while file.write(bytes(1024)):
            pass
    for _ in range(5):
        assert store.batch_set_v2(moved) == {SWA: [False, False]}
    line = messages()
    assert line.count("L3 set failed for 2 of 2 pages of pool swa in") == 1
    assert "ENOSPC" in line and str(small_disk) in line
    assert store.batch_exists_v2(names, [kit.query(SWA)]).kv_hit_pages == 0
    filler.unlink()
    assert not site.files()
    assert store.batch_set_v2(moved) == {SWA: [True, True]}
    assert store.batch_exists_v2(names, [kit.query(SWA)]).kv_hit_pages == 2


def test_b47_threads_and_time_of_seven_pools(site):
    before, start = kit.threads(), time.monotonic()
    site.attach(kit.logical(), {f"pool{i}": kit.paged("p") for i in range(7)})
    assert kit.threads() - before <= 8
    assert time.monotonic() - start < 5


def test_b48_pools_share_no_folder_and_collect_no_garbage(site):
    pools = {SWA: kit.paged("swa"), C4: kit.paged("c4"), MAMBA: kit.mamba()}
    store = site.attach(kit.mha(), pools, posix_capacity_gb=1000)
    configs = [store.connector.pools.get(n).store.config for n in pools]
    folders = [c["storage_backends"][0] for c in configs]
    assert len({*folders, str(site.backends[0])}) == 4
    assert not any("posix_capacity_gb" in c or c["posix_gc_enable"] for c in configs)


def test_b51_see_lifecycle(site):
    """Attach and detach: test_lifecycle.py; here the store of one pool alone."""
    store, _ = swa_store(site)
    before = kit.open_stores()
    store.close()
    assert kit.open_stores() == before - 1


def test_b52_instantiable_and_honest_about_clear(site, messages):
    store, _ = swa_store(site)
    assert not store.__abstractmethods__
    assert store.clear() is True and "removed 0 pages" in messages()


def test_b53_b54_see_configuration():
    """Every wrong form and its words: test_config.py."""
    import test_config

    assert {"no interface_v1", "no backends", "an empty part"} <= set(test_config.BAD)


TREES = {
    "memory_pool_host": "memory_pool_host.py",
    "pool_host": "pool_host.py",
    "neither": None,
}


@pytest.mark.parametrize("tree", TREES)
def test_b55_where_sglang_keeps_its_host_pool_class(tmp_path, tree):
    """Either place imports; with neither the message gives the supported releases."""
    root = tmp_path / "sglang" / "srt" / "mem_cache"
    root.mkdir(parents=True)
    for folder in (root, root.parent, root.parent.parent):
        (folder / "__init__.py").touch()
    if TREES[tree]:
        (root / TREES[tree]).write_text("class HostKVCache: pass")
    code = "import ucm.integration.sglang.sglang_release as r; print(r.HostKVCache)"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if TREES[tree]:
        assert run.returncode == 0, run.stderr
    else:
        assert "0.5.10 to 0.5.23" in run.stderr and "ImportError" in run.stderr


def test_b55_a_group_as_context_is_unwrapped(site):
    from ucm.integration.sglang.unifiedcache_store import UnifiedCacheStore

    anchor = kit.mha()
    store = UnifiedCacheStore(site.config(), kit.group(anchor, swa=kit.paged("swa")))
    assert store.mem_pool_host is anchor
    store.close()
    assert UnifiedCacheStore(site.config(), {}).mem_pool_host is None
