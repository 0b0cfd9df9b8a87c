"""The commands inspect, verify and prune on what real stores left, and beside one that writes."""

import ctypes
import json
import os
import pty
import random
import subprocess
import sys
import termios
import threading
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import hicache_kit as kit
import pytest
from hicache_kit import PoolName
from test_block_files import OWNER, stored

import ucm
from ucm.integration.sglang.hicache import _report

HOUR = 3600
TREE = str(Path(ucm.__file__).parents[1])


def by_pool(entries):
    return {entry["pool"]: entry for entry in entries}


def write_at(paths, ages):
    """Give files these ages, in seconds."""
    now = time.time()
    for path, age in zip(paths, ages, strict=True):
        os.utime(path, (now - age, now - age))


def leave(path, age=0.0):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * 100)
    write_at([path], [age])
    return path


def temporary(site, age):
    name = f"{random.randbytes(16).hex()}.1.{OWNER}"
    return leave(site.backends[0] / ".tmp" / name, age)


def blocks_of(site, pool):
    """Files of a pool's blocks; "kv" has none of the others' folders."""
    if pool == "kv":
        return [path for path in site.files() if "sglang_v2" not in path.parts]
    return [path for path in site.files() if f"/{pool}_" in str(path)]


def test_inspect_counts_what_is_there(site, tool):
    stored(site, backends=2)
    blocks = blocks_of(site, "swa")
    write_at(blocks, [HOUR * (i + 1) for i in range(8)])
    blocks[0].write_bytes(b"short")
    write_at(blocks[:1], [HOUR])
    temporary(site, 0)
    temporary(site, 2 * HOUR)
    leave(site.backends[0] / "notes.txt")
    code, found = tool("inspect", *site.backends, "--json")
    assert code == 0
    swa = [entry for entry in found if entry["pool"] == "swa"]
    assert sum(entry["pages"] for entry in swa) == 8
    assert sum(entry["bytes"] for entry in swa) == 7 * 256 + 5
    assert sum(entry["wrong_size"] for entry in swa) == 1
    now = time.time()
    assert min(entry["oldest"] for entry in swa) == pytest.approx(now - 8 * HOUR, abs=5)
    assert max(entry["newest"] for entry in swa) == pytest.approx(now - HOUR, abs=5)
    kv = found[0]
    assert (kv["pool"], kv["path"]) == ("kv", str(site.backends[0]))
    assert (kv["temporaries"], kv["left_over"], kv["left_over_bytes"]) == (2, 1, 100)
    assert kv["unknown_paths"] == [str(site.backends[0] / "notes.txt")]
    assert kv["models"] == ["org/model"] and kv["wrong_size"] == 0


def test_inspect_tells_deployments_and_pools_apart(site, tool):
    stored(site, namespace="fp8")
    stored(site)
    root = str(site.backends[0])
    _, found = tool("inspect", root, "--json")
    spaces = [(entry["namespace"], entry["pool"], entry["pages"]) for entry in found]
    assert sorted(spaces) == [
        (space, pool, 8) for space in ("", "fp8") for pool in ("kv", "mamba", "swa")
    ]
    _, found = tool("inspect", root, "--pool", "mamba", "--json")
    assert [entry["pool"] for entry in found] == ["mamba", "mamba"]
    code, text = tool("inspect", root)
    assert code == 0 and text.splitlines()[0].split()[:3] == ["pool", "pages", "bytes"]
    assert len(text.splitlines()) == 1 + 6 + 1
    assert text.endswith("model org/model: kv, mamba, swa\n")


def test_inspect_of_nothing(site, tool):
    code, text = tool("inspect", site.root / "gone")
    assert code == 2 and "gone" in text
    (site.backends[0] / ".tmp").mkdir()
    code, found = tool("inspect", site.backends[0], "--json")
    assert code == 0 and [entry["pages"] for entry in found] == [0]


CAPABILITIES = 0x20080522  # the version of capget(2)'s data: three words, twice
MODES_DO_NOT_COUNT = 0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextmanager
def closed(folder):
    """A folder that this process cannot read, be it root's or not."""
    libc = ctypes.CDLL(None, use_errno=True)
    who, has = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(who, has) == 0
    effective = has[0]
    folder.chmod(0)
    try:
        has[0] = effective & ~MODES_DO_NOT_COUNT
        assert libc.capset(who, has) == 0
        yield
    finally:
        has[0] = effective
        assert libc.capset(who, has) == 0
        folder.chmod(0o755)


