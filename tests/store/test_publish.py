"""A block appears whole or not at all, whoever writes it and whatever fails."""

import errno
import itertools
import os
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hosts import Process, small_disk
from kit import (
    Background,
    Pages,
    dump,
    dump_statuses,
    error_of,
    found,
    key,
    keys,
    load,
    load_statuses,
    rows,
    start_dump,
    statuses,
    stored,
    until,
)


def clean(site) -> bool:
    return until(lambda: not site.temporaries(), 3)


def test_invisible_until_whole(site, spec, faults):
    """While a dump writes its last shard, the block is neither found nor loaded."""
    spec = replace(spec, shards=2)
    store, ids, pages = site.open(spec), keys(1), Pages(spec, 1, 1)
    last = faults.add("write", site.root, offset=spec.shard_size, hold=True)
    task = start_dump(store, ids, pages)
    assert until(lambda: faults.active() > 0)
    assert found(store, ids) == [False] and not site.blocks()
    last.drop()
    store.wait(task)
    assert found(store, ids) == [True] and site.path(
        ids[0]
    ).read_bytes() == pages.block(0)


# ---- leftovers ----


def test_planted_names_are_not_written_through(site, spec):
    """A link or a longer file under a name that a dump could be expected to use: the link's
    target keeps its bytes, the block has its own."""
    outside = site.folder("outside") / "precious"
    outside.write_bytes(b"precious")
    store, ids, pages = site.open(spec), keys(2), Pages(spec, 2, 1)
    for name in site.adapter.guessable(site.root, ids[0]):
        name.symlink_to(outside)
    for name in site.adapter.guessable(site.root, ids[1]):
        name.write_bytes(b"x" * (spec.block_size + 999))
    dump(store, ids, pages)
    assert outside.read_bytes() == b"precious"
    assert [site.path(i).read_bytes() for i in ids] == [pages.block(i) for i in (0, 1)]


def test_link_in_place_of_a_block_is_not_written_through(site, spec):
    """A dump onto a link replaces the link or fails; what it points to keeps its bytes."""
    store, ids, pages = site.open(spec), keys(1), Pages(spec, 1, 1)
    outside = site.folder("outside") / "precious"
    outside.write_bytes(b"precious")
    site.path(ids[0]).symlink_to(outside)
    dump(store, ids, pages)
    assert outside.read_bytes() == b"precious"
    assert site.path(ids[0]).read_bytes() == pages.block(0)


def half_written(site, spec, faults, prefix: str) -> Process:
    """A process that hangs in the middle of a dump of two shards, whose file has a name."""

    def run():
        faults.add("write", site.root, offset=0, hold=True)
        two = replace(spec, shards=2)
        stored(site.open(two), two, 1, prefix)

    writer = Process(run)
    assert until(lambda: bool(site.temporaries()))
    return writer


def test_leftover_of_a_dead_writer_goes(site, spec, faults):
    """What a killed process left is never a block, and the next store removes it."""
    half_written(site, spec, faults, "dead").kill()
    assert site.temporaries() and not site.blocks()
    store = site.open(spec)
    assert found(store, keys(1, "dead")) == [False]
    assert clean(site)
    stored(store, spec, 1, "dead")
    assert found(store, keys(1, "dead")) == [True]


def test_temporary_of_a_live_writer_stays(site, spec, faults):
    """A store that opens while another process writes does not take its file away."""
    barrier = site.folder("barrier") / "go"
    spec = replace(spec, shards=2)  # one of one shard has no name

    def run():
        slow = faults.add("write", site.root, offset=0, hold=True)
        store = site.open(spec)
        pages = Pages(spec, 1, 1)
        task = start_dump(store, keys(1, "live"), pages)
        assert until(barrier.exists, 20)
        slow.drop()
        store.wait(task)
        return found(store, keys(1, "live"))

    writer = Process(run)
    assert until(lambda: bool(site.temporaries()))
    site.open(spec)
    time.sleep(0.5)
    barrier.touch()
    assert writer.result() == [True]
    assert clean(site)


# ---- every way to fail ----

