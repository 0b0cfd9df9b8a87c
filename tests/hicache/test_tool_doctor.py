"""The command doctor: each misconfiguration has its finding, and a good one has no error."""

import argparse
import copy
import errno
import json
import os
import re
import resource
import shlex
import sys
from pathlib import Path

import hicache_kit as kit
import pytest
import sglang.srt.server_args as sglang_server_args
import yaml
from hicache_kit import PoolName

from ucm.integration.sglang import page_layout
from ucm.integration.sglang.hicache import _host
from ucm.integration.sglang.hicache._server import ServerArgs

GOOD_ARGS = [
    *("--enable-hierarchical-cache", "--hicache-storage-backend", "dynamic"),
    *("--hicache-mem-layout", "page_first", "--hicache-io-backend", "kernel"),
]
SECTION = ("kv_connector_extra_config",)
OPTIONS = (*SECTION, "ucm_connector_config")


@pytest.fixture
def site(tmp_path):
    """Folders alone: what no store was opened in needs no closing."""
    made = kit.Site(tmp_path)
    yield made
    if made._attached:
        made.close()


REAL_STATVFS = os.statvfs


def left(monkeypatch, percent):
    """Let every file system say that this much of its space and of its inodes is free."""

    def told(path):
        values = list(REAL_STATVFS(path))
        values[3] = values[4] = (
            values[2] * percent // 100
        )  # f_bfree, f_bavail of f_blocks
        values[6] = values[7] = (
            values[5] * percent // 100
        )  # f_ffree, f_favail of f_files
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", told)


@pytest.fixture(autouse=True)
def roomy(monkeypatch):
    """How full this machine's own disk is must not be among the findings."""
    left(monkeypatch, percent=50)


def good(site, **options):
    """The extra config that an operator would write."""
    extra = copy.deepcopy(site.config(**options).extra_config)
    extra["kv_connector_extra_config"]["ucm_connector_name"] = "UcmPipelineStore"
    del extra["kv_connector_extra_config"]["ucm_connector_module_path"]
    return extra


@pytest.fixture
def doctor(site, tool):
    """Findings for a configuration, as {level: [text and fix]}, and the exit code."""

    def call(extra, args=GOOD_ARGS, name="extra.json"):
        path = site.root / name
        path.write_text(extra if isinstance(extra, str) else json.dumps(extra))
        sglang = [] if args is None else ["--sglang-args", *args]
        code, found = tool("doctor", "--json", "--config", path, *sglang)
        if code == 2:
            return code, found
        levels = {"error": [], "warning": [], "note": []}
        for finding in found:
            levels[finding["level"]].append(f"{finding['text']} | {finding['fix']}")
        assert code == (1 if levels["error"] else 0)
        return code, levels

    return call


def test_a_good_configuration(site, doctor, tool):
    code, found = doctor(good(site, backends=2))
    assert code == 0 and found["error"] == []
    assert all("goes with this" in text for text in found["warning"]), found
    for path in site.backends:
        assert any(f"{path}: " in text and " free" in text for text in found["note"])
    code, text = tool("doctor", "--config", site.root / "extra.json")
    assert code == 0 and "0 errors" in text.splitlines()[-1]
    assert "note: the server's arguments were not checked" in text


def test_it_leaves_nothing_behind(site, doctor):
    extra = good(site, namespace="new")
    before = site.everything()
    doctor(extra)
    assert site.everything() == [*before, site.root / "extra.json"]


