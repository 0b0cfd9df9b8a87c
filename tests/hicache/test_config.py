"""The operator's configuration: what is refused, with which words, and what is passed on."""

import copy

import hicache_kit as kit
import pytest
from hicache_kit import FaultStore, PoolName

SWA, C4 = PoolName.SWA, PoolName.DEEPSEEK_V4_C4


def edited(site, path, value, **kw):
    """A configuration with one key of extra_config set, or removed for ..."""
    config = site.config(**kw)
    config.extra_config = kit.edit(copy.deepcopy(config.extra_config), path, value)
    return config


CONNECTOR = ("kv_connector_extra_config",)
OPTIONS = (*CONNECTOR, "ucm_connector_config")
BACKENDS = (*OPTIONS, "storage_backends")
BAD = {
    "no section": (CONNECTOR, ..., "kv_connector_extra_config"),
    "section is text": (CONNECTOR, "x", "kv_connector_extra_config"),
    "no options": (OPTIONS, ..., "ucm_connector_config"),
    "no store class": ((*CONNECTOR, "ucm_connector_name"), ..., "ucm_connector_name"),
    "no backends": (BACKENDS, ..., "storage_backends"),
    "empty text": (BACKENDS, "", "storage_backends"),
    "empty list": (BACKENDS, [], "storage_backends"),
    "a number": (BACKENDS, 3, "storage_backends"),
    "a list with a number": (BACKENDS, [3], "storage_backends"),
    "nowhere": (BACKENDS, "/no/perm", "storage_backends"),
    "an empty part": (BACKENDS, "a::b", "storage_backends"),
    "colon in a path": (BACKENDS, "/mnt/a:1", "storage_backends"),
    "no interface_v1": (("interface_v1",), ..., "interface_v1"),
    "interface_v1 off": (("interface_v1",), 0, "interface_v1"),
    "namespace with a slash": ((*OPTIONS, "namespace"), "a/b", "namespace"),
    "namespace is a number": ((*OPTIONS, "namespace"), 7, "namespace"),
    "namespace hidden": ((*OPTIONS, "namespace"), "..", "namespace"),
    "namespace in capitals": ((*OPTIONS, "namespace"), "REV1", "lower-case"),
    "namespace too long": ((*OPTIONS, "namespace"), "a" * 101, "up to 100"),
    "namespace with a NUL": ((*OPTIONS, "namespace"), "a\0b", "namespace"),
    "namespace not ASCII": ((*OPTIONS, "namespace"), "\u00e4", "namespace"),
}


@pytest.mark.parametrize("path, value, key", BAD.values(), ids=BAD)
@pytest.mark.parametrize("make", [kit.mha, kit.logical])
def test_refused_with_the_key_and_an_example(site, make, path, value, key):
    before = site.everything(), kit.threads()
    with pytest.raises(ValueError, match=key) as refusal:
        site.attach(make(), config=edited(site, path, value))
    assert "for example" in str(refusal.value)
    assert (site.everything(), kit.threads()) == before


@pytest.mark.parametrize("flag", ["1", "false"])
def test_interface_v1_as_text_is_warned_about(site, messages, flag):
    site.attach(kit.logical(), config=edited(site, ("interface_v1",), flag))
    assert "interface_v1" in messages()


def test_backends_as_text_and_as_list(site):
    """Both forms name the same folders; a list may hold a path with a colon."""
    anchor, names = kit.mha(), kit.keys(8)
    a, b = (str(path) for path in site.backends)
    store = site.attach(anchor, config=edited(site, BACKENDS, f"{a}:{b}"))
    kit.put_kv(store, anchor, names, range(8))
    store.close()
    assert {p.parents[1] for p in site.files()} == set(site.backends)
    store = site.attach(anchor, config=edited(site, BACKENDS, [a, b]))
    assert store.batch_exists(names) == 8
    odd = site.root / "x:1"
    odd.mkdir()
    site.attach(kit.mha(), config=edited(site, BACKENDS, [str(odd)]))


