"""clear(): this deployment's pages go, and nothing that could be anybody else's."""

import errno
import os
import threading
import time

import hicache_kit as kit
import pytest
import torch
from hicache_kit import PoolName

from ucm.integration.sglang import clearing

SWA, MAMBA = PoolName.SWA, PoolName.MAMBA


def attach(site, names=(), **kw):
    """An anchor and two pools with pages stored under these names."""
    anchor, pools = kit.mha(), {SWA: kit.paged("swa"), MAMBA: kit.mamba()}
    store = site.attach(anchor, pools, **kw)
    for pool in (anchor, *pools.values()):
        kit.fill(pool, range(4))
    if names:
        kit.put_kv(store, anchor, names, range(len(names)))
        for name, pool in pools.items():
            kit.put(store, name, pool, names, range(len(names)))
    return store, anchor, pools


def hits(store, names):
    """Pages that any of the pools still has."""
    pools = store.connector._with_stores()
    return sum(int(pool.presence(names).sum()) for pool in pools)


def test_every_page_goes_and_the_store_goes_on(site, messages):
    names = kit.keys(4)
    store, anchor, pools = attach(site, names, backends=2)
    assert hits(store, names) == 12
    assert store.clear() is True
    assert site.files() == [] and hits(store, names) == 0
    assert "L3 pool swa: removed" in messages()
    kit.put_kv(store, anchor, names, range(4))
    kit.put(store, SWA, pools[SWA], names, range(4))
    assert hits(store, names) == 8
    assert store.clear() is True