FAILURES = {
    "open": dict(op="open", error=errno.EACCES),
    "first write": dict(op="write", error=errno.EIO),
    "later write": dict(op="write", offset=32768, error=errno.EDQUOT),
    "close": dict(op="close", error=errno.EIO),
    "rename": dict(op="publish", error=errno.EACCES),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failed_dump_is_named_and_leaves_nothing(site, spec, faults, case):
    """Whatever call fails, the dump fails with its errno, the block is absent, no temporary is
    left, and the next dump works."""
    spec = replace(spec, shards=2)
    effect = dict(FAILURES[case])
    store, ids, pages = site.open(spec), keys(2), Pages(spec, 2, 1)
    with faults.on(effect.pop("op"), site.root, **effect):
        text = error_of(lambda: dump(store, ids, pages))
    assert errno.errorcode[effect["error"]] in text
    assert found(store, ids) == [False, False] and not site.blocks() and clean(site)
    dump(store, ids, pages)
    assert site.path(ids[1]).read_bytes() == pages.block(1)


@pytest.mark.parametrize("op", ["write", "close", "publish"])
def test_failed_dump_keeps_the_others(site, spec, faults, op):
    """One failing block of eight: seven are stored whole, one is absent."""
    store, ids, pages = site.open(replace(spec, workers=1)), keys(8), Pages(spec, 8, 1)
    skip = 0 if op == "close" else 2  # every other close comes when all is told
    with faults.on(op, site.root, skip=skip, count=1, error=errno.ENOSPC):
        result = dump_statuses(store, ids, pages)
    assert sorted(result) == [False] + [True] * 7
    assert found(store, ids) == result and clean(site)


@pytest.mark.parametrize(
    "how, files, folders", [("none", 0, 0), ("data", 3, 0), ("full", 3, 3)]
)
def test_sync_is_done_as_asked(site, spec, faults, how, files, folders):
    """Flushing before publishing happens as configured, and never by default."""
    spec = replace(spec, options=site.adapter.syncing(how))
    store = site.open(spec)
    calls = faults.add("sync", site.root)
    ids, _ = stored(store, spec, 3)
    assert all(found(store, ids))
    assert (calls.seen >= files + folders) if files else (calls.seen == 0)


@pytest.mark.parametrize("how", ["data", "full"])
def test_failed_sync_fails_the_dump(site, spec, faults, how):
    """Bytes that did not reach the disk are not published."""
    spec = replace(spec, options=site.adapter.syncing(how))
    store, ids = site.open(spec), keys(1)
    with faults.on("sync", site.root, count=1, error=errno.EIO):
        assert "EIO" in error_of(lambda: dump(store, ids, Pages(spec, 1)))
    assert found(store, ids) == [False] and clean(site)


def test_full_disk(site, spec):
    """ENOSPC is named, what fits is stored whole, no temporary is left, and it works again once
    there is room."""
    disk = site.folder("disk")
    small_disk(disk, 700 * 1024)
    store, ids, pages = site.open(spec, disk), keys(32), Pages(spec, 32, 1)
    result = dump_statuses(store, ids, pages)
    assert True in result and False in result
    assert "ENOSPC" in error_of(lambda: dump(store, keys(32, "x"), pages))
    assert found(store, ids) == result
    assert until(lambda: not site.adapter.temporaries(disk), 3)
    copy = Pages(spec, 32)
    assert load_statuses(store, ids, copy) == result
    assert np.array_equal(copy.data[result], pages.data[result])
    for block in ids[:4]:
        site.adapter.path(disk, block).unlink(missing_ok=True)
    dump(store, keys(2, "again"), Pages(spec, 2))


def test_failing_writer_leaves_the_other_one_alone(site, spec, faults):
    """Of two writers of one key one fails; the other's block is stored."""
    store, ids = site.open(spec), keys(1)
    good = Pages(spec, 1, 1)
    slow = faults.add("write", site.root, count=1, hold=True)
    task = start_dump(store, ids, good)
    assert until(lambda: faults.active() > 0)
    bad = np.full((1, spec.components), 8, np.uint64)
    error_of(lambda: store.wait(store.dump_data(ids, [0], bad)))
    slow.drop()
    store.wait(task)
    assert site.path(ids[0]).read_bytes() == good.block(0)


# ---- blocks of several shards ----


@pytest.mark.parametrize("tasks", ["one task", "a task per shard"])
def test_shards_in_every_order(site, spec, tasks):
    """A block of three shards is visible after the last one, in whatever order they come."""
    spec = replace(spec, component=4096, shards=3)
    store = site.open(spec)
    for order in itertools.permutations(range(3)):
        ids, pages = keys(1, f"{tasks}{order}"), Pages(spec, 1, 1)
        pointers = pages.pointers()
        groups = [list(order)] if tasks == "one task" else [[s] for s in order]
        for group in groups:
            assert found(store, ids) == [False]
            store.wait(store.dump_data(ids * len(group), group, pointers[group]))
        assert found(store, ids) == [True]
        assert site.path(ids[0]).read_bytes() == pages.block(0)
    assert clean(site)


@pytest.mark.parametrize("tasks", ["one task", "a task per shard"])
@pytest.mark.parametrize("failing", range(3))
def test_one_failing_shard_hides_the_block(site, spec, faults, failing, tasks):
    """In every order: if one shard fails the block never appears; dumped anew it does."""
    spec = replace(spec, component=4096, shards=3)
    store = site.open(spec)
    for order in itertools.permutations(range(3)):
        ids, pages = keys(1, f"{tasks}{order}"), Pages(spec, 1, 1)
        groups = [list(order)] if tasks == "one task" else [[s] for s in order]
        at = failing * spec.shard_size
        with faults.on("write", site.root, offset=at, error=errno.EIO):
            for group in groups:
                task = store.dump_data(ids * len(group), group, pages.pointers()[group])
                result = statuses(store, task, len(group))
                assert not all(result) or failing not in group
        assert found(store, ids) == [False] and not site.path(ids[0]).exists()
        assert clean(site), f"order {order}"
        dump(store, ids, pages)
        assert site.path(ids[0]).read_bytes() == pages.block(0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_retry_by_shard_is_not_mixed_with_the_failed_try(site, spec, faults, order):
    """A layer-wise dump that lost a shard and is repeated shard by shard with other bytes: the
    block is whole and of one try."""
    spec = replace(spec, component=4096, shards=3)
    store, ids = site.open(spec), keys(1)
    first, second = Pages(spec, 1, 1), Pages(spec, 1, 2)
    with faults.on("write", site.root, offset=0, error=errno.EIO):
        for shard in order:
            task = store.dump_data(ids, [shard], first.pointers()[[shard]])
            statuses(store, task, 1)
    for shard in order:
        store.wait(store.dump_data(ids, [shard], second.pointers()[[shard]]))
    assert found(store, ids) == [True]
    assert site.path(ids[0]).read_bytes() == second.block(0)


def test_incomplete_block_goes_with_its_store(site, spec):
    """A block whose other shards never came: not visible, and nothing is left of it when the
    store is gone."""
    spec = replace(spec, shards=3)
    store, pages = site.open(spec, keep=False), Pages(spec, 4, 1)
    for shard in (2, 0):
        pointers = pages.pointers()[shard::3].copy()
        store.wait(store.dump_data(keys(4), [shard] * 4, pointers))
    assert found(store, keys(4)) == [False] * 4
    del store
    assert not site.blocks() and not site.temporaries()


# ---- several writers of one block ----


def is_one_of(data: bytes, *writers: Pages) -> bool:
    return any(data == w.block(0) for w in writers)


def test_published_bytes_never_change(site, spec, faults):
    """A second writer of the key may replace the file, never write into it."""
    store, ids = site.open(spec), keys(1)
    first, second = Pages(spec, 1, 1), Pages(spec, 1, 2)
    slow = faults.add("write", site.root, offset=0, count=1, hold=True)
    task = start_dump(store, ids, first)
    assert until(lambda: faults.active() > 0)
    dump(store, ids, second)
    with site.path(ids[0]).open("rb") as file:
        published = file.read()
        assert is_one_of(published, first, second)
        slow.drop()
        store.wait(task)
        file.seek(0)
        assert file.read() == published
    assert is_one_of(site.path(ids[0]).read_bytes(), first, second) and clean(site)


def test_slow_writers_never_hide_a_whole_block(site, spec, faults):
    """Three writers, two of them slow: at no time is a half-written file under the block's
    name."""
    spec = replace(spec, shards=2)
    ids, first = keys(1), Pages(spec, 1, 1)
    store, other, quick = site.open(spec), site.open(spec), site.open(spec)
    holds = [
        faults.add("write", site.root, offset=spec.shard_size, count=1, hold=True)
        for _ in range(2)
    ]
    slow = [
        Background(lambda s=s, n=n: dump(s, ids, Pages(spec, 1, n)))
        for s, n in ((store, 2), (other, 3))
        if until(lambda n=n: faults.active() == n - 2)
    ]
    assert until(lambda: faults.active() == 2)
    dump(quick, ids, first)
    for hold in holds:
        assert site.path(ids[0]).stat().st_size == spec.block_size
        hold.drop()
        time.sleep(0.05)
    assert all(s.finished(5) and s.error is None for s in slow)
    writers = [Pages(spec, 1, n) for n in (1, 2, 3)]
    assert is_one_of(site.path(ids[0]).read_bytes(), *writers) and clean(site)


def test_one_key_twice_in_a_batch(site, spec):
    """Both rows succeed and the block is one row's bytes."""
    spec = replace(spec, component=32768, components=8)
    store, pages = site.open(spec), Pages(spec, 8)
    for i in range(8):
        pages.data[i] = i + 1
    for i in range(40):
        block = key(f"twice{i}")
        assert dump_statuses(store, [block] * 8, pages) == [True] * 8
        data = site.path(block).read_bytes()
        assert len(data) == spec.block_size and len(set(data)) == 1
    assert clean(site)


def test_dump_of_a_stored_block_keeps_it_whole(site, spec):
    """Old or new bytes, at every moment whole."""
    store, ids = site.open(spec), keys(1)
    first, second = Pages(spec, 1, 1), Pages(spec, 1, 2)
    dump(store, ids, first)
    dump(store, ids, second)
    assert is_one_of(site.path(ids[0]).read_bytes(), first, second)


def write_for(site, spec, number: int, seconds: float):
    """Dump the same few blocks again and again, in bytes that name the writer."""
    store, ids, pages = site.open(spec), keys(4), Pages(spec, 4)
    pages.fill(number)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        dump(store, ids, pages)
        for block in ids[number % 4 :: 4]:
            site.path(block).unlink(missing_ok=True)


def sizes_of(paths) -> set[int]:
    sizes = set()
    for path in paths:
        with suppress(FileNotFoundError):
            sizes.add(path.stat().st_size)
    return sizes


def read_for(site, spec, seconds: float) -> tuple[int, int]:
    """(blocks loaded, blocks that were no single writer's)."""
    store, ids, copy = site.open(spec), keys(4), Pages(spec, 4)
    loaded = mixed = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = load_statuses(store, ids, copy)
        for i in np.flatnonzero(result):
            loaded += 1
            mixed += len(np.unique(copy.data[i])) != 1
        mixed += bool(sizes_of(map(site.path, ids)) - {spec.block_size})
    return loaded, mixed


def test_processes_that_write_one_key(site, spec):
    """Three writing processes that also remove blocks, one reading: a load is a miss or one
    writer's bytes, every file is whole, nobody fails."""
    spec = replace(spec, component=65536, workers=2)
    writers = [Process(lambda n=n: write_for(site, spec, n, 2)) for n in (1, 2, 3)]
    loaded, mixed = read_for(site, spec, 2)
    for writer in writers:
        writer.result()
    assert loaded > 0 and mixed == 0
    assert clean(site)


def test_parent_and_child_write_one_key(site, spec, faults, no_sanitizer):
    """A forked child with a store of its own and its parent write the same blocks at once."""
    store = site.open(spec)
    stored(store, spec, 1, "before")
    faults.add("write", site.root, delay_ms=150)
    ids = keys(4)
    child = Process(lambda: dump(site.open(spec), ids, Pages(spec, 4, 2)))
    for _ in range(3):
        dump(store, ids, Pages(spec, 4, 1))
        for block in ids:
            site.path(block).unlink(missing_ok=True)
    assert child.outcome(10) == (None, None)
    assert clean(site)


def test_threads_that_write_one_key(site, spec):
    """The same from four threads on one store."""
    spec = replace(spec, component=65536)
    store, ids = site.open(spec), keys(2)

    def run(number: int) -> None:
        pages = Pages(spec, 2)
        pages.fill(number)
        for _ in range(30):
            dump(store, ids, pages)

    threads = [Background(lambda n=n: run(n)) for n in (1, 2, 3, 4)]
    assert [t.error for t in threads if t.finished(20)] == [None] * 4
    copy = Pages(spec, 2)
    load(store, ids, copy)
    assert all(len(np.unique(block)) == 1 for block in copy.data) and clean(site)


def test_folder_in_place_of_a_block(site, spec):
    """A dump that cannot be published names the path."""
    store, ids = site.open(spec), keys(2)
    site.path(ids[0]).mkdir()
    text = error_of(lambda: dump(store, ids, Pages(spec, 2)))
    assert str(site.path(ids[0])) in text
    assert found(store, ids) == [False, True] and clean(site)
    os.rmdir(site.path(ids[0]))


def test_rows_of_one_block_in_two_tasks_at_once(site, spec):
    """Two tasks bring the shards of the same two blocks interleaved; both blocks are whole."""
    spec = replace(spec, component=4096, shards=4)
    store, ids, pages = site.open(spec), keys(2), Pages(spec, 2, 1)
    wide, index = rows(ids, spec)
    tasks = []
    for part in (range(0, 8, 2), range(1, 8, 2)):
        pick = list(part)
        args = [wide[r] for r in pick], [index[r] for r in pick], pages.pointers()[pick]
        tasks.append(store.dump_data(*args))
    for task in tasks:
        store.wait(task)
    assert found(store, ids) == [True, True]
    assert [site.path(i).read_bytes() for i in ids] == [pages.block(n) for n in (0, 1)]
