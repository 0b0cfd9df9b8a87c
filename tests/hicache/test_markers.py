"""Format markers and the namespace option: other bytes under the same keys are refused."""

import errno
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import hicache_kit as kit
import pytest
import torch
from hicache_kit import PoolName

from ucm.integration.sglang import format_marker
from ucm.integration.sglang.format_marker import PageFormat

SWA, C4 = PoolName.SWA, PoolName.DEEPSEEK_V4_C4


def half(**kw):
    return kit.mha(dtype=torch.float16, **kw)


@pytest.mark.parametrize("role", ["anchor", "sidecar"])
def test_same_size_other_dtype_is_refused(site, role):
    """bf16 and fp16 pages have one size and one key; the namespace option keeps them apart."""

    def attach(pool, **kw):
        if role == "anchor":
            return site.attach(pool, **kw)
        return site.attach(kit.logical(), {SWA: pool}, **kw)

    attach(kit.mha(), backends=2).close()
    before = site.everything()
    with pytest.raises(ValueError) as refusal:
        attach(half(), backends=2)
    for word in ("namespace", "torch.bfloat16", "torch.float16", ".layout"):
        assert word in str(refusal.value)
    assert site.everything() == before
    attach(half(), backends=2, namespace="fp16").close()
    attach(kit.mha(), backends=2).close()


def test_another_size_is_a_miss_both_ways(site):
    """An fp8 run finds no page of the bf16 run, nor the reverse; v1 and v2."""
    wide, narrow = kit.mha(), kit.mha(dtype=torch.uint8)
    names = kit.keys(1)
    for pool, other in ((wide, narrow), (narrow, wide)):
        store = site.attach(pool, {SWA: pool})
        kit.fill(pool, [0])
        kit.put_kv(store, pool, names, [0])
        kit.put(store, SWA, pool, names, [0])
        assert store.batch_exists_v2(names, [kit.query(SWA)]).kv_hit_pages == 1
        store.close()
        store = site.attach(other, {SWA: other})
        assert store.batch_exists(names) == 0 and not store.exists(names[0])
        store.close()


FORMATS = {
    "page tokens": lambda: kit.paged("c4", page=8),
    "layers": lambda: kit.paged("c4", layers=6, row=32),
}


@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS)
def test_other_formats_of_one_size(site, make):
    site.attach(kit.logical(), {C4: kit.paged("c4", layers=3, row=64)}).close()
    with pytest.raises(ValueError, match="another format"):
        site.attach(kit.logical(), {C4: make()})


def test_marker_content(site):
    """Written before any block, readable, once per key family and backend."""
    site.attach(kit.mha(), {SWA: kit.mha()}, backends=2, tp=(1, 2))
    for backend in site.backends:
        (path,) = (backend / ".layout").iterdir()
        assert json.loads(path.read_text()) == {
            "keys": "_org-model_1_2",
            "model": "org/model",
            "dtype": "torch.bfloat16",
            "page_tokens": 4,
            "layers": 3,
            "host_layout": "page_first",
            "component_sizes": [384, 384],
            "element_type": "",
        }
        (path,) = (backend / "sglang_v2" / "swa_384x2" / ".layout").iterdir()
        found = json.loads(path.read_text())
        assert found["keys"] == "_org-model_1_2__v2_tp_1_2__pool_swa__component_0"


def test_fp8_kinds_differ_where_the_server_tells(site, monkeypatch):
    """Host pools hold e4m3 and e5m2 alike as uint8; an unknown kind fits either."""

    def attach(kind):
        monkeypatch.setattr(format_marker, "fp8_element_type", lambda: kind)
        site.attach(kit.mha(dtype=torch.uint8)).close()

    attach("fp8_e4m3")
    attach("")
    with pytest.raises(ValueError, match="fp8_e5m2"):
        attach("fp8_e5m2")


def test_other_models_and_ranks_share_a_folder(site):
    """Their keys differ, so their formats may."""
    for i, pool in enumerate((kit.mha(), half())):
        for rank in range(2):
            site.attach(pool, {SWA: pool}, model=f"model{i}", tp=(rank, 2)).close()