UNREAD = [
    ["inspect"],
    ["inspect", "--pool", "swa"],
    ["verify"],
    ["prune", "--older-than", "1m"],
    ["layout"],
]


@pytest.mark.parametrize("command", UNREAD, ids=" ".join)
@pytest.mark.parametrize("where", ["ns-shut", "ns-shut/sglang_v2"])
def test_a_namespace_that_cannot_be_read(site, tool, command, where):
    """It is named, the others are served, and the exit code tells."""
    aged(site)
    stored(site, namespace="shut")
    root = site.backends[0]
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755)
    _, whole = tool(*command, root)
    with closed(root / where):
        code, text = tool(*command, root)
    assert code == 1, text
    assert f"not read: {root / where}" in text and "Permission denied" in text
    told = [line for line in text.splitlines() if "not read:" not in line]
    swa = {line for line in whole.splitlines() if "shut" not in line and "swa" in line}
    assert swa == {line for line in told if "swa" in line and "shut" not in line}


def test_names_that_are_no_text(site, tool):
    """A planted name is shown, and neither stops the command nor commands the terminal."""
    stored(site)
    for name in (b"\xff", b"\x1b[2J", b"a\nb"):
        with open(os.path.join(os.fsencode(site.backends[0]), name), "w"):
            pass
    code, text = tool("inspect", site.backends[0])
    assert code == 0
    for name in ("\\udcff", "\\x1b[2J", "a\\nb"):
        assert f"unknown: {site.backends[0]}/{name}\n" in text


