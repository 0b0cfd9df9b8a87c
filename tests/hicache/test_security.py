"""Names, rights, links, logs and configuration: nothing gets out of the root, nothing gets in."""

import os
import re
import subprocess
import sys
import time

import hicache_kit as kit
import pytest
from hicache_kit import FaultStore, PoolName
from test_config import edited

SWA = PoolName.SWA
HOSTILE = ["..", ".", "", "/etc", "a/b", "swa/../../x", "a\0b", "swa\n", "-rf", " swa"]
HOSTILE += ["é", "ｓｗａ", "\udcff", "x" * 300, ".hidden", "swa*", "~", "$HOME", "a\\b"]
BLOCK = re.compile(
    r"(ns-n/)?sglang_v2/[a-z0-9_]+/([0-9a-f]/[0-9a-f]{32}|\.layout/[0-9a-f]{32}\.json)"
)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_pool_name_is_a_folder_name_or_refused(site, name):
    """Refused before anything exists, inside the root or beside it."""
    store = site.attach(kit.logical())
    before = site.everything(), sorted(os.listdir(site.root.parent))
    with pytest.raises(ValueError):
        store.register_mem_host_pool_v2(kit.paged("swa"), name)
    assert (site.everything(), sorted(os.listdir(site.root.parent))) == before


@pytest.mark.parametrize("name", [n for n in HOSTILE if n], ids=ascii)
def test_a_namespace_is_a_folder_name_or_refused(site, name):
    """An empty one is none at all."""
    before = site.everything(), sorted(os.listdir(site.root.parent))
    with pytest.raises(ValueError, match="namespace"):
        site.attach(kit.mha(), {SWA: kit.paged("swa")}, namespace=name)
    assert (site.everything(), sorted(os.listdir(site.root.parent))) == before


@pytest.mark.parametrize("name", [*HOSTILE, "/", "../../../tmp/x"], ids=ascii)
def test_a_model_name_never_reaches_a_path(site, name):
    """It is hashed, whatever it is; a text that has no UTF-8 is refused or a miss."""
    pool = kit.paged("swa")
    try:
        store = site.attach(kit.logical(), {SWA: pool}, model=name, namespace="n")
    except ValueError:
        assert name == "\udcff"
        return
    kit.put(store, SWA, pool, kit.keys(3), range(3))
    found = [p for p in site.everything() if p.is_file()]
    assert len(found) == 4
    assert all(BLOCK.fullmatch(str(p.relative_to(site.backends[0]))) for p in found)


def test_names_that_differ_in_case_share_no_block(site):
    """On a file system that takes them for one folder, which a link makes of them here."""
    small, large = kit.paged("swa"), kit.paged("SWA")
    folder = site.backends[0] / "sglang_v2"
    folder.mkdir()
    (folder / "SWA_192x1").symlink_to("swa_192x1")
    (folder / "swa_192x1").mkdir()
    store, names = site.attach(kit.logical(), {"swa": small, "SWA": large}), kit.keys(2)
    data = kit.fill(small, range(2), seed=1)
    kit.put(store, "swa", small, names, range(2))
    load = [kit.transfer("SWA", large, names, range(2))]
    assert store.batch_get_v2(load) == {"SWA": [False, False]}
    kit.put(store, "SWA", large, names, range(2))
    kit.poison(small, range(2))
    load = [kit.transfer("swa", small, names, range(2))]
    assert store.batch_get_v2(load) == {"swa": [True, True]}
    assert (kit.contents(small, range(2)) == data).all()


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_rights_whatever_the_umask(site, mask):
    """Files 0640, folders 0774, markers and temporaries among them."""
    pool, before = kit.mha(), os.umask(mask)
    try:
        made = set(site.everything())
        store = site.attach(kit.mha(), {SWA: pool, PoolName.MAMBA: kit.mamba()})
        kit.put_kv(store, pool, kit.keys(2), range(2))
        kit.put(store, SWA, pool, kit.keys(2), range(2))
        modes = {p: p.stat().st_mode & 0o7777 for p in set(site.everything()) - made}
        for path, mode in modes.items():
            assert mode == (0o774 if path.is_dir() else 0o640), path
    finally:
        os.umask(before)


@pytest.mark.parametrize("engine", ["psync", "aio"])
def test_a_link_in_a_blocks_place_is_not_followed(site, tmp_path, engine):
    """A file outside that has a page's size: a miss, not read, not written, replaced."""
    pool, names = kit.aligned(kit.paged("swa", layers=1, row=4096)), kit.keys(1)
    store = site.attach(kit.logical(), {SWA: pool}, posix_io_engine=engine)
    kit.put(store, SWA, pool, names, [0])
    block, outside = kit.block_of(site, store, SWA, names[0]), tmp_path / "outside"
    outside.write_bytes(b"s" * 4096)
    block.unlink()
    block.symlink_to(outside)
    kit.poison(pool, [1])
    assert store.batch_exists_v2(names, [kit.query(SWA)]).kv_hit_pages == 0
    load = [kit.transfer(SWA, pool, names, [1])]
    assert store.batch_get_v2(load) == {SWA: [False]}
    assert (kit.contents(pool, [1]) == 0xEE).all()
    kit.put(store, SWA, pool, names, [0])
    assert outside.read_bytes() == b"s" * 4096 and not block.is_symlink()
    assert store.batch_get_v2(load) == {SWA: [True]}