def test_names_that_become_one_key_are_told_apart(site):
    """org/model-x and org-model/x have the same keys: the second one needs a namespace."""
    site.attach(kit.mha(), model="org/model-x").close()
    with pytest.raises(ValueError, match="namespace"):
        site.attach(kit.mha(), model="org-model/x")
    site.attach(kit.mha(), model="org-model/x", namespace="other").close()


def test_a_damaged_marker_is_refused(site):
    site.attach(kit.mha()).close()
    (path,) = (site.backends[0] / ".layout").iterdir()
    for text in ("{", "{}", "[]", "7", "[" * 60000, "\0", "\udcff"):
        path.write_text(text, errors="surrogateescape")
        with pytest.raises(ValueError, match="unreadable|another format"):
            site.attach(kit.mha())
        assert path.read_text(errors="surrogateescape") == text


@pytest.mark.parametrize("fault", ["in the way", "full"])
def test_a_refusal_on_the_second_backend_leaves_the_first_clean(
    site, monkeypatch, fault
):

    store, mkdir = site.attach(kit.logical(), backends=2), format_marker.os.mkdir
    if fault == "in the way":
        (site.backends[1] / "sglang_v2").write_text("")

    def full(path, *args):
        if path.startswith(str(site.backends[1] / "sglang_v2" / "swa")):
            raise OSError(28, "No space left on device", path)
        mkdir(path, *args)

    before = site.everything()
    monkeypatch.setattr(format_marker.os, "mkdir", full)
    with pytest.raises(ValueError, match="storage_backends: .*sglang_v2"):
        store.register_mem_host_pool_v2(kit.mha(), SWA)
    assert site.everything() == before


def claims(site, formats, count=64):
    """What each of `count` ranks that start at once gets: new paths, or the refusal."""

    def claim(rank):
        try:
            return format_marker.claim(folders, "_m", formats[rank % len(formats)])
        except ValueError as e:
            return e

    folders = [str(path / "sglang_v2" / "x") for path in site.backends]
    with ThreadPoolExecutor(8) as ranks:
        return list(ranks.map(claim, range(count)))


@pytest.fixture(params=["hard links", "no hard links"])
def links(request, monkeypatch):
    def refuse(*paths, **kw):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if request.param == "no hard links":
        monkeypatch.setattr(format_marker.os, "link", refuse)


BF16 = PageFormat("m", "torch.bfloat16", 4, 3, "page_first", (192,))
FP16 = PageFormat("m", "torch.float16", 4, 3, "page_first", (192,))


def test_components_of_one_total_are_told_apart(site):
    """Two of 384 bytes and one of 768 have one key and one size in the primary folder."""
    site.attach(kit.mha()).close()
    with pytest.raises(ValueError, match="component_sizes.*namespace"):
        site.attach(kit.paged("kv", row=256))


def test_ranks_that_claim_at_once(site, links):
    """Every rank of a replicated pool writes the same marker; one wins, all go on."""
    made = claims(site, [BF16])
    written = [p for paths in made for p in paths if p.endswith(".json")]
    assert len(written) == len(set(written)) == 2
    assert not list(site.root.rglob("*.tmp"))


def test_formats_that_claim_at_once(site, links):
    """Never both: whoever comes second is refused, however close they are."""
    for _ in range(10):
        got = claims(site, [BF16, FP16], 16)
        refused = [isinstance(result, ValueError) for result in got]
        assert refused in ([False, True] * 8, [True, False] * 8)
        for path in site.backends:
            shutil.rmtree(path / "sglang_v2")


def test_a_claim_that_is_killed_leaves_nothing(site, monkeypatch):
    """In the moment before the marker gets its name; an empty folder is all that stays."""
    folder = site.backends[0] / "sglang_v2" / "x"
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            monkeypatch.setattr(format_marker.os, "link", lambda *_, **how: os._exit(0))
            format_marker.claim([str(folder)], "_m", BF16)
        os.waitpid(pid, 0)
    assert [p for p in site.everything() if p.is_file()] == []
    assert format_marker.claim([str(folder)], "_m", BF16)