COMMANDS = [
    ["inspect"],
    ["verify"],
    ["prune", "--delete", "--older-than", "1m"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_slip_is_no_empty_cache(site, tool, command):
    aged(site)
    empty = site.root / "empty"
    empty.mkdir()
    before = site.everything()
    for slip, words in (
        (["--pool", "swb"], "no pool 'swb' here; there are: 'kv', 'mamba', 'swa'"),
        (["--namespace", "fp8"], "no namespace 'fp8' here; there are: ''"),
        ([empty], f"{empty} holds no store"),
    ):
        code, text = tool(*command, site.backends[0], *slip)
        assert code == 2 and words in text
    assert site.everything() == before


def overlaps(site):
    """Lists of roots that all lead to the same folders."""
    root = site.backends[0]
    link = site.root / "link"
    link.symlink_to(root)
    (swa,) = (root / "ns-fp8" / "sglang_v2").glob("swa_*")
    spaces, inside = root / "ns-fp8", [swa, root]
    return [root, f"{root}/"], [root, link], [root, spaces], [spaces, root], inside


def test_roots_that_overlap_count_once(site, tool):
    stored(site, namespace="fp8")
    stored(site)
    os.truncate(blocks_of(site, "swa")[0], 1)
    once = counts(tool("inspect", site.backends[0], "--json")[1])
    for roots in overlaps(site):
        _, found = tool("inspect", *roots, "--json")
        assert counts(found) == once, roots
        _, found = tool("layout", *roots, "--json")
        pools = [p for model in found for p in model["hicache_object_layout"]["pools"]]
        assert len(found) == 2 and len(pools) == 6, roots
        assert all(len(pool["folders"]) == 1 for pool in pools), roots
        assert tool("verify", *roots, "--json")[1]["count"] == 1, roots


def counts(found):
    """What inspect tells, wherever it found it."""
    return sorted(
        (entry["namespace"], entry["pool"], entry["pages"]) for entry in found
    )


def test_prune_of_roots_that_overlap(site, tool):
    """Counted twice, half of what may stay would go."""
    _, pools = aged(site, namespace="fp8")
    limit = str(sum(os.path.getsize(paths[0]) * 4 for paths in pools.values()))
    root = site.backends[0]
    _, found = tool(
        "prune", root, root / "ns-fp8", "--to-bytes", limit, "--delete", "--json"
    )
    assert sum(entry["deleted"] for entry in found) == 12
    assert len(site.files()) == 12


def test_one_namespace(site, tool):
    stored(site, namespace="fp8")
    stored(site)
    root = site.backends[0]
    for name in ("", "fp8"):
        _, found = tool("inspect", root, "--namespace", name, "--json")
        assert {entry["namespace"] for entry in found} == {name} and len(found) == 3
    limit = ["--to-bytes", "0", "--delete"]
    assert tool("prune", root, "--namespace", "", *limit)[0] == 0
    assert len(site.files()) == 24
    assert all("ns-fp8" in path.parts for path in site.files())
    os.truncate(site.files()[0], 1)
    assert tool("verify", root, "--namespace", "")[0] == 0
    assert tool("verify", root, "--namespace", "fp8")[0] == 1


def test_inspect_needs_little_memory(site):
    """Ten times the files, the same peak: nothing is kept of a file."""
    from ucm.integration.sglang.hicache.__main__ import main

    peaks = []
    for count in (1000, 10000):
        for _ in range(count):
            name = random.randbytes(16).hex()
            path = site.backends[0] / name[:2]
            path.mkdir(exist_ok=True)
            (path / name).touch()
        tracemalloc.start()
        assert main(["inspect", str(site.backends[0]), "--json"]) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 200_000, peaks


def test_verify(site, tool):
    """Whole blocks pass; a truncated one and a damaged marker are named."""
    stored(site)
    leave(site.backends[0] / "notes.txt")
    for more in ([], ["--read"]):
        code, found = tool("verify", site.backends[0], "--json", *more)
        assert (code, found) == (0, {"count": 0, "faults": []})
    victims = {pool: blocks_of(site, pool)[0] for pool in ("kv", "swa", "mamba")}
    for path in victims.values():
        os.truncate(path, os.path.getsize(path) - 1)
    code, found = tool("verify", site.backends[0], "--json")
    assert code == 1 and found["count"] == 3
    assert {fault["path"] for fault in found["faults"]} == set(
        map(str, victims.values())
    )
    code, found = tool("verify", site.backends[0], "--pool", "swa", "--json")
    assert code == 1 and found["faults"] == [
        {
            "path": str(victims["swa"]),
            "fault": "has 255 bytes, a whole block 256",
        }
    ]
    code, text = tool("verify", site.backends[0], "--limit", "1")
    assert code == 1 and len(text.splitlines()) == 2 and text.endswith("3 faults\n")


def test_verify_of_markers(site, tool):
    stored(site)
    (swa,) = (site.backends[0] / "sglang_v2").glob("swa_*")
    (marker,) = (swa / ".layout").iterdir()
    content = json.loads(marker.read_text())
    marker.write_text(json.dumps({**content, "component_sizes": [128]}))
    code, found = tool("verify", site.backends[0], "--json")
    assert code == 1 and "128" in found["faults"][0]["fault"]
    marker.write_text("")
    code, found = tool("verify", site.backends[0], "--json")
    assert code == 1 and found["faults"][0]["path"] == str(marker)


def test_verify_without_markers(site, tool):
    """What an older UCM wrote has none: sizes cannot be judged, but nothing is nothing."""
    stored(site)
    (marker,) = (site.backends[0] / ".layout").iterdir()
    marker.unlink()
    block = blocks_of(site, "kv")[0]
    block.write_bytes(b"x")
    assert tool("verify", site.backends[0])[0] == 0
    block.write_bytes(b"")
    assert tool("verify", site.backends[0])[0] == 1


def aged(site, **kw):
    """A deployment whose pages are 1 to 8 hours old in each pool; by pool, oldest last."""
    store = stored(site, **kw)
    pools = {pool: blocks_of(site, pool) for pool in ("kv", "swa", "mamba")}
    for paths in pools.values():
        write_at(paths, [HOUR * (i + 1) for i in range(8)])
    return store, pools


def test_prune_is_dry_unless_told(site, tool):
    aged(site)
    temporary(site, 2 * HOUR)
    before = site.everything()
    code, found = tool("prune", site.backends[0], "--older-than", "150m", "--json")
    assert code == 0 and site.everything() == before
    for entry in found:
        assert (entry["pages"], entry["deleted"]) == (8, 6)
    code, text = tool("prune", site.backends[0], "--to-bytes", "0")
    assert code == 0 and "--delete" in text and site.everything() == before
    for limit in ([], ["--older-than", "1d", "--to-bytes", "1G"]):
        assert tool("prune", site.backends[0], *limit)[0] == 2
    for bad in (["--older-than", "7"], ["--to-bytes", "all"], ["--to-bytes", "-1"]):
        assert tool("prune", site.backends[0], *bad)[0] == 2


def test_prune_by_age(site, tool):
    """Old blocks and old temporaries go; markers, fresh temporaries and others' files stay."""
    _, pools = aged(site)
    fresh, old = temporary(site, 0), temporary(site, 2 * HOUR)
    stranger = leave(site.backends[0] / "notes.txt", 90 * 24 * HOUR)
    markers = [path for path in site.everything() if ".layout" in path.parts]
    write_at(markers, [90 * 24 * HOUR] * len(markers))
    code, found = tool(
        "prune", site.backends[0], "--older-than", "150m", "--delete", "--json"
    )
    assert code == 0
    kept = [path for paths in pools.values() for path in paths[:2]]
    assert site.files() == sorted([*kept, fresh, stranger])
    assert not old.exists() and all(path.exists() for path in markers)
    assert {pool: e["deleted"] for pool, e in by_pool(found).items()} == {
        "kv": 6,
        "swa": 6,
        "mamba": 6,
    }
    assert by_pool(found)["kv"]["temporaries"] == 1


def test_prune_of_one_pool(site, tool):
    _, pools = aged(site)
    tool("prune", site.backends[0], "--pool", "swa", "--older-than", "1m", "--delete")
    assert site.files() == sorted(pools["kv"] + pools["mamba"])


@pytest.mark.parametrize("keep", [0, 1, 3 * 256, 3 * 256 + 255, 8 * 256, 10**9])
def test_prune_to_bytes_keeps_the_newest(site, tool, keep):
    """Pages of 256 bytes, one an hour: as many of the newest stay as fit."""
    _, pools = aged(site)
    tool(
        "prune", site.backends[0], "--pool", "swa", "--to-bytes", str(keep), "--delete"
    )
    assert blocks_of(site, "swa") == sorted(pools["swa"][: keep // 256])
    assert len(blocks_of(site, "kv")) == 8


def test_prune_of_one_second(site, tool):
    """Blocks that were written in the same second: no more of them go than must."""
    _, pools = aged(site)
    write_at(pools["swa"], [HOUR] * 8)
    limit = ["--to-bytes", str(5 * 256)]
    tool("prune", site.backends[0], "--pool", "swa", *limit, "--delete")
    assert len(blocks_of(site, "swa")) == 5


def test_prune_over_all_backends_and_pools(site, tool):
    """One budget for all that is chosen; the oldest go wherever they are."""
    _, pools = aged(site, backends=2)
    size = {pool: os.path.getsize(paths[0]) for pool, paths in pools.items()}
    limit = str(sum(size.values()) * 4)
    tool("prune", *site.backends, "--to-bytes", limit, "--delete")
    newest = [path for paths in pools.values() for path in paths[:4]]
    assert site.files() == sorted(newest)


def test_prune_beside_a_server(site, tool):
    """What goes is a miss to the server, what stays a hit, and it stores again at once."""
    store, pools = aged(site)
    names, swa = kit.keys(8), kit.mha(layers=1)
    data = kit.fill(swa, range(8))
    store.register_mem_host_pool_v2(swa, PoolName.SWA)
    tool("prune", site.backends[0], "--older-than", "150m", "--delete")
    held = store.connector.pools.get("swa").presence(names)
    assert held.sum() == 2 == len(blocks_of(site, "swa"))
    kit.put(store, PoolName.SWA, swa, names, range(8))
    assert store.connector.pools.get("swa").presence(names).all()
    gone = [i for i in range(8) if not held[i]]
    kit.poison(swa, gone)
    chosen = [names[i] for i in gone]
    transfer = kit.transfer(PoolName.SWA, swa, chosen, gone)
    assert store.batch_get_v2([transfer]) == {PoolName.SWA: [True] * 6}
    assert (kit.contents(swa, gone) == data[gone]).all()


def test_prune_while_a_server_writes(site, tool):
    """Each page that the server stored, and prune had no reason to take, is there."""
    swa = kit.mha(layers=1)
    store = site.attach(kit.logical(), {PoolName.SWA: swa})
    names = [kit.keys(8, f"round{i}") for i in range(40)]

    def write():
        for batch in names:
            kit.put(store, PoolName.SWA, swa, batch, range(8))

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        code, _ = tool("prune", site.backends[0], "--older-than", "1m", "--delete")
        assert code == 0
    writer.join()
    for batch in names:
        assert store.connector.pools.get("swa").presence(batch).all()


def test_prune_tells_what_it_cannot_delete(site, tool, monkeypatch):
    """An error of the system is injected: these tests may run as root."""
    _, pools = aged(site)
    unlink = os.unlink

    def refuse(path, **kw):
        if str(path) == str(pools["swa"][7]):
            raise PermissionError(13, "Permission denied", path)
        unlink(path, **kw)

    monkeypatch.setattr(os, "unlink", refuse)
    code, found = tool(
        "prune", site.backends[0], "--older-than", "1m", "--delete", "--json"
    )
    assert code == 1 and by_pool(found)["swa"]["deleted"] == 7
    assert by_pool(found)["swa"]["errors"] == [f"{pools['swa'][7]}: Permission denied"]
    assert site.files() == [pools["swa"][7]]


def test_prune_goes_on_past_a_folder_that_it_cannot_read(site, tool, monkeypatch):
    """Injected for the same reason, at the system's call."""
    _, pools = aged(site)
    shut = {str(path.parent) for path in pools["swa"][:3]}
    stuck = [path for path in pools["swa"] if str(path.parent) in shut]
    scandir = os.scandir

    def refuse(path):
        if str(path) in shut:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    for limit in (["--older-than", "1m"], ["--to-bytes", "0"]):
        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", refuse)
            code, found = tool("prune", site.backends[0], *limit, "--delete", "--json")
        swa = by_pool(found)["swa"]
        assert code == 1 and swa["failed"] == len(shut) == len(swa["errors"])
        assert f"{min(shut)}: Permission denied" in swa["errors"]
        assert site.files() == sorted(stuck)
    deleted = {pool: entry["deleted"] for pool, entry in by_pool(found).items()}
    assert deleted == {"kv": 0, "swa": 0, "mamba": 0}


def test_prune_names_only_the_first_failures(site, tool, monkeypatch):
    root = site.backends[0] / "00"
    root.mkdir()
    paths = [leave(root / f"00{random.randbytes(15).hex()}", HOUR) for _ in range(30)]

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    command = ["prune", site.backends[0], "--older-than", "1m", "--delete"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        code, found = tool(*command, "--json")
        counted = found[0]["failed"], len(found[0]["errors"])
        assert code == 1 and counted == (len(paths), 20)
        code, text = tool(*command)
    assert code == 1 and f"not deleted: 10 more in {site.backends[0]}" in text


def run_command(*args, **kw):
    command = [sys.executable, "-m", "ucm.integration.sglang.hicache", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": TREE}
    return subprocess.run(command, env=env, text=True, **kw)


def test_a_bar_on_a_terminal_only(site):
    stored(site)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 80))
    done = run_command(
        "inspect", site.backends[0], stdout=subprocess.PIPE, stderr=theirs
    )
    os.set_blocking(ours, False)
    assert done.returncode == 0 and b" files" in os.read(ours, 65536)
    os.close(theirs)
    os.close(ours)
    done = run_command("inspect", site.backends[0], capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_needs_neither_torch_nor_sglang(site):
    """A storage node has neither."""
    stored(site)
    code = (
        "import sys; from ucm.integration.sglang.hicache.__main__ import main\n"
        f"assert main(['inspect', {str(site.backends[0])!r}]) == 0\n"
        "assert not {'torch', 'sglang', 'numpy'} & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": TREE}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd=site.root,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (site.root / "log").exists()


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1 << 40, "1 TiB"),
        (11038464, "10.5 MiB"),
        (123 << 30, "123 GiB"),
    ],
)
def test_sizes_as_text(count, text):
    assert _report.size_text(count) == text


def test_sizes_and_ages_from_text():
    sizes = {"4096": 4096, "500G": 500 << 30, "1.5TiB": 3 << 39, "2kb": 2048, "7B": 7}
    assert {text: _report.parse_size(text) for text in sizes} == sizes
    ages = {"90s": 90, "30m": 1800, "1.5h": 5400, "7d": 604800, "2w": 1209600}
    assert {text: _report.parse_age(text) for text in ages} == ages
