"""A slow or hung device: host pages stay safe, the store says so, and it recovers."""

import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from kit import (
    Background,
    Pages,
    dump,
    dump_statuses,
    error_of,
    found,
    keys,
    load,
    load_statuses,
    seconds,
    start_dump,
    start_load,
    stored,
    until,
)

TIMEOUT = 0.3


@pytest.fixture
def spec(spec):
    return replace(spec, timeout_ms=int(TIMEOUT * 1000), component=8192)


def recovered(store, ids: list[bytes]) -> bool:
    return until(lambda: all(found(store, ids)), 5)


def test_wait_of_a_load_outlives_the_timeout(site, spec, faults):
    """While a read holds the caller's pages, wait does not return; afterwards nothing writes
    to them."""
    store = site.open(spec)
    ids, _ = stored(store, spec, 4)
    copy = Pages(spec, 4)
    slow = faults.add("read", ids[0].hex(), hold=True)
    waiting = Background(lambda: store.wait(start_load(store, ids, copy)))
    assert until(lambda: faults.active() > 0)
    assert not waiting.finished(4 * TIMEOUT)
    slow.drop()
    assert waiting.finished(5)
    assert faults.active() == 0
    copy.fill(0x55)
    time.sleep(2 * TIMEOUT)
    assert (copy.data == 0x55).all() and copy.guards_intact()


def test_wait_returns_after_the_last_of_slow_units(site, spec, faults):
    """One unit past the timeout, one that starts before it and ends after it: each counts
    once, none is running when wait returns."""
    spec = replace(spec, workers=2, components=1, timeout_ms=1500)
    store = site.open(spec)
    ids, _ = stored(store, spec, 3)
    for block, delay in zip(ids, (2500, 1400, 1500), strict=True):
        faults.add("read", block.hex(), delay_ms=delay)
    copy = Pages(spec, 3)
    with suppress(RuntimeError):
        load(store, ids, copy)
    assert faults.active() == 0
    copy.fill(0x55)
    time.sleep(TIMEOUT)
    assert (copy.data == 0x55).all()


def stall(store, site, faults, ids: list[bytes], spec):
    """A load that hangs past the timeout; the rule that holds it and the waiting thread."""
    slow = faults.add("read", ids[0].hex(), hold=True)
    waiting = Background(lambda: load(store, ids, Pages(spec, len(ids))))
    assert until(lambda: faults.active() > 0)
    waiting.finished(3 * TIMEOUT)
    return slow, waiting


def test_stalled_store_refuses_and_misses_at_once(site, spec, faults):
    """Past the timeout: lookups miss, new transfers fail, both without waiting; when the read
    ends the store serves again."""
    store = site.open(spec)
    ids, pages = stored(store, spec, 4)
    slow, waiting = stall(store, site, faults, ids, spec)
    assert seconds(lambda: found(store, ids)) < TIMEOUT
    assert found(store, ids) == [False] * 4 and store.lookup_on_prefix(ids) == -1
    for call in (
        lambda: load(store, ids[1:], Pages(spec, 3)),
        lambda: dump(store, ids, pages),
    ):
        assert seconds(lambda call=call: error_of(call)) < TIMEOUT
    slow.drop()
    assert waiting.finished(5)
    assert recovered(store, ids)
    copy = Pages(spec, 4)
    load(store, ids, copy)
    assert np.array_equal(copy.data, pages.data)
    assert load_statuses(store, ids, Pages(spec, 4)) == [True] * 4
    stored(store, spec, 2, "after")


def test_hung_lookup_makes_later_ones_miss_at_once(site, spec, faults):
    """While one lookup hangs past the timeout, others answer without waiting; then all is as
    before."""
    store = site.open(spec)
    ids, _ = stored(store, spec, 4)
    slow = faults.add("stat", site.root, hold=True)
    hanging = Background(lambda: found(store, ids))
    hanging.finished(3 * TIMEOUT)
    later = Background(lambda: found(store, ids))
    answered = later.finished(TIMEOUT)
    slow.drop()
    assert hanging.finished(5) and later.finished(5)
    assert answered and later.result == [False] * 4
    assert recovered(store, ids)


def test_one_stalled_store_does_not_stop_another(site, spec, faults):
    """Stores share no queue that a hung mount could fill."""
    store, other = site.open(spec), site.open(spec, site.folder("other"))
    ids, _ = stored(store, spec, 4)
    slow, waiting = stall(store, site, faults, ids, spec)
    theirs, _ = stored(other, spec, 4, "theirs")
    assert load_statuses(other, theirs, Pages(spec, 4)) == [True] * 4
    assert found(other, theirs) == [True] * 4
    slow.drop()
    assert waiting.finished(5)


def test_timed_out_dump_is_never_published(site, spec, faults):
    """The dump fails; its pages are free when check says so, not before; what they hold by
    then never appears under the key."""
    store, ids, pages = site.open(spec), keys(2), Pages(spec, 2, 1)
    slow = faults.add("write", site.root, hold=True)
    task = start_dump(store, ids, pages)
    waiting = Background(lambda: store.wait(task))
    if waiting.finished(8 * TIMEOUT):
        assert not store.check(task), "the write still reads the pages"
    slow.drop()
    assert waiting.finished(5) and isinstance(waiting.error, RuntimeError)
    assert until(lambda: faults.active() == 0)
    assert until(lambda: is_free(store, task))
    pages.fill(0x55)
    time.sleep(2 * TIMEOUT)
    assert found(store, ids) == [False, False] and not site.blocks()
    assert until(lambda: not site.temporaries())
    stored(store, spec, 2, "after")
    assert recovered(store, keys(2, "after"))