CONFIGS = {
    "no interface_v1": (("interface_v1",), ..., "error", '"interface_v1": true'),
    "no class": (("class_name",), ..., "error", '"class_name": "UnifiedCacheStore"'),
    "no module": (("module_path",), ..., "error", '"module_path": "ucm.'),
    "no name": (("backend_name",), ..., "error", "backend_name"),
    "other class": (("class_name",), "Other", "warning", "Other"),
    "no section": (SECTION, ..., "error", "kv_connector_extra_config"),
    "no options": (OPTIONS, ..., "error", "ucm_connector_config"),
    "no backends": ((*OPTIONS, "storage_backends"), ..., "error", "storage_backends"),
    "no folder": ((*OPTIONS, "storage_backends"), "/no/a:/no/b", "error", "mkdir -p"),
    "slip in an option": ((*OPTIONS, "timeout"), 1, "warning", "mean timeout_ms?"),
    "slip above": (("interface_v2",), 1, "warning", "did you mean interface_v1?"),
    "slip between": ((*SECTION, "ucm_name"), 1, "warning", "ucm_name"),
    "strange key": ((*OPTIONS, "zzz"), 1, "warning", "zzz in ucm_connector_config"),
    "set by pages": ((*OPTIONS, "block_size"), 1, "warning", "block_size has no eff"),
    "bad namespace": ((*OPTIONS, "namespace"), "a/b", "error", "namespace"),
    "wrong type": ((*OPTIONS, "timeout_ms"), "soon", "error", "timeout_ms"),
    "out of range": ((*OPTIONS, "posix_lookup_concurrency"), 0, "error", "1 to 4096"),
    "engine": ((*OPTIONS, "posix_io_engine"), "uring", "error", "'psync' or 'aio'"),
    "sync": ((*OPTIONS, "posix_sync"), "always", "error", "always"),
    "text for true": (("interface_v1",), "false", "warning", "takes it as true"),
    "GC without": ((*OPTIONS, "posix_gc_concurrency"), 4, "warning", "_gb is not set"),
    "capacity": ((*OPTIONS, "posix_capacity_gb"), 1 << 30, "warning", "disks together"),
    "sidecars": ((*OPTIONS, "sidecar_capacity_gb"), 1 << 30, "warning", "all disks"),
    "GC": ((*OPTIONS, "posix_capacity_gb"), 100, "warning", "primary pool only"),
    "threads": (
        (*OPTIONS, "posix_data_trans_concurrency"),
        10**6,
        "error",
        "posix_data_trans_concurrency",
    ),
}


@pytest.mark.parametrize("path, value, level, word", CONFIGS.values(), ids=CONFIGS)
def test_configurations(site, doctor, path, value, level, word):
    _, found = doctor(kit.edit(good(site), path, value))
    assert any(word in text for text in found[level]), found


def test_garbage_collection_that_is_off(site, doctor):
    _, found = doctor(good(site, posix_gc_enable=False, posix_capacity_gb=1))
    assert any("bounds nothing" in text for text in found["warning"]), found
    _, found = doctor(good(site, posix_gc_enable=False))
    assert not any("no garbage" in text for text in found["warning"]), found
    _, found = doctor(good(site, posix_capacity_gb=1, sidecar_capacity_gb=1))
    words = ("no garbage", "bounds nothing", "all disks")
    assert not any(w in text for w in words for text in found["warning"]), found


def test_an_interpreter_that_does_not_start(site, doctor, monkeypatch):
    """What else was found stays."""
    monkeypatch.setattr(sys, "executable", "/no/python")
    code, found = doctor(good(site, timeout=1))
    assert code == 0 and any("/no/python" in text for text in found["note"])
    assert any("mean timeout_ms?" in text for text in found["warning"])


def test_everything_at_once(site, doctor):
    """One fault does not hide the others."""
    extra = kit.edit(good(site), ("interface_v1",), ...)
    kit.edit(extra, (*OPTIONS, "storage_backends"), [str(site.backends[0]), "/no/a"])
    kit.edit(extra, (*OPTIONS, "posix_io_engine"), "uring")
    kit.edit(extra, (*OPTIONS, "timeout"), 1)
    _, found = doctor(extra, ["--hicache-mem-layout", "layer_first"])
    for word in ("interface_v1", "/no/a", "uring", "layer_first", "no HiCache"):
        assert sum(word in text for text in found["error"]) == 1, word


def test_a_path_with_a_colon(site, doctor):
    odd = site.root / "x:1"
    odd.mkdir()
    extra = kit.edit(good(site), (*OPTIONS, "storage_backends"), str(odd))
    _, found = doctor(extra)
    assert found["error"] == [
        f"storage_backends: the path {str(odd)!r} holds a ':', which separates paths | "
        f'write it as a list: ["{odd}"]'
    ]
    code, _ = doctor(kit.edit(extra, (*OPTIONS, "storage_backends"), [str(odd)]))
    assert code == 0


SERVERS = {
    "off": (GOOD_ARGS[1:], "error", "--enable-hierarchical-cache"),
    "backend": (GOOD_ARGS[:1] + GOOD_ARGS[3:], "error", "dynamic"),
    "file": ([*GOOD_ARGS, "--hicache-storage-backend=file"], "error", "is file"),
    "layout": ([*GOOD_ARGS, "--hicache-mem-layout=page_head"], "error", "page_head"),
    "no layout": (GOOD_ARGS[:3], "warning", "--hicache-mem-layout page_first"),
    "direct": ([*GOOD_ARGS, "--hicache-io-backend", "direct"], "error", "kernel"),
    "dcp": ([*GOOD_ARGS, "--dcp-size", "2"], "error", "dcp_size is 2"),
    "not given": (None, "note", "--sglang-args"),
}


