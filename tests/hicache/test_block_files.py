"""What the files below a storage backend are taken for: real stores write them."""

import json
import os
import time

import hicache_kit as kit
import pytest
from hicache_kit import PoolName

from ucm.integration.sglang import block_files
from ucm.integration.sglang.block_files import Kind, StoreFolder, store_folders
from ucm.integration.sglang.format_marker import PageFormat

SWA, MAMBA = PoolName.SWA, PoolName.MAMBA
OWNER = "17.4242.88123.4026531836.2f0c-boot.host.example"


def stored(site, **kw):
    """A deployment with three pools, 8 pages each on disk."""
    anchor, pools = kit.mha(), {SWA: kit.mha(layers=1), MAMBA: kit.mamba()}
    store = site.attach(anchor, pools, **kw)
    names = kit.keys(8)
    kit.put_kv(store, anchor, names, range(8))
    for name, pool in pools.items():
        kit.put(store, name, pool, names, range(8))
    return store


def of_kind(folder, kind):
    return sorted(entry.path for found, entry in folder.files() if found is kind)


@pytest.mark.parametrize("digits", range(4))
@pytest.mark.parametrize("namespace", ["", "fp8"])
def test_every_file_is_told(site, digits, namespace):
    stored(site, backends=2, data_dir_shard_bytes=digits, namespace=namespace)
    folders = [f for path in site.backends for f in store_folders(path)]
    blocks = [path for f in folders for path in of_kind(f, Kind.BLOCK)]
    assert sorted(blocks) == [str(path) for path in site.files()]
    assert len(blocks) == 24
    assert [of_kind(f, Kind.UNKNOWN) for f in folders] == [[]] * len(folders)
    mine = [f for f in folders if f.deployment == namespace]
    assert {f.pool for f in mine} == {"kv", "swa", "mamba"} and len(mine) == 6
    for folder in mine:
        sizes = {os.path.getsize(path) for path in of_kind(folder, Kind.BLOCK)}
        assert sizes == folder.block_sizes()
        assert folder.pool == "kv" or folder.page_bytes in sizes


@pytest.mark.parametrize("digits", range(4))
def test_a_block_s_path(site, digits):
    store = stored(site, data_dir_shard_bytes=digits)
    for name in ("kv", "swa", "mamba"):
        path = kit.block_of(site, store, name, kit.keys(1)[0])
        parent = path.parents[1]
        block = bytes.fromhex(path.name)
        assert str(path.relative_to(parent)) == block_files.block_path(block, digits)


def test_strangers_are_unknown(site):
    """Files and folders of others, links, and blocks where no store would look for them."""
    stored(site)
    (root,) = site.backends[:1]
    (swa,) = (root / "sglang_v2").glob("swa_*")
    block = next(path for path in site.files() if path.parts[-2] != "0")
    before = {f.path: of_kind(f, Kind.BLOCK) for f in store_folders(root)}
    (root / "0").mkdir(exist_ok=True)
    strange = [
        root / "notes.txt",
        root / "sglang_v2" / "readme",
        root / ".layout" / "notes.json",
        root / ".tmp" / "notes",
        swa / "notes.txt",
        root / "0" / block.name,
        block.with_name(block.name + ".bak"),
        block.with_name(block.name[:-1]),
        block.with_name(block.name.upper()),
    ]
    for path in strange:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    for path in (root / "models", root / "sglang_v2" / "models", swa / "ns-x"):
        path.mkdir()
        (path / "weights").write_text("x")
        strange.append(path)
    links = [root / "1f", block.with_name(block.name[0] + "0" * 31)]
    for path in links:
        path.symlink_to(block.parent if path.parent == root else block)
    strange += links
    folders = list(store_folders(root))
    assert {f.path: of_kind(f, Kind.BLOCK) for f in folders} == before
    unknown = [path for f in folders for path in of_kind(f, Kind.UNKNOWN)]
    assert sorted(unknown) == sorted(map(str, strange))


def test_temporaries(site):
    """Of this PosixStore, of one without .tmp/, and of markers; old ones are left over."""
    stored(site)
    root, (block, *_) = site.backends[0], site.files()
    (marker,) = (root / ".layout").iterdir()
    paths = [
        root / ".tmp" / f"{block.name}.3.{OWNER}",
        block.with_name(block.name + ".tmp"),
        marker.with_name(f"{marker.name}.{'0' * 32}.tmp"),
    ]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    folder = next(store_folders(root))
    assert of_kind(folder, Kind.TEMPORARY) == sorted(map(str, paths))
    for age, left_over in ((0, False), (3500, False), (3700, True)):
        os.utime(paths[0], (time.time() - age,) * 2)
        assert block_files.is_left_over(os.stat(paths[0])) is left_over


def test_markers_are_read(site):
    store = stored(site, model="org/model", tp=(1, 2))
    swa = next(f for f in store_folders(site.backends[0]) if f.pool == "swa")
    (marker,), unreadable = swa.markers()
    assert unreadable == []
    pool = store.connector.pools.get("swa")
    assert marker.format == pool._format
    assert isinstance(marker.format, PageFormat)
    assert marker.keys == pool._suffix
    with open(marker.path) as f:
        good = json.load(f)
    odd = [{**good, "component_sizes": sizes} for sizes in (7, ["a"], None)]
    texts = ["", "[]", "{}", '{"keys": "k"}', "\0", "[" * 60000, *map(json.dumps, odd)]
    for text in texts:
        with open(marker.path, "w") as f:
            f.write(text)
        assert swa.markers() == ([], [marker.path]), text
    os.unlink(marker.path)
    os.mkfifo(marker.path)
    assert swa.markers() == ([], [])


def test_what_vanishes_is_left_out(site):
    """Another process clears the backend while it is looked at."""
    store = stored(site, data_dir_shard_bytes=2)
    folder = next(store_folders(site.backends[0]))
    store.close()
    seen = 0
    for kind, entry in folder.files():
        seen += kind is Kind.BLOCK
        for path in site.files():
            path.unlink()
            if not list(path.parent.iterdir()):
                path.parent.rmdir()
        assert kind is not Kind.BLOCK or block_files.stat(entry) is None
    assert seen <= 1
    assert list(StoreFolder(str(site.root / "gone"), "kv").files()) == []
    with pytest.raises(OSError):
        list(store_folders(str(site.root / "gone")))
