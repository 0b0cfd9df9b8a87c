"""The list of options against the code that reads them, the store itself, and the page."""

import os
import re
from pathlib import Path

import hicache_kit as kit
import pytest

from ucm.integration.sglang import hicache_config
from ucm.integration.sglang.hicache_options import CONNECTOR, OPTIONS, SGLANG, STORE
from ucm.store.pipeline import ucmpipelinestore

PAGE = Path(__file__).parents[2] / "docs" / "operator.md"
POSIX = Path(ucmpipelinestore.__file__).parents[1] / "posix"
# Read above the store, by the pipeline or by the connector.
NOT_THE_STORE_S = {"namespace", "sidecar_capacity_gb"}


def read_by_posix_store():
    """{key: its member of Config}, from the code."""
    code = (POSIX / "cc" / "posix_store.cc").read_text()
    found = dict(
        re.findall(r'inConfig\.Get(?:Number)?\(\s*"(\w+)",\s*config\.(\w+)\)', code)
    )
    assert len(found) == code.count("inConfig.Get"), "a reading that is not seen here"
    return found


def test_every_key_that_the_store_reads_is_listed():
    listed = {option.name for option in OPTIONS if option.place == STORE}
    assert set(read_by_posix_store()) == listed - NOT_THE_STORE_S


def test_every_key_that_the_connector_reads_is_listed():
    """Literal keys of the three sections in the one module that reads them."""
    with open(hicache_config.__file__, encoding="utf-8") as f:
        code = f.read()
    read = set(re.findall(r'(?:\.get|\.pop)\(\s*"([a-z]\w+)"', code))
    listed = {option.name for option in OPTIONS}
    assert {"interface_v1", "namespace", "ucm_connector_name"} <= read <= listed
    assert {*hicache_config.ANCHOR_DEFAULTS, *hicache_config.SIDECAR_DEFAULTS} <= listed


def test_defaults_are_the_store_s():
    """Those that are numbers, names or flags, from the members' initialisers."""
    code = (POSIX / "cc" / "global_config.h").read_text()
    initial = dict(re.findall(r"(\w+)\{([^}]*)\};", code))
    members = read_by_posix_store()
    compared = 0
    for option in OPTIONS:
        member = members.get(option.name)
        if member is None or not isinstance(option.default, (bool, int, float)):
            continue
        text = str(option.default).lower()
        assert text == initial[member], option.name
        compared += 1
    assert compared >= 18
    for name in ("posix_io_engine", "posix_sync"):
        (option,) = (o for o in OPTIONS if o.name == name)
        assert f'"{option.default}"' == initial[members[name]]


def test_the_real_store_reads_each_of_them(site):
    """And says so of a key that it does not know."""
    values = {o.name: o.default for o in OPTIONS if o.place == STORE}
    for name in NOT_THE_STORE_S:
        del values[name]
    values |= {
        "storage_backends": [str(site.backends[0])],
        "cpu_affinity_cores": [0],
        "data_dir_on_demand": True,
        "device_id": 0,
        **dict.fromkeys(("tensor_size", "shard_size", "block_size"), 4096),
    }
    pipeline = ucmpipelinestore.PipelineStore()
    library = str(POSIX / "libposixstore.so")
    pipeline.Stack("Posix", library, {**values, "unheard_of": 1})
    assert list(pipeline.UnusedKeys()) == ["unheard_of"]


def test_sglang_takes_these_keys():
    """SGLang's own ones, from its code; in another release they may be elsewhere."""
    import sglang.srt.managers.cache_controller as controller
    from sglang.srt.mem_cache.hybrid_cache import hybrid_cache_controller as hybrid
    from sglang.srt.mem_cache.storage import backend_factory

    code = "".join(Path(m.__file__).read_text() for m in (controller, hybrid))
    read = set(re.findall(r'extra_config\.(?:pop|get)\(\s*"(\w+)"', code))
    factory = Path(backend_factory.__file__).read_text()
    listed = {option.name for option in OPTIONS if option.place == SGLANG}
    assert read <= listed
    required = {"backend_name", "module_path", "class_name"}
    assert all(f'"{name}"' in factory for name in required)
    assert listed == read | required | {"interface_v1", CONNECTOR}


def test_the_page_shows_the_list(tool):
    """Line by line what the command options prints."""
    code, text = tool("options")
    assert code == 0
    for table in text.strip().split("\n\n"):
        assert table in PAGE.read_text(), table.splitlines()[0]


def test_options_as_json(tool):
    code, found = tool("options", "--json")
    assert code == 0 and {"place", "name", "default", "unit", "meaning"} == set(
        found[0]
    )
    texts = {entry["name"]: entry["default"] for entry in found}
    assert texts["posix_data_trans_concurrency"] == "24; sidecar 8"
    assert texts["timeout_ms"] == "30000" and "block_size" not in texts


COMMAND = "python -m ucm.integration.sglang.hicache "
SHOWN = re.findall(rf"^\$ {COMMAND}((?:.*\\\n)*.*)$", PAGE.read_text(), re.M)


def test_the_page_shows_every_command(tool):
    _, text = tool("--help")
    commands = set(re.findall(r"^    (\w+) ", text, re.M))
    assert {line.split()[0] for line in SHOWN} == commands


@pytest.mark.parametrize("line", SHOWN, ids=[line.split()[0] for line in SHOWN])
def test_commands_of_the_page(site, tool, monkeypatch, line):
    """As they stand there, on a deployment whose folders are the test's."""
    pool, names = kit.mha(), ["9a" * 32]
    monkeypatch.chdir(site.root)
    folders = dict(zip(("/mnt/ucm-a", "/mnt/ucm-b"), site.backends, strict=True))
    extra = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.S).group(1)
    for shown, path in folders.items():
        extra, line = extra.replace(shown, str(path)), line.replace(shown, str(path))
    with open("extra.json", "w") as f:
        f.write(extra)
    model = "deepseek-ai/DeepSeek-V4-Flash"
    store = site.attach(kit.logical(), {"swa": pool}, mla=True, backends=2, model=model)
    kit.put(store, "swa", pool, names, [0])
    code, text = tool(*line.replace("\\\n", " ").split())
    assert code == 0, text
    assert text and "Traceback" not in text and os.listdir(site.root)
