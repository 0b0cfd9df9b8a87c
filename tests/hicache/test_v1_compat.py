"""The primary KV's cache of the unpatched base: same keys, same folders, same files, same calls.

The paths were written by UCM 0.5.0 itself: keys 1 to 8, two storage backends. A file holds the
components of its page one after the other.
"""

import hicache_kit as kit
import pytest
import torch
from hicache_kit import FaultStore

# (is_mla_model, (tp_rank, tp_size), paths in the order of the keys)
BASE = {
    kit.mha: (
        False,
        (1, 2),
        [
            "b/af7/af7cdc75d8b351e3193fa0957105f9ac",
            "a/ca1/ca172e189b365bb6b7dd576ecba40402",
            "a/bdf/bdfcc95e11c8d4878e5e6de054be123d",
            "a/433/43394c7b0d7d688a882d891a8f231eaf",
            "a/e57/e57aedf62a0d4df085022c0ffc4449fd",
            "a/77b/77b706064e4e7773f7d0c80a689cff89",
            "a/d45/d4519c15f2da1cfec0e2a24f2256f45a",
            "b/717/717fb8cf201bda0171e48706112a4ca7",
        ],
    ),
    kit.mla: (
        True,
        (0, 2),
        [
            "b/bde/bde9a87110ff02f36bd10c749b594f89",
            "a/c3a/c3adf09178a39a33aa9f9b3f34637c53",
            "a/653/6535af74d58ca02385beb73c59e7955f",
            "b/d70/d70c214f4ee75069cae45f32450bf18c",
            "b/fe2/fe2bdb81b3fb218518faa4a73f3e9c39",
            "a/592/592338e89f265ec7ca0ccf8244f36dfc",
            "b/440/440ae670fa09aa7ef549c5f82c2ba1d7",
            "b/09b/09b757870ac9e8230c2390f4aa21c055",
        ],
    ),
}


@pytest.fixture(params=BASE, ids=["mha", "mla"])
def deployment(request, site):
    """A pool with eight random pages, how to attach it, and where the base keeps each page."""
    mla, tp, paths = BASE[request.param]
    pool = request.param()
    data = kit.fill(pool, range(8))

    def attach(digits=3):
        """Three is the base's depth of folders; 4096 of them a backend take their time."""
        options = {"backends": 2, "data_dir_shard_bytes": digits}
        return site.attach(pool, mla=mla, tp=tp, **options)

    return attach, pool, data, [site.root / path for path in paths]


def test_reads_what_the_base_wrote(deployment):
    attach, pool, data, paths = deployment
    for path, content in zip(paths, data, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(content.numpy()))
    kit.poison(pool, range(8))
    store, names = attach(), kit.keys(8)
    assert store.batch_exists(names) == 8 and store.exists(names[7])
    assert store.batch_get_v1(names, kit.slots(pool, range(8))) == [True] * 8
    assert torch.equal(kit.contents(pool, range(8)), data)


def test_writes_what_the_base_reads(site, deployment):
    attach, pool, data, paths = deployment
    kit.put_kv(attach(), pool, kit.keys(8), range(8))
    assert site.files() == sorted(paths)
    for path, content in zip(paths, data, strict=True):
        assert path.read_bytes() == bytes(content.numpy())


def test_calls_what_the_base_calls(deployment, monkeypatch):
    """One native call per batch, with the argument types of today."""
    attach, pool, _, _ = deployment
    store, names, calls = attach(digits=1), kit.keys(8), []
    for name in ("load_data", "dump_data", "lookup", "lookup_on_prefix"):
        real = getattr(FaultStore, name)
        monkeypatch.setattr(
            FaultStore,
            name,
            lambda self, *a, real=real, name=name: calls.append((name, a))
            or real(self, *a),
        )
    indices = kit.slots(pool, range(8))
    pointers, _ = pool.get_page_buffer_meta(indices)
    per_page = len(pointers) // 8
    rows = [pointers[i : i + per_page] for i in range(0, len(pointers), per_page)]
    ids = store.connector._anchor.ids(names)
    store.batch_set_v1(names, indices)
    store.batch_exists(names)
    store.exists(names[0])
    store.batch_get_v1(names, indices)
    assert calls == [
        ("dump_data", (ids, [0] * 8, rows)),
        ("lookup_on_prefix", (ids,)),
        ("lookup", (ids[:1],)),
        ("load_data", (ids, [0] * 8, rows)),
    ]