def test_a_link_in_place_of_the_temporaries_is_not_swept(site, tmp_path):
    """The start removes what is old below .tmp; nothing of the folder that a link names."""
    site.attach(kit.logical(), {SWA: kit.paged("swa")}).close()
    (folder,) = (site.backends[0] / "sglang_v2").iterdir()
    old = tmp_path / "precious"
    old.write_bytes(b"old")
    os.utime(old, (time.time() - 10**6,) * 2)
    (folder / ".tmp").symlink_to(tmp_path)
    site.attach(kit.logical(), {SWA: kit.paged("swa")})
    time.sleep(0.3)
    assert old.read_bytes() == b"old"


@pytest.mark.parametrize("where", [".tmp", "folder of the block"])
def test_nothing_is_written_through_a_link(site, tmp_path, messages, where):
    """The page is False, the log says what to do, and all is well when it is done."""
    pool, names = kit.paged("swa"), kit.keys(1)
    store = site.attach(kit.logical(), {SWA: pool})
    block = store.connector.pools.get("swa").ids(names)[0].hex()
    (folder,) = (site.backends[0] / "sglang_v2").iterdir()
    link = folder / (where if where == ".tmp" else block[0])
    if where == ".tmp":  # what replaces a broken block has a name there
        (folder / block[0]).mkdir()
        (folder / block[0] / block).write_bytes(b"short")
    link.symlink_to(tmp_path)
    page = [kit.transfer(SWA, pool, names, [0])]
    assert store.batch_set_v2(page) == {SWA: [False]}
    assert list(tmp_path.iterdir()) == []
    assert f"{link}): ELOOP" in messages()
    assert "put a folder in place of the link" in messages()
    link.unlink()
    kit.put(store, SWA, pool, names, [0])


TELLING = """
import sys
sys.path[:0] = {path!r}
import hicache_kit as kit
with kit.Site.temporary() as site:
    pool, names = kit.paged("swa"), kit.keys(2, "prompt-of-a-user")
    kit.poison(pool, range(2), ord("P"))
    store = site.attach(kit.logical(), {{"swa": pool}}, token="s3cret")
    for path in site.files(): path.unlink()
    for call in (store.batch_get_v2, store.batch_set_v2, store.batch_get_v2):
        call([kit.transfer("swa", pool, names, range(2))])
    store.batch_exists_v2(names, [kit.query("swa")])
    store.register_mem_host_pool_v2(kit.asymmetric_mha(), "draft")
"""


def test_logs_tell_no_secret_and_no_content(tmp_path):
    """At the most talkative level: neither page hashes, nor bytes, nor values of settings."""
    code = "import logging; logging.basicConfig(level=0)" + TELLING.format(
        path=sys.path
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "UC_LOGGER_LEVEL": "debug", "PASSWORD": "pa55"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    logs = "".join(p.read_text(errors="replace") for p in tmp_path.rglob("*.log*"))
    said = run.stdout + run.stderr + logs
    assert run.returncode == 0 and "L3 get failed for 2 of 2" in said, said
    assert "Failed(" in said and "token" in said
    for secret in ("s3cret", "pa55", "prompt-of-a-user", "PPPP"):
        assert secret not in said


def test_configuration_is_data(site, tmp_path, monkeypatch):
    """A tag that makes YAML loaders run code is refused, and nothing ran."""
    trap, path = tmp_path / "trap", tmp_path / "config.yaml"
    path.write_text(
        f"kv_connector_extra_config: !!python/object/apply:os.mkdir ['{trap}']"
    )
    monkeypatch.setenv("UNIFIEDCACHE_CONFIG_FILE", str(path))
    config = edited(site, ("kv_connector_extra_config",), ...)
    with pytest.raises(ValueError, match="UNIFIEDCACHE_CONFIG_FILE"):
        site.attach(kit.logical(), config=config)
    assert not trap.exists()


def test_module_path_is_sglangs_affair(site, tmp_path, monkeypatch):
    """SGLang loaded the module that it names; the connector does not look at it."""
    (tmp_path / "other_module.py").write_text("raise SystemExit('loaded')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for key in ("module_path", "class_name"):
        config = edited(site, (key,), "other_module")
        store = site.attach(kit.logical(), {SWA: kit.paged("swa")}, config=config)
        assert type(store.connector.pools.get("swa").store) is FaultStore
    assert "other_module" not in sys.modules
