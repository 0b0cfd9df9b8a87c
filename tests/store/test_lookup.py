"""Which blocks are there: one answer per key, and only whole blocks count."""

import os
import random
from dataclasses import replace

import numpy as np
import pytest
from hosts import Process, become, read_only_view
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit import Pages, dump, error_of, found, keys, load, load_statuses, stored

subsets = settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_any_subset_is_answered_exactly(site, plain):
    """lookup: answer[i] says whether block i is there, whatever its neighbours are; duplicates
    and any order too."""
    store = site.open(replace(plain, component=4096))
    there, _ = stored(store, replace(plain, component=4096), 12)
    pool = there + keys(12, "absent")

    @subsets
    @given(st.lists(st.sampled_from(pool), max_size=40))
    def run(ids):
        assert found(store, ids) == [i in there for i in ids]

    run()


def test_prefix_is_the_leading_run(site, plain):
    """lookup_on_prefix: index of the last block of the leading run, -1 when the first is
    missing."""
    store = site.open(replace(plain, component=4096))
    there, _ = stored(store, replace(plain, component=4096), 12)
    pool = there * 3 + keys(6, "absent")

    @subsets
    @given(st.lists(st.sampled_from(pool), max_size=40))
    def run(ids):
        run_length = next((n for n, i in enumerate(ids) if i not in there), len(ids))
        assert store.lookup_on_prefix(ids) == run_length - 1

    run()


@pytest.mark.parametrize("size", [64, 5000])
def test_large_sparse_batches(site, plain, size):
    """The same where the work is spread over threads: every 7th block is missing."""
    spec = replace(plain, component=64, components=1)
    store = site.open(spec)
    there, _ = stored(store, spec, 300)
    picks = random.Random(1)
    ids = [picks.choice(there) if i % 7 else keys(1, f"no{i}")[0] for i in range(size)]
    assert found(store, ids) == [bool(i % 7) for i in range(size)]


def plant(site, block: bytes, kind: str, size: int) -> None:
    path = site.path(block)
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    else:
        sizes = {"empty": 0, "short": size - 1, "long": size + 1, "double": size * 2}
        path.write_bytes(b"x" * sizes[kind])


NOT_BLOCKS = ["empty", "short", "long", "double", "folder", "pipe", "dangling link"]


@pytest.mark.limit(15)
@pytest.mark.parametrize("kind", NOT_BLOCKS)
def test_what_is_not_a_whole_block_is_absent(site, spec, kind):
    """A file of another size, a folder, a pipe under a block's name: a miss, a failed load of
    this block alone, and replaced by the next dump where a rename can."""
    store = site.open(spec)
    ids, pages = stored(store, spec, 3)
    plant(site, ids[1], kind, spec.block_size)
    assert found(store, ids) == [True, False, True]
    assert store.lookup_on_prefix(ids) == 0
    assert load_statuses(store, ids, Pages(spec, 3)) == [True, False, True]
    if kind == "folder":
        assert ids[1].hex() in error_of(lambda: dump(store, ids, pages))
        assert not site.temporaries()
        return
    dump(store, ids, pages)
    copy = Pages(spec, 3)
    load(store, ids, copy)
    assert found(store, ids) == [True] * 3 and np.array_equal(copy.data, pages.data)


def test_another_geometry_is_not_a_hit(site, spec):
    """A store of smaller or larger blocks on the same root never answers for this one's."""
    big = replace(spec, component=65536)
    ids, _ = stored(site.open(big), big, 2)
    small = site.open(spec)
    assert found(small, ids) == [False, False]
    copy = Pages(spec, 2)
    assert load_statuses(small, ids, copy) == [False, False]


def test_read_only_mount_hits(site, spec):
    """On a read-only mount blocks are found and loaded, and a dump names EROFS."""
    view = site.folder("view")
    # Gone before the mount: a thread that it leaves behind would not see it.
    ids, pages = stored(site.open(spec, keep=False), spec, 3)
    read_only_view(site.root, view)
    reader = site.open(spec, view)
    assert found(reader, [*ids, *keys(1, "no")]) == [True] * 3 + [False]
    assert reader.lookup_on_prefix(ids) == 2
    copy = Pages(spec, 3)
    load(reader, ids, copy)
    assert np.array_equal(copy.data, pages.data)
    assert "EROFS" in error_of(lambda: dump(reader, keys(1, "no"), Pages(spec, 1)))


def as_user(site, spec, uid: int, prefix: str, read: str | None, mask: int = 0o022):
    """In a process of another user: dump blocks `prefix`; find and load blocks `read`."""

    def run():
        become(uid, 4321)
        os.umask(mask)
        store = site.open(spec)
        stored(store, spec, 2, prefix)
        ids = keys(2, read or prefix)
        return found(store, ids), load_statuses(store, ids, Pages(spec, 2))

    return Process(run)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_another_user_of_the_group_hits(site, spec, mask):
    """A second uid of the same group finds, loads, and stores beside the first one's blocks,
    whatever the umask of either."""
    if os.geteuid() != 0:
        pytest.skip("changing the user needs root")
    os.chown(site.root, -1, 4321)
    site.root.chmod(0o2770)
    first = as_user(site, spec, 4001, "a", None, mask)
    assert first.result() == ([True] * 2, [True] * 2)
    second = as_user(site, spec, 4002, "b", "a", mask)
    assert second.result() == ([True] * 2, [True] * 2)


def test_a_block_that_cannot_be_read_is_a_miss(site, spec):
    """What lookup finds can be loaded: an unreadable file is absent, and dumped anew."""
    if os.geteuid() != 0:
        pytest.skip("changing the user needs root")
    os.chown(site.root, -1, 4321)
    site.root.chmod(0o2770)
    assert as_user(site, spec, 4001, "a", None).result()[0] == [True] * 2
    site.path(keys(2, "a")[1]).chmod(0o600)

    def run():
        become(4002, 4321)
        store, pages = site.open(spec), Pages(spec, 2, 1)
        before = found(store, keys(2, "a"))
        dump(store, keys(2, "a"), pages)
        return before, found(store, keys(2, "a"))

    assert Process(run).result() == ([True, False], [True, True])