@pytest.mark.parametrize("args, level, word", SERVERS.values(), ids=SERVERS)
def test_server_arguments(site, doctor, args, level, word):
    _, found = doctor(good(site), args)
    assert any(word in text for text in found[level]), found


def test_server_arguments_by_every_name():
    """SGLang's short names and aliases; what else a server takes is passed over."""
    for tp in ("--tp", "--tp-size", "--tensor-parallel-size"):
        args = ["--model-path", "m", tp, "16", "--pp", "2", "--nnodes=4", "--tp-x", "3"]
        server = ServerArgs.parse(args)
        assert (server.tp_size, server.pp_size, server.nnodes) == (16, 2, 4)
        assert server.ranks_a_node == 8 and server.tp_spans_nodes
    server = ServerArgs.parse(["--tp", "8", "--pp", "2", "--nnodes", "2"])
    assert not server.tp_spans_nodes
    assert ServerArgs.parse(["--tp", "4", "--dp", "2"]).ranks_a_node == 8
    server = ServerArgs.parse(["--tp=4", "--dp=2", "--enable-dp-attention"])
    assert server.ranks_a_node == 4
    groups = ["--tp=16", "--nnodes=2", "--dp=2", "--enable-dp-attention"]
    assert not ServerArgs.parse(groups).tp_spans_nodes


def test_server_arguments_have_sglang_s_names():
    """Each option string of SGLang's own parser."""
    args = sglang_server_args.ServerArgs
    theirs, ours = argparse.ArgumentParser(), ServerArgs.parser()
    args.add_cli_args(theirs)
    known = {action.dest: action.option_strings for action in ours._actions}
    names = {a.dest: a.option_strings for a in theirs._actions if a.dest in known}
    assert names.keys() >= known.keys() - {"dcp_size"}  # older ones lack it
    for dest, options in names.items():
        assert set(options) <= set(known[dest]), dest
    server = ServerArgs.parse(
        ["--enable-hicache", "--decode-context-parallel-size", "2"]
    )
    assert server.enable_hierarchical_cache and server.dcp_size == 2


def test_server_arguments_as_one_text(site, doctor, capsys):
    assert doctor(good(site), [shlex.join(GOOD_ARGS)])[0] == 0
    for bad in (["--nnodes", "0"], ["--tp=-1"], ["--tp", "x"]):
        code, text = doctor(good(site), bad)
        assert code == 2 and "no number from 1 on" in text
    assert doctor(good(site), ["--tp 'x"])[0] == 2


def test_yaml(site, doctor, monkeypatch):
    """The same as YAML, UCM's part alone, and that part from the environment."""
    extra = good(site)
    assert doctor(yaml.safe_dump(extra), name="extra.yaml")[0] == 0
    part = {"kv_connector_extra_config": extra.pop("kv_connector_extra_config")}
    code, found = doctor(yaml.safe_dump(part), name="ucm.yaml")
    assert code == 0 and any("UCM's part alone" in text for text in found["note"])
    assert doctor(extra)[0] == 1
    monkeypatch.setenv("UNIFIEDCACHE_CONFIG_FILE", str(site.root / "ucm.yaml"))
    assert doctor(extra)[0] == 0
    part["kv_connector_extra_config"]["ucm_connector_config"][
        "storage_backends"
    ] = "/no"
    (site.root / "ucm.yaml").write_text(yaml.safe_dump(part))
    _, found = doctor(extra)
    assert found["error"] == ["there is no folder '/no' | mkdir -p /no"]


@pytest.mark.parametrize("text", ["[1]", "a: [", "", "text"])
def test_what_is_no_configuration(site, doctor, text):
    code, found = doctor(text)
    assert code == 2 and "extra.json" in found


def test_no_file(tool):
    code, text = tool("doctor", "--config", "/no/extra.json")
    assert code == 2 and "/no/extra.json" in text


def test_direct_io(site, doctor, monkeypatch):
    """A real O_DIRECT write decides; where it fails only those who asked for it are told."""
    assert _host.direct_fault(str(site.root)) in ("", "Invalid argument")
    opened = os.open

    def refuse(path, flags, *args, **kw):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return opened(path, flags, *args, **kw)

    monkeypatch.setattr(os, "open", refuse)
    code, found = doctor(good(site))
    assert code == 0 and any("O_DIRECT is refused" in text for text in found["note"])
    _, found = doctor(good(site, io_direct=True))
    assert any("io_direct" in text for text in found["error"])