def test_a_writer_that_is_killed_without_hard_links(site, monkeypatch):
    """The marker has its name before its text; the next start completes it."""

    def no_links(*_, **kw):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    folder = site.backends[0] / "sglang_v2" / "x"
    monkeypatch.setattr(format_marker.os, "link", no_links)
    pid = os.fork()
    if pid == 0:
        try:
            format_marker.fcntl.flock = lambda *_: os._exit(0)
            format_marker.claim([str(folder)], "_m", BF16)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    (marker,) = folder.rglob("*.json")
    assert marker.stat().st_size == 0
    assert format_marker.claim([str(folder)], "_m", BF16) == [str(marker)]
    assert format_marker.read(str(marker))["dtype"] == "torch.bfloat16"
    with pytest.raises(ValueError, match="another format"):
        format_marker.claim([str(folder)], "_m", FP16)


def test_formats_that_claim_an_empty_marker_at_once(site, links):
    """Of a writer that was killed, or of a machine that lost power: one of them gets it."""
    for _ in range(10):
        for path in claims(site, [BF16], 1)[0]:
            if path.endswith(".json"):
                os.truncate(path, 0)
        refused = [
            isinstance(got, ValueError) for got in claims(site, [BF16, FP16], 16)
        ]
        assert refused in ([False, True] * 8, [True, False] * 8)
        for path in site.backends:
            shutil.rmtree(path / "sglang_v2")


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_users_of_one_group_share_a_root(site, mask):
    """Another uid finds the first one's markers, and adds its own model and pool."""
    if os.geteuid() != 0:
        pytest.skip("changing the user needs root, as CI has it")
    site.root.chmod(0o755)
    for path in site.backends:
        os.chown(path, -1, 4321)
        path.chmod(0o2775)
    for uid, pool, suffix in [
        (1, "x", "_m"),
        (2, "x", "_m"),
        (2, "x", "_n"),
        (2, "y", "_m"),
    ]:
        pid = os.fork()
        if pid == 0:
            status = 1
            with suppress(BaseException):
                os.setgroups([])
                os.setgid(4321)
                os.setuid(4000 + uid)
                os.umask(mask)
                folders = [str(path / "sglang_v2" / pool) for path in site.backends]
                format_marker.claim(folders, suffix, BF16)
                status = 0
            os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0, (uid, pool, suffix)
    markers = list(site.root.rglob("*.json"))
    assert len(markers) == 6
    assert {path.stat().st_mode & 0o777 for path in markers} == {0o640}


def test_namespace(site):
    """Unset and empty are the requested paths; a name is a folder of its own for v1 and v2."""
    anchor, swa, names = kit.mha(), kit.mha(), kit.keys(2)

    def attach(**kw):
        return site.attach(anchor, {SWA: swa}, **kw)

    store = attach(namespace="rev1")
    kit.put_kv(store, anchor, names, [0, 1])
    kit.put(store, SWA, swa, names, [0, 1])
    assert {p.relative_to(site.backends[0]).parts[0] for p in site.files()} == {
        "ns-rev1"
    }
    for other in ({}, {"namespace": ""}, {"namespace": "rev2"}):
        store = attach(**other)
        assert store.batch_exists_v2(names, [kit.query(SWA)]).kv_hit_pages == 0
    assert (
        attach(namespace="rev1").batch_exists_v2(names, [kit.query(SWA)]).kv_hit_pages
        == 2
    )


def test_a_store_that_fails_late_leaves_its_folders_to_others_only(site):
    """Folders made for it go; a root or namespace that was there before keeps its own."""

    def fail(_):
        raise RuntimeError("injected")

    store = site.attach(kit.mha(), {SWA: kit.paged("swa")}, backends=2)
    before = site.everything()
    kit.FaultStore.faults["created"] = fail
    with pytest.raises(ValueError, match="injected"):
        store.register_mem_host_pool_v2(kit.paged("c4"), C4)
    assert site.everything() == before
    for backends in (1, 2):
        with pytest.raises(ValueError, match="injected"):
            site.attach(kit.mha(), namespace="new", backends=backends)
        with pytest.raises(ValueError, match="injected"):
            site.attach(kit.mha(), model="other", backends=backends)
    assert site.everything() == before


