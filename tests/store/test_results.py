"""What a caller learns: a status per block, and an exception that says what happened."""

import errno
from dataclasses import replace

import numpy as np
import pytest
from kit import (
    Pages,
    dump,
    error_of,
    found,
    key,
    keys,
    load,
    load_statuses,
    start_dump,
    start_load,
    statuses,
    stored,
)

N = 8


def others(i: int) -> list[bool]:
    return [n != i for n in range(N)]


@pytest.mark.parametrize("bad", [0, 3, 7])
def test_missing_block_is_the_only_false(site, spec, bad):
    """A load with one missing block: one False, all other pages filled, also with one worker."""
    store = site.open(replace(spec, workers=1))
    ids, pages = stored(store, spec, N)
    asked = [key("missing") if i == bad else block for i, block in enumerate(ids)]
    copy = Pages(spec, N)
    assert load_statuses(store, asked, copy) == others(bad)
    assert np.array_equal(copy.data[others(bad)], pages.data[others(bad)])


def test_wait_loads_the_other_blocks_too(site, spec):
    """The plain wait raises for one missing block; the others were loaded."""
    store = site.open(spec)
    ids, pages = stored(store, spec, N)
    asked = [key("missing"), *ids[1:]]
    copy = Pages(spec, N)
    error_of(lambda: load(store, asked, copy))
    assert np.array_equal(copy.data[1:], pages.data[1:])


def test_read_error_is_the_only_false(site, spec, faults):
    """EIO on one block of eight."""
    store = site.open(spec)
    ids, pages = stored(store, spec, N)
    faults.add("read", ids[5].hex(), error=errno.EIO)
    copy = Pages(spec, N)
    assert load_statuses(store, ids, copy) == others(5)
    assert np.array_equal(copy.data[others(5)], pages.data[others(5)])


@pytest.mark.parametrize("operation", ["load", "dump"])
def test_bad_pointer_is_the_only_false(site, spec, operation):
    """A pointer that is no memory fails its block with EFAULT, not the process."""
    store, pages = site.open(spec), Pages(spec, N, 1)
    ids = stored(store, spec, N)[0] if operation == "load" else keys(N, "new")
    pointers = pages.pointers()
    pointers[2, 1] = 8
    call = store.load_data if operation == "load" else store.dump_data
    assert statuses(store, call(ids, [0] * N, pointers), N) == others(2)
    text = error_of(lambda: store.wait(call([key("p"), ids[0]], [0, 0], pointers[2:4])))
    assert found(store, ids) == ([True] * N if operation == "load" else others(2))
    assert "EFAULT" in text or operation == "load"


def test_all_good(site, spec):
    """All True, for both directions, and check says finished before and after."""
    store, pages = site.open(spec), Pages(spec, N, 1)
    task = start_dump(store, keys(N), pages)
    assert statuses(store, task, N) == [True] * N
    task = start_load(store, keys(N), pages)
    assert statuses(store, task, N) == [True] * N


def assert_words(text: str, *words: str) -> None:
    assert [w for w in words if w not in text] == []


def test_text_of_a_failed_load(site, spec, faults):
    """RuntimeError with operation, block, path, errno name and counts."""
    store = site.open(spec)
    ids, _ = stored(store, spec, N)
    faults.add("read", ids[5].hex(), error=errno.EIO)
    text = error_of(lambda: load(store, ids, Pages(spec, N)))
    assert_words(text.lower(), "load", "1", "8")
    assert_words(text, ids[5].hex(), str(site.path(ids[5])), "EIO")


def test_text_of_a_missing_block(site, spec):
    """The same for a file that is not there, and for a short one its sizes."""
    store = site.open(spec)
    ids, _ = stored(store, spec, 2)
    site.path(ids[0]).unlink()
    assert_words(
        error_of(lambda: load(store, ids, Pages(spec, 2))), ids[0].hex(), "ENOENT"
    )
    dump(store, ids, Pages(spec, 2))
    with site.path(ids[1]).open("r+b") as file:
        file.truncate(777)
    text = error_of(lambda: load(store, ids, Pages(spec, 2)))
    assert_words(text, ids[1].hex(), "777", str(spec.block_size))


def test_text_of_a_failed_dump(site, spec, faults):
    """The same for a dump, here of the call that publishes."""
    store, ids = site.open(spec), keys(N)
    faults.add("publish", ids[5].hex(), error=errno.EACCES)
    text = error_of(lambda: dump(store, ids, Pages(spec, N)))
    assert_words(text.lower(), "dump", "1", "8")
    assert_words(text, ids[5].hex(), str(site.path(ids[5])), "EACCES")
    assert found(store, ids) == others(5)


def test_text_stays_short(site, spec):
    """A thousand failing blocks: the counts, and not a thousand paths."""
    spec = replace(spec, component=64)
    store = site.open(replace(spec))
    text = error_of(lambda: load(store, keys(1000), Pages(spec, 1000)))
    assert "1000" in text and len(text) < 4096


def test_statuses_come_with_a_reason(site, spec, faults):
    """wait_blocks tells the blocks apart, and why the first that failed did."""
    store, ids, pages = site.open(spec), keys(N), Pages(spec, N)
    faults.add("publish", ids[5].hex(), error=errno.EACCES)
    task = start_dump(store, ids, pages)
    assert list(store.wait_blocks(task)) == others(5)
    assert_words(task.error, "1 of 8", ids[5].hex(), str(site.path(ids[5])), "EACCES")
    few = Pages(spec, 5)
    task = start_load(store, ids[:5], few)
    assert all(store.wait_blocks(task)) and task.error == ""


@pytest.mark.parametrize("call", ["wait", "check", "wait_blocks"])
def test_unknown_task(site, spec, call):
    """A task that was waited for, or never existed, is an error with words."""
    store = site.open(spec)
    pages = Pages(spec, 1)
    task = start_dump(store, keys(1), pages)
    store.wait(task)
    text = error_of(lambda: getattr(store, call)(task))
    assert any(word.isalpha() for word in text.split())


def test_default_for_stores_without_statuses(tree):
    """A store that only has wait gets wait_blocks from the base class: all or nothing."""
    from ucm.store.ucmstore_v1 import Task, UcmKVStoreBaseV1

    def wait(self, task) -> None:
        if task.bad:
            raise RuntimeError("failed")

    names = UcmKVStoreBaseV1.__abstractmethods__
    methods = dict.fromkeys(names, None) | {"wait": wait}
    store = type("Other", (UcmKVStoreBaseV1,), methods)({})
    for bad in (False, True):
        task = type("OtherTask", (Task,), {"bad": bad, "num_blocks": 3})()
        assert list(store.wait_blocks(task)) == [not bad] * 3
        assert task.error == ("failed" if bad else "")