def test_pools_that_direct_io_cannot_serve(site, doctor):
    """Their page sizes are known once they are on disk."""
    assert _host.DIRECT_UNIT == page_layout._BUFFER_ALIGNMENT
    large = kit.aligned(kit.paged("large", layers=1, row=4096))
    pools = {PoolName.SWA: kit.mha(), PoolName.DEEPSEEK_V4_C4: large}
    site.attach(kit.logical(), pools, namespace="v4")
    for wish in ({"io_direct": True}, {"posix_io_engine": "aio"}):
        _, found = doctor(good(site, namespace="v4", **wish))
        odd = [text for text in found["note"] if "uses buffered psync" in text]
        assert len(odd) == 1 and "pool swa" in odd[0] and "384" in odd[0]
    _, found = doctor(good(site, namespace="v4"))
    assert not any("psync" in text for text in found["note"])
    _, found = doctor(good(site, backends=2, namespace="new", io_direct=True))
    assert sum("unknown until the first start" in t for t in found["note"]) == 1
    _, found = doctor(good(site, namespace="v4", io_direct=True))
    assert not any("unknown until" in text for text in found["note"])


def test_a_folder_that_takes_no_files(site, doctor, monkeypatch):
    """Injected: these tests may run as root, to whom nothing is forbidden."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    extra, two = good(site), good(site, backends=2)

    def starts(extra):
        code, found = doctor(extra)
        level, words = (
            ("error", "does not start") if code else ("warning", "stores nothing")
        )
        assert any(words in text for text in found[level]), found
        return code == 0

    assert not starts(extra)
    for root in site.backends:
        (root / "sglang_v2").mkdir()
    assert not starts(extra)
    for root in site.backends:
        (root / "sglang_v2" / "swa_256x1").mkdir()
    assert starts(extra) and not starts(two)
    for root in site.backends:
        for shard in "0123456789abcdef":
            (root / shard).mkdir()
    assert starts(two)
    assert not starts(good(site, namespace="new"))
    (site.backends[0] / "sglang_v2" / "swa_256x1").rmdir()
    monkeypatch.setattr(os, "access", lambda path, _: "sglang_v2" not in str(path))
    assert not starts(extra)


def test_a_full_disk(site, doctor, monkeypatch):
    left(monkeypatch, percent=2)
    _, found = doctor(good(site))
    assert any("2% of its space" in text for text in found["warning"]), found


TWO_NODES = [*GOOD_ARGS, "--tp", "16", "--nnodes", "2"]


def test_tensor_parallelism_over_local_disks(site, doctor, monkeypatch):
    def nodes(kind, args):
        monkeypatch.setattr(_host, "file_system", lambda path: kind)
        _, found = doctor(good(site), args)
        return [text for text in found["warning"] if "no prefix hits" in text]

    assert len(nodes("ext4", TWO_NODES)) == 1
    assert nodes("nfs4", TWO_NODES) == nodes("ext4", GOOD_ARGS) == []
    assert nodes("ext4", [*GOOD_ARGS, "--tp=8", "--pp=2", "--nnodes=2"]) == []


def test_the_file_system_of_a_path(site):
    """What stat -f says, but for names that the two spell in another way."""
    assert _host.file_system("/proc/self") == "proc"
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    kinds = {line.split()[2] for line in mounts}
    assert _host.file_system(str(site.root)) in kinds


def test_limits(site, doctor, monkeypatch):
    """Threads, descriptors and aio requests that the ranks of a node may want together."""
    monkeypatch.setattr(_host, "_threads_left", lambda: 100)
    assert doctor(good(site), [*GOOD_ARGS, "--tp", "4"])[0] == 0
    _, found = doctor(good(site), [*GOOD_ARGS, "--tp", "8"])
    assert any("8 ranks want up to 24" in text for text in found["error"]), found
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    _, found = doctor(good(site))
    assert any("descriptors" in text for text in found["error"])
    monkeypatch.undo()
    _, found = doctor(good(site, posix_io_engine="aio", posix_aio_queue_depth=32768))
    most = int(Path("/proc/sys/fs/aio-max-nr").read_text())
    assert most > 2 * 32768 * 9 or any("aio-max-nr" in t for t in found["warning"])


def test_threads_left_is_a_number():
    assert _host._threads_left() > 0


def test_the_readme_s_configuration(site, doctor):
    """The launch command of the README, its folder put into the test's."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    command = re.search(r"launch_server (.*?)\n```", text, re.S).group(1)
    flags, extra = command.split("--hicache-storage-backend-extra-config '")
    extra = extra.rstrip("'\n").replace("/mnt/ucm", str(site.backends[0]))
    code, found = doctor(extra, flags.replace("\\\n", "").split())
    assert code == 0 and all("goes with this" in t for t in found["warning"]), found