def test_markers_without_hard_links_and_without_writing(site, monkeypatch, messages):
    """A file system that lacks links gets its markers; a read-only one is served unmarked."""

    def no_links(*_, **kw):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(format_marker.os, "link", no_links)
    site.attach(kit.mha()).close()
    assert len(list((site.backends[0] / ".layout").iterdir())) == 1
    monkeypatch.setattr(format_marker.os, "access", lambda *_: False)
    site.attach(kit.mha()).close()
    assert "read-only" not in messages()
    site.attach(kit.mha(), model="other").close()
    assert "read-only" in messages()
    assert len(list((site.backends[0] / ".layout").iterdir())) == 1


def test_a_link_in_place_of_the_markers_folder_is_refused(site, tmp_path):
    """Nothing is read or written where it leads."""
    (site.backends[0] / ".layout").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"\.layout is a link"):
        site.attach(kit.mha())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("planted", ["a FIFO", "a link", "a folder"])
def test_what_is_no_file_is_no_marker(site, planted):
    """A FIFO would hang the start, and a link may name anybody's file."""
    site.attach(kit.mha()).close()
    (marker,) = (site.backends[0] / ".layout").iterdir()
    elsewhere = site.root / "elsewhere"
    marker.rename(elsewhere)
    if planted == "a FIFO":
        os.mkfifo(marker)
    elif planted == "a link":
        marker.symlink_to(elsewhere)
    else:
        marker.mkdir()
    with pytest.raises(ValueError, match=marker.name):
        site.attach(kit.mha())
    assert elsewhere.is_file()


@pytest.mark.parametrize("role", ["anchor", "sidecar"])
def test_a_marker_that_was_removed_comes_back(site, role):
    """With the blocks, under a running server: none is there again without its marker."""
    pool, names = kit.mha(), kit.keys(2)
    anchor, pools = (pool, {}) if role == "anchor" else (kit.logical(), {SWA: pool})
    store = site.attach(anchor, pools, backends=2)
    put = kit.put_kv if role == "anchor" else kit.put
    words = () if role == "anchor" else (SWA,)
    kit.fill(pool, range(2))
    before = site.everything()
    for folder in {path.parents[1] for path in before if path.suffix == ".json"}:
        for inner in folder.iterdir():
            shutil.rmtree(inner)
    put(store, *words, pool, names, range(2))
    markers = {path for path in before if path.suffix == ".json"}
    assert len(markers) == 2 and markers <= set(site.everything())
    store.close()
    other = (half(), {}) if role == "anchor" else (anchor, {SWA: half()})
    with pytest.raises(ValueError, match="namespace"):
        site.attach(*other, backends=2)


@pytest.mark.parametrize("levels", [1, 2])
def test_a_folder_that_is_away_is_not_made_again(site, levels):
    """The pool's own and the backend's: each can be a mount."""
    pool = kit.mha()
    store = site.attach(kit.logical(), {SWA: pool})
    (marker,) = site.root.rglob("*.json")
    folder = marker.parents[1] if levels == 1 else site.backends[0]
    folder.rename(site.root / "away")
    moved = kit.transfer(SWA, pool, kit.keys(1), [0])
    assert store.batch_set_v2([moved]) == {SWA: [False]}
    assert not folder.exists()
    (site.root / "away").rename(folder)
    assert store.batch_set_v2([moved]) == {SWA: [True]}


def test_a_marker_of_another_format_that_came_instead(site):
    """Somebody removed the folder and stored other pages there: nothing is stored beside."""
    pool, names = kit.mha(), kit.keys(1)
    store = site.attach(kit.logical(), {SWA: pool})
    for folder in site.backends[0].iterdir():
        shutil.rmtree(folder)
    site.attach(kit.logical(), {SWA: half()}).close()
    moved = kit.transfer(SWA, pool, names, [0])
    assert store.batch_set_v2([moved]) == {SWA: [False]}