def test_other_files_survive(site):
    names = kit.keys(2)
    store, *_ = attach(site, names)
    root = site.backends[0]
    folder = next(path for path in root.iterdir() if len(path.name) == 1)
    foreign = [
        root / "notes.txt",
        folder / "README",
        folder / ("0" * 31),
        root / ".tmp" / f"{'0' * 32}.1.x",
        root / "sglang_v2" / "mine.txt",
        root / "other-tool" / ("a" * 32),
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    markers = sorted(root.rglob(".layout/*.json"))
    assert store.clear() is True
    assert [path for path in foreign if not path.exists()] == []
    assert sorted(root.rglob(".layout/*.json")) == markers != []
    assert sorted(site.files()) == sorted(foreign)


def test_another_model_keeps_its_pages(site, messages):
    """Shared folders refuse for both, and nothing at all is removed."""
    names = kit.keys(3)
    mine, *_ = attach(site, names, model="org/mine")
    theirs, *_ = attach(site, names, model="org/theirs")
    before = site.files()
    assert mine.clear() is False and theirs.clear() is False
    assert site.files() == before
    assert "also holds pages of 'org/theirs'" in messages()
    assert "ucm_connector_config.namespace" in messages()


def test_one_shared_folder_refuses_for_all(site):
    """Of a deployment with pools of its own beside a shared primary KV, nothing goes."""
    names = kit.keys(2)
    mine, *_ = attach(site, names, model="org/mine")
    site.attach(kit.mha(), {}, model="org/theirs")
    before = site.files()
    assert mine.clear() is False
    assert site.files() == before


def test_a_namespace_is_its_deployments_own(site):
    names = kit.keys(2)
    mine, *_ = attach(site, names, model="org/mine", namespace="mine")
    theirs, *_ = attach(site, names, model="org/theirs")
    old = kit.block_of(site, mine, "kv", names[0])
    os.utime(old, (1, 1))
    assert mine.clear() is True
    assert hits(mine, names) == 0 and hits(theirs, names) == 6


def test_a_namespace_that_two_models_share_is_nobodys_own(site, messages):
    names = kit.keys(2)
    mine, *_ = attach(site, names, model="org/mine", namespace="prod")
    theirs, *_ = attach(site, names, model="org/theirs", namespace="prod")
    assert mine.clear() is False
    assert hits(mine, names) == hits(theirs, names) == 6
    assert "also holds pages of 'org/theirs'" in messages()


def test_every_rank_of_one_model_may_clear(site):
    """Ranks share folders: one clears all, the others find nothing left."""
    names = kit.keys(2)
    ranks = [attach(site, names, tp=(rank, 2))[0] for rank in range(2)]
    assert [store.clear() for store in ranks] == [True, True]
    assert site.files() == []


def test_blocks_from_before_the_first_marker_stay(site, messages):
    """They may be another model's: a UCM without markers wrote them."""
    names = kit.keys(3)
    store, *_ = attach(site, names)
    old = kit.block_of(site, store, "kv", names[0])
    marker = next(path for path in site.backends[0].glob(".layout/*.json"))
    earlier = marker.stat().st_mtime - 1
    os.utime(old, (earlier, earlier))
    before = site.files()
    assert store.clear() is False
    assert site.files() == before
    assert "1 blocks are older than its first marker" in messages()


def test_blocks_of_an_unknown_size_stay(site, messages):
    """Another engine's UCM, which writes no markers, may share the primary folder."""
    names = kit.keys(3)
    store, *_ = attach(site, names)
    foreign = kit.block_of(site, store, "kv", names[0])
    foreign.write_bytes(b"x" * 100)
    before = site.files()
    assert store.clear() is False
    assert site.files() == before
    assert "of a size that none tells" in messages()


@pytest.mark.parametrize("damage", ["unreadable", "gone"])
def test_no_clear_without_a_marker_to_go_by(site, messages, damage):
    names = kit.keys(1)
    store, *_ = attach(site, names)
    before = site.files()
    for marker in site.backends[0].rglob(".layout/*.json"):
        marker.write_text("{") if damage == "unreadable" else marker.unlink()
    assert store.clear() is False
    assert site.files() == before
    assert (
        "cannot be read" if damage == "unreadable" else "no page format"
    ) in messages()


def test_a_model_that_comes_meanwhile_keeps_its_pages(site, monkeypatch):
    """Between the look at the markers and the first deletion."""
    names = kit.keys(2)
    mine, *_ = attach(site, names, model="org/mine")
    others = []
    clear_one = clearing._clear

    def come_first(*args):
        if not others:
            time.sleep(0.02)  # the kernel's clock of files ticks in milliseconds
            others.append(attach(site, names, model="org/theirs")[0])
        return clear_one(*args)

    monkeypatch.setattr(clearing, "_clear", come_first)
    assert mine.clear() is True
    assert hits(mine, names) == 0 and hits(others[0], names) == 6


@pytest.mark.parametrize("where", ["unlink", "scandir"])
def test_a_folder_that_refuses_is_told(site, monkeypatch, messages, where):
    names = kit.keys(2)
    store, *_ = attach(site, names)

    def refuse(path=".", *_, **kw):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(os, where, refuse)
    assert store.clear() is False
    monkeypatch.undo()
    assert hits(store, names) == 6
    assert "clear(): " in messages() and "Read-only file system" in messages()


def test_a_logical_anchor_clears_its_pools(site):
    c4 = kit.paged("deepseek_v4_c4")
    kit.fill(c4, range(2))
    store = site.attach(kit.logical(), {PoolName.DEEPSEEK_V4_C4: c4}, mla=True)
    kit.put(store, PoolName.DEEPSEEK_V4_C4, c4, kit.keys(2), range(2))
    assert store.clear() is True and site.files() == []


def test_nothing_after_close(site):
    names = kit.keys(2)
    store, *_ = attach(site, names)
    before = site.files()
    store.close()
    assert store.clear() is False
    assert site.files() == before


def test_beside_another_writer_and_reader(site):
    """Pages are whole or missing at every moment, and what is stored afterwards is there."""
    names = kit.keys(4)
    clearer, *_ = attach(site, names)
    writer, anchor, pools = attach(site)
    wanted = kit.contents(pools[SWA], range(4))
    stop, wrong, rounds = threading.Event(), [], []

    def work():
        while not stop.is_set():
            kit.put(writer, SWA, pools[SWA], names, range(4))
            kit.poison(pools[SWA], range(4, 8))
            move = [kit.transfer(SWA, pools[SWA], names, range(4, 8))]
            done = writer.batch_get_v2(move)[SWA]
            found = kit.contents(pools[SWA], range(4, 8))
            wrong.extend(
                ok and not torch.equal(a, b)
                for ok, a, b in zip(done, found, wanted, strict=True)
            )
            rounds.append(done)

    thread = threading.Thread(target=work)
    thread.start()
    results = []
    while len(rounds) < 50 or len(results) < 50:
        results.append(clearer.clear())
    stop.set()
    thread.join()
    assert not any(wrong) and all(results)
    assert any(not all(done) for done in rounds), "clear() never met a reader"
    kit.put(writer, SWA, pools[SWA], names, range(4))
    assert writer.connector.pools.get("swa").presence(names).all()
