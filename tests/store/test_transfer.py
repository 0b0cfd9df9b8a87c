"""Every byte of every component, or an error for that block."""

import errno
import resource
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit import (
    Pages,
    StoreSpec,
    dump,
    error_of,
    found,
    keys,
    load,
    load_statuses,
    rows,
    start_load,
    stored,
)

# component bytes, components, shards, direct
GEOMETRIES = {
    "16 KiB": (16384, 1, 1, False),
    "K and V": (16384, 2, 1, False),
    "five components": (34560, 5, 1, False),
    "768 KiB less a bit": (786240, 1, 1, False),
    "173 KiB": (177408, 2, 1, False),
    "6.6 MB": (6589440, 1, 1, False),
    "more than IOV_MAX": (512, 1100, 1, False),
    "four shards": (8192, 2, 4, False),
    "odd bytes": (1001, 3, 2, False),
    "direct": (16384, 2, 1, True),
    "direct 6.6 MB": (6586368, 1, 1, True),
    "direct, more than IOV_MAX": (4096, 1100, 1, True),
    "direct four shards": (8192, 2, 4, True),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_round_trip(site, engine, name):
    """All components of all blocks come back, nothing is written between them, the file is the
    components in order, and no temporary is left."""
    component, components, shards, direct = GEOMETRIES[name]
    spec = StoreSpec(engine, direct, component, components, shards)
    store, n = site.open(spec), 3
    ids, pages = stored(store, spec, n)
    before = pages.memory.copy()
    copy = Pages(spec, n)
    load(store, ids, copy)
    assert np.array_equal(copy.data, pages.data)
    assert copy.guards_intact() and np.array_equal(before, pages.memory)
    assert [site.path(i).read_bytes() for i in ids] == [
        pages.block(i) for i in range(n)
    ]
    assert not site.temporaries()


def test_wait_means_published(site, spec):
    """When wait of a dump returns, another store finds and loads all its blocks."""
    writer, reader = site.open(spec), site.open(spec)
    for i in range(20):
        ids, pages = stored(writer, spec, 16, f"round{i}-", i)
        assert all(found(reader, ids))
        copy = Pages(spec, 16)
        load(reader, ids, copy)
        assert np.array_equal(copy.data, pages.data)


def test_rows_can_name_some_shards_in_any_order(site, spec):
    """A load of two of four shards fills exactly these rows."""
    spec = replace(spec, shards=4)
    store = site.open(spec)
    ids, pages = stored(store, spec, 2)
    wide, index = rows(ids, spec)
    picks = [5, 2]
    copy = Pages(spec, 2)
    task = store.load_data(
        [wide[p] for p in picks], [index[p] for p in picks], copy.pointers()[picks]
    )
    store.wait(task)
    assert np.array_equal(copy.data[picks], pages.data[picks])
    others = [r for r in range(8) if r not in picks]
    assert not copy.data[others].any()


@pytest.mark.parametrize("direct", [False, True], ids=["buffered", "direct"])
def test_io_direct_is_honoured(site, spec, faults, direct):
    """O_DIRECT is used where it was asked for and nowhere else."""
    spec = replace(spec, direct=direct)
    opened = faults.add("open", site.root)
    opened_direct = faults.add("open_direct", site.root)
    store = site.open(spec)
    ids, _ = stored(store, spec, 4)
    load(store, ids, Pages(spec, 4))
    assert opened.seen >= 8
    assert (opened_direct.seen >= 8) if direct else (opened_direct.seen == 0)


def test_one_block_into_several_pages(site, spec):
    """A load may name a block more than once."""
    store = site.open(spec)
    ids, pages = stored(store, spec, 2)
    copy = Pages(spec, 4)
    load(store, [ids[0], ids[1], ids[0], ids[0]], copy)
    assert np.array_equal(copy.data, pages.data[[0, 1, 0, 0]])


# ---- files that change behind the store's back ----


def test_truncation_at_any_byte(site, spec):
    """A file cut anywhere fails its block alone, is a miss, and the next dump replaces it."""
    spec = replace(spec, component=5000, components=3)
    store = site.open(spec)
    ids, pages = stored(store, spec, 4)

    @settings(
        max_examples=25,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, spec.block_size - 1), st.integers(0, 3))
    def run(size, victim):
        with site.path(ids[victim]).open("r+b") as file:
            file.truncate(size)
        good = [i != victim for i in range(4)]
        copy = Pages(spec, 4)
        assert load_statuses(store, ids, copy) == good
        assert np.array_equal(copy.data[good], pages.data[good])
        assert found(store, ids) == good
        dump(store, ids, pages)
        assert load_statuses(store, ids, copy) == [True] * 4
        assert np.array_equal(copy.data, pages.data)

    run()


def test_missing_block_fails_alone(site, spec):
    """A block that was removed after the lookup."""
    store = site.open(spec)
    ids, pages = stored(store, spec, 4)
    assert all(found(store, ids))
    site.path(ids[0]).unlink()
    copy = Pages(spec, 4)
    assert load_statuses(store, ids, copy) == [False, True, True, True]
    assert np.array_equal(copy.data[1:], pages.data[1:])


# ---- what the system call may do ----

PARTIAL = {
    "short": dict(limit=3000),
    "one byte first": dict(limit=1, count=1),
    "interrupted": dict(error=errno.EINTR, count=3),
}