def test_statuses_of_a_timed_out_dump(site, spec, faults):
    """One hung write of four: three blocks are stored and told so, the fourth is not, then or
    later."""
    store, ids, pages = site.open(spec), keys(4), Pages(spec, 4, 1)
    slow = faults.add("write", site.root, skip=1, count=1, hold=True)
    waiting = Background(lambda: dump_statuses(store, ids, pages))
    waiting.finished(8 * TIMEOUT)
    slow.drop()
    assert waiting.finished(5) and sorted(waiting.result) == [False, True, True, True]
    time.sleep(2 * TIMEOUT)
    assert recovered(
        store, [i for i, good in zip(ids, waiting.result, strict=True) if good]
    )
    assert found(store, ids) == waiting.result


def test_no_timeout_means_waiting(site, spec, faults):
    """timeout_ms 0: a slow device is waited for, nothing is refused, and idle stores go at
    once."""
    spec = replace(spec, timeout_ms=0)
    store = site.open(spec, keep=False)
    faults.add("write", site.root, delay_ms=int(2000 * TIMEOUT), count=2)
    ids, pages = stored(store, spec, 4)
    copy = Pages(spec, 4)
    load(store, ids, copy)
    assert np.array_equal(copy.data, pages.data) and found(store, ids) == [True] * 4


@pytest.mark.parametrize("late", range(3))
def test_timed_out_shard_spoils_its_block(site, spec, faults, late):
    """A layer-wise dump whose one shard timed out: what its pages held later is never part of
    a visible block, in whatever order the other shards come."""
    spec = replace(spec, shards=3)
    store, ids, pages = site.open(spec), keys(1), Pages(spec, 1, 1)
    whole = pages.block(0)
    for shard in [late, *[other for other in range(3) if other != late]]:
        at = faults.add(
            "write", site.root, offset=shard * spec.shard_size, hold=shard == late
        )
        task = store.dump_data(ids, [shard], pages.pointers()[[shard]])
        waiting = Background(lambda task=task: store.wait(task))
        if shard == late:
            waiting.finished(6 * TIMEOUT)
            pages.data[shard] = 0x55
            at.drop()
            assert until(lambda task=task: is_free(store, task))
            recovered(store, [])
        assert waiting.finished(5)
    time.sleep(TIMEOUT)
    if found(store, ids) == [True]:
        assert site.path(ids[0]).read_bytes() == whole
    assert until(lambda: not site.temporaries())


def is_free(store, task) -> bool:
    """A store may forget a task that it has reported free, or drained inside wait."""
    try:
        return store.check(task)
    except RuntimeError:
        return True


def test_late_publishing_does_not_happen(site, spec, faults):
    """The hang is in the rename: a dump that was reported failed stays unpublished, or the
    report comes after the rename."""
    store, ids = site.open(spec), keys(1)
    slow = faults.add("publish", site.root, hold=True)
    waiting = Background(lambda: dump(store, ids, Pages(spec, 1, 1)))
    reported = waiting.finished(6 * TIMEOUT) and waiting.error is not None
    slow.drop()
    assert waiting.finished(5)
    time.sleep(2 * TIMEOUT)
    if reported:
        assert not site.blocks(), "published after the failure was reported"
    else:
        assert (waiting.error is None) == bool(site.blocks())


def test_statuses_at_a_timeout(site, spec, faults):
    """wait_blocks of a load with one hung block: it returns after the read and never claims a
    page that was not filled."""
    store = site.open(replace(spec, workers=4))
    ids, pages = stored(store, spec, 4)
    copy = Pages(spec, 4)
    slow = faults.add("read", ids[2].hex(), hold=True)
    waiting = Background(lambda: load_statuses(store, ids, copy))
    assert not waiting.finished(3 * TIMEOUT)
    slow.drop()
    assert waiting.finished(5) and faults.active() == 0
    if waiting.error is None:
        good = np.array(waiting.result)
        assert np.array_equal(copy.data[good], pages.data[good])


def test_destroy_with_a_timed_out_dump(site, spec, faults):
    """Destroying the store while its write still hangs waits for the write and is safe."""
    held, pages = [site.open(spec, keep=False)], Pages(spec, 4, 1)
    slow = faults.add("write", site.root, hold=True)
    task = start_dump(held[0], keys(4), pages)
    waiting = Background(lambda: held[0].wait(task))
    returned = waiting.finished(8 * TIMEOUT)
    release = Background(lambda: (time.sleep(TIMEOUT), slow.drop()))
    assert returned or waiting.finished(5)
    held.clear()
    assert faults.active() == 0, "destroyed under a running write"
    assert release.finished(5)
    time.sleep(2 * TIMEOUT)
    assert not site.blocks() and not site.temporaries()
    stored(site.open(spec), spec, 2, "after")
