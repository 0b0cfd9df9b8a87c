"""Arguments and configurations: refused by name and value, before anything is written."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hosts import peer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit import (
    Pages,
    StoreSpec,
    dump,
    error_of,
    found,
    key,
    keys,
    load,
    load_statuses,
    rows,
    stored,
)

fuzz = settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

# ---- a model of what is a good call ----

RESHAPES = {
    "as it is": lambda m: m,
    "list of lists": lambda m: m.tolist(),
    "signed": lambda m: m.astype(np.int64),
    "narrow": lambda m: m.astype(np.uint32),
    "float": lambda m: m.astype(np.float64),
    "complex": lambda m: m.astype(np.complex128),
    "swapped": lambda m: m.astype(m.dtype.newbyteorder()),
    "flat": lambda m: m.reshape(-1),
    "cube": lambda m: m.reshape(*m.shape, 1),
    "fortran": np.asfortranarray,
    "reversed rows": lambda m: m[::-1],
    "every other column": lambda m: np.repeat(m, 2, axis=1)[:, ::2],
    "a column less": lambda m: np.ascontiguousarray(m[:, 1:]),
    "a column more": lambda m: np.ascontiguousarray(np.hstack([m, m[:, :1]])),
    "a row less": lambda m: m[:-1],
    "null": lambda m: m * (np.arange(m.size).reshape(m.shape) != m.size - 1),
}


def is_good(ids: list[bytes], index: list[int], matrix, spec: StoreSpec) -> bool:
    if isinstance(matrix, list):
        matrix = np.array(matrix, dtype=np.uint64)
    return (
        all(len(i) == 16 for i in ids)
        and len(ids) == len(index)
        and matrix.shape == (len(ids), spec.components)
        and matrix.dtype in (np.dtype(np.uint64), np.dtype(np.int64))
        and matrix.flags.c_contiguous
        and all(0 <= i < spec.shards for i in index)
        and bool((matrix != 0).all())
    )


@st.composite
def calls(draw):
    """(id lengths, shard indices, reshape of the pointer matrix), mostly one thing wrong."""
    n = draw(st.integers(1, 4))
    length = st.sampled_from([16] * 12 + [0, 8, 15, 17, 32])
    index = st.sampled_from([0] * 12 + [1, -1, 7, 2**40])
    lengths = draw(st.lists(length, min_size=n, max_size=n))
    count = draw(st.sampled_from([n, n, n, n + 1, n - 1]))
    indices = draw(st.lists(index, min_size=count, max_size=count))
    return lengths, indices, draw(st.sampled_from(sorted(RESHAPES)))


@pytest.mark.limit(60)
@pytest.mark.parametrize("components", [1, 3])
def test_any_call_is_refused_or_moves_the_right_bytes(site, plain, components):
    """Fuzzed id lengths, counts, dtypes, strides, shapes, shard indices: ValueError with no file
    made and no byte touched, or the bytes of a numpy model."""
    spec = replace(plain, component=4096, components=components)
    store = site.open(spec)
    number = iter(range(10**6))

    @fuzz
    @given(calls())
    def run(call):
        lengths, indices, reshape = call
        unique = next(number)
        ids = [(key(f"{unique}-{i}") * 2)[:n] for i, n in enumerate(lengths)]
        source, target = Pages(spec, len(ids), unique), Pages(spec, len(ids))
        give, take = (RESHAPES[reshape](p.pointers()) for p in (source, target))
        before = site.blocks()
        if is_good(ids, indices, give, spec):
            store.wait(store.dump_data(ids, indices, give))
            store.wait(store.load_data(ids, indices, take))
            assert np.array_equal(source.data, target.data)
            return
        error_of(lambda: store.dump_data(ids, indices, give), ValueError)
        error_of(lambda: store.load_data(ids, indices, take), ValueError)
        assert site.blocks() == before and not site.temporaries()
        assert not target.data.any() and target.guards_intact()

    run()


BAD_CALLS = {
    "id of 15 bytes": (dict(ids=[b"x" * 15, key(1)]), ["15", "16"]),
    "15 + 17 bytes": (dict(ids=[b"x" * 15, b"y" * 17]), ["15", "16"]),
    "sha256 ids": (dict(ids=[key(0) * 2, key(1) * 2]), ["32", "16"]),
    "more ids than rows": (dict(ids=keys(3), index=[0, 0, 0]), ["3", "2"]),
    "fewer indices": (dict(index=[0]), ["1", "2"]),
    "missing pointer": (dict(matrix=lambda m: m[:, :1].copy()), ["1", "2"]),
    "pointer too many": (dict(matrix=lambda m: np.hstack([m, m])), ["4", "2"]),
    "one dimension": (dict(matrix=lambda m: m.reshape(-1)), ["1", "2"]),
    "floats": (dict(matrix=lambda m: m.astype(np.float64)), ["addr"]),
    "16 byte items": (dict(matrix=lambda m: m.astype(np.complex128)), ["addr"]),
    "4 byte items": (dict(matrix=lambda m: m.astype(np.uint32)), ["4", "8"]),
    "strided": (dict(matrix=lambda m: np.repeat(m, 2, 1)[:, ::2]), ["contiguous"]),
    "shard index": (dict(index=[0, 7]), ["7", "1"]),
    "huge shard index": (dict(index=[0, 10**9]), ["1000000000"]),
    "negative shard index": (dict(index=[0, -1]), ["-1"]),
    "null pointer": (dict(matrix=lambda m: m * np.uint64([[1, 1], [1, 0]])), ["null"]),
}


@pytest.mark.parametrize("operation", ["dump_data", "load_data"])
@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_argument_is_named(site, plain, case, operation):
    """A refused call says which argument and which values; no file exists afterwards."""
    change, words = BAD_CALLS[case]
    store, pages = site.open(plain), Pages(plain, 2)
    ids, index = change.get("ids", keys(2)), change.get("index", [0, 0])
    matrix = change.get("matrix", lambda m: m)(pages.pointers())
    call = getattr(store, operation)
    text = error_of(lambda: call(ids, index, matrix), ValueError)
    assert [w for w in words if w not in text.lower()] == []
    assert not site.blocks() and not site.temporaries()


@pytest.mark.parametrize("lengths", [[15], [15, 17], [8, 8], [32], [0], [16, 0, 32]])
def test_lookup_refuses_ids_that_are_not_16_bytes(site, plain, lengths):
    """lookup and lookup_on_prefix keep the boundaries between ids: ValueError otherwise."""
    store = site.open(plain)
    ids = [(key(i) * 2)[:n] for i, n in enumerate(lengths)]
    for call in (store.lookup, store.lookup_on_prefix):
        assert "16" in error_of(lambda call=call: call(ids), ValueError)


def test_empty_batch_is_a_finished_task(site, spec):
    """No blocks: lookups answer nothing, transfers are done at once."""
    store = site.open(spec)
    assert found(store, []) == [] and store.lookup_on_prefix([]) == -1
    for call in (store.dump_data, store.load_data):
        for matrix in (np.empty((0, spec.components), np.uint64), []):
            assert store.check(call([], [], matrix))
            assert store.wait(call([], [], matrix)) is None
            assert list(store.wait_blocks(call([], [], matrix))) == []


def test_refused_call_leaves_the_store_usable(site, spec):
    """What was stored stays stored, and the next good call works."""
    store = site.open(spec)
    ids, pages = stored(store, spec, 2)
    error_of(lambda: store.dump_data(ids, [0, 9], pages.pointers()), ValueError)
    copy = Pages(spec, 2)
    load(store, ids, copy)
    assert np.array_equal(copy.data, pages.data)


def test_prerequisite_handle_is_refused(site, spec):
    """A dump that cannot wait for a device event says so and writes nothing."""
    store, pages = site.open(spec), Pages(spec, 1)
    arguments = *rows(keys(1), spec), pages.pointers()
    text = error_of(lambda: store.dump_data(*arguments, 1234), ValueError, RuntimeError)
    assert "prerequisite" in text
    assert not site.blocks() and not site.temporaries()


# ---- configuration ----

BAD_OPTIONS = {
    "tensor_size": 0,
    "shard_size": 100,
    "block_size": 16384 * 3,
    "timeout_ms": 1.5,
    "io_direct": "yes",
    "device_id": "0",
    "storage_backends": "/tmp",
    "posix_io_engine": "uring",
    "posix_data_trans_concurrency": -1,
    "posix_lookup_concurrency": 0,
    "data_dir_shard_bytes": 6,
}


@pytest.mark.parametrize("option", BAD_OPTIONS)
def test_bad_option_is_named(site, plain, option):
    """A value of the wrong type or range: the error has the key and no folder is made."""
    spec = replace(plain, options={option: BAD_OPTIONS[option]})
    text = error_of(lambda: site.open(spec), Exception)
    assert option in text
    assert list(site.root.iterdir()) == []


@pytest.mark.parametrize("backends", [[], [""]])
def test_empty_backend_is_refused(site, plain, backends):
    """No backend, or an empty name (which would mean the root of the file system)."""
    spec = replace(plain, options={"storage_backends": backends})
    assert "storage_backends" in error_of(lambda: site.open(spec), Exception)


def test_missing_backend_is_named(site, plain):
    """A backend that cannot be made or used: the error has its path."""
    path = site.root / "file" / "below"
    path.parent.write_bytes(b"")
    assert str(path) in error_of(lambda: site.open(plain, path), Exception)


def test_unknown_option_is_named(site, tree, plain):
    """A misspelt key is refused, or at least named in the log."""
    spec = replace(plain, options={"posix_io_engin": "aio", "data_dir_shard_bytes": 1})
    settings = {"UC_LOGGER_LEVEL": "info", "UCM_LOG_PATH": str(site.folder("log"))}
    run = peer(tree, "open", "k", [spec], site.root, env=settings)
    words = re.findall(r"\w+", run.stdout + run.stderr)
    assert "posix_io_engin" in words


@pytest.mark.parametrize("size", [786240, 177408, 34560])
def test_direct_refuses_unaligned_sizes_with_the_numbers(site, spec, size):
    """Direct I/O on a size that the device cannot do: refused when the store is made."""
    wrong = replace(spec, direct=True, component=size, components=1)
    assert str(size) in error_of(lambda: site.open(wrong), Exception)


def test_direct_refuses_unaligned_pointers_or_moves_them(site, spec):
    """Direct I/O from a pointer off by 64: words about alignment, or the right bytes."""
    spec = replace(spec, direct=True, component=8192, components=1)
    store, source, target = site.open(spec), Pages(spec, 1, 1), Pages(spec, 1)
    shifted = source.pointers() + np.uint64(64)
    try:
        store.wait(store.dump_data(keys(1), [0], shifted))
    except (ValueError, RuntimeError) as error:
        assert "align" in str(error)
        assert not site.blocks() and not site.temporaries()
        dump(store, keys(1), source)
        return
    assert load_statuses(store, keys(1), target) == [True]
    expected = source.memory.reshape(-1)[64 : 64 + 8192]
    assert np.array_equal(target.data.reshape(-1), expected)