@pytest.mark.parametrize("case", PARTIAL)
@pytest.mark.parametrize("op", ["read", "write"])
def test_partial_calls_are_resumed(site, spec, faults, op, case):
    """Short counts and EINTR are no errors: the rest follows, across component borders."""
    spec = replace(spec, component=5000, components=3)
    store = site.open(spec)
    hit = faults.add(op, site.root, **PARTIAL[case])
    ids, pages = stored(store, spec, 3)
    copy = Pages(spec, 3)
    load(store, ids, copy)
    assert hit.seen > 3, "the fault was not met"
    assert np.array_equal(copy.data, pages.data) and copy.guards_intact()
    assert [site.path(i).read_bytes() for i in ids] == [
        pages.block(i) for i in range(3)
    ]


def test_partial_direct_calls_are_resumed(site, spec, faults):
    """The same with O_DIRECT, where the rest must stay aligned."""
    spec = replace(spec, direct=True, component=8192, components=3)
    store = site.open(spec)
    for op in ("read", "write"):
        faults.add(op, site.root, limit=4096)
    ids, pages = stored(store, spec, 3)
    copy = Pages(spec, 3)
    load(store, ids, copy)
    assert np.array_equal(copy.data, pages.data) and copy.guards_intact()


@pytest.mark.limit(10)
@pytest.mark.parametrize("op", ["read", "write"])
def test_no_progress_is_an_error(site, spec, faults, op):
    """A call that moves nothing (the file ends early) fails; it is not retried for ever."""
    store = site.open(spec)
    ids, _ = stored(store, spec, 2)
    site.path(ids[1]).unlink()
    with faults.on(op, site.root, limit=0):
        if op == "write":
            error_of(lambda: dump(store, ids[1:], Pages(spec, 1, 1)))
        else:
            assert load_statuses(store, ids[:1], Pages(spec, 1)) == [False]
    assert found(store, ids[1:]) == [False]


# ---- many at once ----


def test_few_file_descriptors(site, spec):
    """A batch much larger than the spare descriptors is moved whole."""
    spec = replace(spec, component=4096)
    store = site.open(spec)
    ids, pages = keys(400), Pages(spec, 400, 1)
    dump(store, ids[:1], Pages(spec, 1))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(p.name) for p in _descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 24, hard))
    site.path(ids[0]).unlink()
    dump(store, ids, pages)
    copy = Pages(spec, 400)
    load(store, ids, copy)
    assert np.array_equal(copy.data, pages.data)


def _descriptors() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("operation", ["dump", "load"])
def test_no_file_descriptors_at_all(site, spec, faults, operation):
    """When no file can be opened for as long as it takes, the task fails and says EMFILE."""
    store = site.open(spec)
    ids, pages = stored(store, spec, 8)
    task = (load, ids) if operation == "load" else (dump, keys(8, "new"))
    with faults.on("open", site.root, error=errno.EMFILE):
        text = error_of(lambda: task[0](store, task[1], Pages(spec, 8)))
    assert "EMFILE" in text
    assert load_statuses(store, ids, pages) == [True] * 8


def test_twenty_stores_in_one_process(site, spec):
    """A rank's pools and more open at once and work."""
    for i in range(20):
        root = site.folder(f"pool{i}")
        store = site.open(spec, root)
        ids, _ = stored(store, spec, 2)
        assert load_statuses(store, ids, Pages(spec, 2)) == [True, True]


@pytest.mark.parametrize("depth", [1, 7])
def test_batch_larger_than_the_queue(site, plain, faults, depth):
    """An asynchronous engine whose queue is full waits its turn, short counts included."""
    options = site.adapter.queue_depth(depth)
    spec = replace(plain, engine="aio", component=4096, options=options)
    store = site.open(spec)
    for op in ("read", "write"):
        faults.add(op, site.root, limit=3000, count=50)
    ids, pages = stored(store, spec, 200)
    copy = Pages(spec, 200)
    load(store, ids, copy)
    assert np.array_equal(copy.data, pages.data)


def test_no_requests_left_on_the_host(site, plain):
    """Where the host's limit of asynchronous requests is met, the error has the errno's name."""
    limit = int(Path("/proc/sys/fs/aio-max-nr").read_text())
    if limit > 1 << 20:
        pytest.skip("fs.aio-max-nr is too high to be met")
    spec = replace(plain, engine="aio", options=site.adapter.queue_depth(32768))
    text = error_of(
        lambda: [site.open(spec) for _ in range(limit // 32768 + 1)], Exception
    )
    assert "EAGAIN" in text


@pytest.mark.limit(40)
def test_many_rounds_with_pauses(site, spec):
    """Batches of 256 and 512, idle moments between them, then destruction: nothing hangs."""
    spec = replace(spec, component=4096, components=1)
    store = site.open(spec, keep=False)
    ids, pages = stored(store, spec, 512)
    copy = Pages(spec, 512)
    for i in range(40):
        n = 512 if i % 2 else 256
        part = Pages(spec, n)
        load(store, ids[:n], part)
        assert np.array_equal(part.data, pages.data[:n])
        time.sleep(0.02)
    task = start_load(store, ids, copy)
    assert store.wait(task) is None
    del store