def test_yaml_file(site, tmp_path, monkeypatch):
    """The section may come from the file that UNIFIEDCACHE_CONFIG_FILE names."""
    import yaml

    config = site.config()
    path = tmp_path / "ucm.yaml"
    section = config.extra_config.pop("kv_connector_extra_config")
    path.write_text(yaml.safe_dump({"kv_connector_extra_config": section}))
    monkeypatch.setenv("UNIFIEDCACHE_CONFIG_FILE", str(path))
    site.attach(kit.mha(), config=config)
    for name, content in (("gone.yaml", None), ("list.yaml", "- 1")):
        path = tmp_path / name
        if content:
            path.write_text(content)
        monkeypatch.setenv("UNIFIEDCACHE_CONFIG_FILE", str(path))
        with pytest.raises(ValueError, match=f"UNIFIEDCACHE_CONFIG_FILE.*{name}"):
            site.attach(kit.mha(), config=config)


def test_dcp_is_refused_by_name(site):
    config = site.config(mla=True)
    config.dcp_size = 2
    with pytest.raises(ValueError, match="dcp_size is 2"):
        site.attach(kit.mla(), config=config)


def options_of(store, name):
    return store.connector.pools.get(name).store.config


def test_store_options(site, messages):
    """Sizes and folders per pool; GC settings stay with the primary store, said once."""
    given = {"posix_capacity_gb": 1000, "posix_gc_trigger_threshold_ratio": 0.5}
    pools = {SWA: kit.mha(), C4: kit.paged("c4")}
    store = site.attach(kit.mha(), pools, timeout_ms=1234, **given)
    anchor, swa = store.store.config, options_of(store, SWA)
    assert given.items() <= anchor.items()
    assert (anchor["tensor_size"], anchor["block_size"]) == (384, 768)
    assert (swa["tensor_size"], swa["shard_size"], swa["block_size"]) == (384, 768, 768)
    assert swa["timeout_ms"] == anchor["timeout_ms"] == 1234
    assert not given.keys() & swa.keys() and swa["posix_gc_enable"] is False
    assert swa["device_id"] == 0
    assert messages().count("dropped for them: posix_capacity_gb, posix_gc_") == 1
    folders = [*swa["storage_backends"], *options_of(store, C4)["storage_backends"]]
    assert len(set(folders)) == 2


def test_options_of_the_operator_win(site):
    store = site.attach(kit.logical(), {SWA: kit.mha()}, posix_data_trans_concurrency=3)
    options = options_of(store, SWA)
    assert options["posix_data_trans_concurrency"] == 3
    assert options["posix_lookup_concurrency"] == 4


@pytest.mark.parametrize("wish", [{"io_direct": True}, {"posix_io_engine": "aio"}])
def test_unaligned_pools_fall_back_to_buffered_io(site, messages, wish):
    """Each such pool says so once and works; an aligned one keeps what was asked for."""
    if not kit.engine_works(site, wish):
        pytest.skip("this store refuses aio")
    small, large = kit.paged("small"), kit.aligned(
        kit.paged("large", layers=1, row=4096)
    )
    store = site.attach(kit.logical(), {SWA: small, C4: large}, **wish)
    assert wish.items() <= options_of(store, C4).items()
    options = options_of(store, SWA)
    assert (options["io_direct"], options["posix_io_engine"]) == (False, "psync")
    assert messages().count("buffered psync") == 1 and "pool swa" in messages()
    names, data = kit.keys(2), kit.fill(small, [0, 1])
    kit.put(store, SWA, small, names, [0, 1])
    kit.poison(small, [2, 3])
    store.batch_get_v2([kit.transfer(SWA, small, names, [2, 3])])
    assert (kit.contents(small, [2, 3]) == data).all()


def test_a_store_that_cannot_start(site):
    """The pool, the cause, the threads it wanted and the options are named."""

    def fail(store):
        raise RuntimeError("Resource temporarily unavailable")

    store = site.attach(kit.logical())
    before = site.everything(), kit.threads()
    FaultStore.faults["create"] = fail
    with pytest.raises(ValueError) as refusal:
        store.register_mem_host_pool_v2(kit.mha(), SWA)
    for word in (
        "'swa'",
        "Resource temporarily",
        "up to 8 threads",
        "posix_data_trans_concurrency",
    ):
        assert word in str(refusal.value)
    assert (site.everything(), kit.threads()) == before
    FaultStore.faults.clear()
    store.register_mem_host_pool_v2(kit.mha(), SWA)
