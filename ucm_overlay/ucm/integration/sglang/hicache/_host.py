#
# MIT License
#
# Copyright (c) 2026 the UCM HiCache v2 contributors
#
#
# Permission is hereby granted, free of charge, to any person obtaining a copy
# of this software and associated documentation files (the "Software"), to deal
# in the Software without restriction, including without limitation the rights
# to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
# copies of the Software, and to permit persons to whom the Software is
# furnished to do so, subject to the following conditions:
#
# The above copyright notice and this permission notice shall be included in all
# copies or substantial portions of the Software.
#
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
# IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
# FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
# AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
# LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
# OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
# SOFTWARE.
#
"""What this machine gives to the stores: file systems, space, threads, descriptors."""

import contextlib
import mmap
import os
import resource
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ucm.integration.sglang.block_files import StoreFolder, store_folders
from ucm.integration.sglang.hicache._finding import ERROR, NOTE, WARNING, Finding
from ucm.integration.sglang.hicache._report import size_text
from ucm.integration.sglang.hicache._server import ServerArgs
from ucm.integration.sglang.hicache_config import (
    ANCHOR_DEFAULTS,
    SIDECAR_CAPACITY,
    SIDECAR_DEFAULTS,
    SIDECAR_FOLDER,
    HicacheConfig,
    wants_direct_io,
)
from ucm.integration.sglang.hicache_options import STORE, find

DIRECT_UNIT = 4096
# Of a size that any I/O can serve.
PAGE = SimpleNamespace(
    component_size=4096, component_count=1, page_bytes=4096, aligned=True
)
_SHARDS = "data_dir_shard_bytes"
_LEAST_FREE = 0.05
# DeepSeek V4 has six, a draft model up to three more.
_MOST_POOLS = 9
_SERVER_DESCRIPTORS = 1024
_LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs"}
_PASSING = {"tmpfs", "ramfs", "overlay"}


def file_system(path: str) -> str:
    """Its name, as in /proc/mounts; "" where the kernel does not tell."""
    path, best, kind = os.path.realpath(path), "", ""
    with contextlib.suppress(OSError), open("/proc/self/mountinfo") as f:
        for line in f:
            fields = line.split()
            point = fields[4].encode().decode("unicode_escape")
            if os.path.commonpath([path, point]) == point and len(point) >= len(best):
                best, kind = point, fields[fields.index("-") + 1]
    return kind


def check_folders(config: HicacheConfig, server: ServerArgs) -> Iterator[Finding]:
    for backend in config.backends:
        folder = _existing(backend)
        kind = file_system(folder)
        if os.access(folder, os.W_OK | os.X_OK):
            yield from _check_direct(
                folder, kind, bool(config.options.get("io_direct"))
            )
        yield from _check_rights(backend, folder, config)
        yield from _check_space(folder, kind)
        yield from _check_sharing(folder, kind, server)
    if wants_direct_io(config.options):
        yield from _check_alignment(config.backends)


def _check_rights(
    backend: str, folder: str, config: HicacheConfig
) -> Iterator[Finding]:
    """The server starts in what is there, and ends where it has to make a folder."""
    sidecars = os.path.join(backend, SIDECAR_FOLDER)
    there = (path for path in (folder, sidecars) if os.path.isdir(path))
    shut = [path for path in there if not os.access(path, os.W_OK | os.X_OK)]
    if not shut:
        return
    missing = _needed(backend, config) if folder in shut else []
    missing = [path for path in missing if not os.path.isdir(path)]
    if sidecars in shut and not any(f.page_bytes for f in _stores(backend)):
        missing.append(os.path.join(sidecars, "<pool>"))
    text, fix = f"{shut[0]} takes no files of this user: ", f"chown or chmod {shut[0]}"
    if missing:
        text += f"a server that has to make {missing[0]} does not start"
        yield Finding(ERROR, text, fix)
    else:
        yield Finding(WARNING, text + "it gives hits, and stores nothing", fix)


def _stores(backend: str) -> Iterator[StoreFolder]:
    """Those that this user can read: other deployments' are no matter."""
    return store_folders(backend, _skip)


def _skip(_: OSError) -> None:
    pass


def _needed(backend: str, config: HicacheConfig) -> list[str]:
    """The folders that must be there, or be made at the start."""
    options = config.anchor_store(PAGE)
    needed = [backend, os.path.join(backend, SIDECAR_FOLDER)]
    digits = options.get(_SHARDS, find(STORE, _SHARDS).default)
    if options["data_dir_on_demand"] or digits not in range(6):
        return needed
    shards = [f"{n:0{digits}x}" for n in range(16**digits)] if digits else ["data"]
    return needed + [os.path.join(backend, shard) for shard in shards]


def _existing(path: str) -> str:
    """The folder itself, or the one in which it will be made."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _check_direct(folder: str, kind: str, wanted: bool) -> Iterator[Finding]:
    fault = direct_fault(folder)
    if fault and wanted:
        text = f"io_direct is set, and {folder} ({kind}) refuses it: {fault}"
        yield Finding(ERROR, text, '"io_direct": false, or another file system')
    else:
        works = f"refused ({fault})" if fault else "possible"
        yield Finding(NOTE, f"{folder}: O_DIRECT is {works}")


def direct_fault(folder: str) -> str:
    """Why a block cannot be written with O_DIRECT into this folder; "" if it can."""
    path = os.path.join(folder, f".doctor-{uuid.uuid4().hex}")
    page = mmap.mmap(-1, DIRECT_UNIT)  # at a page's border, as O_DIRECT wants it
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        try:
            written = os.write(file, page)
        finally:
            os.close(file)
        return "" if written == DIRECT_UNIT else "short write"
    except OSError as e:
        return os.strerror(e.errno)
    finally:
        page.close()
        with contextlib.suppress(OSError):
            os.unlink(path)


def _check_space(folder: str, kind: str) -> Iterator[Finding]:
    found = os.statvfs(folder)
    free, total = (n * found.f_frsize for n in (found.f_bavail, found.f_blocks))
    text = f"{size_text(free)} of {size_text(total)} free"
    yield Finding(NOTE, f"{folder}: {kind}, {text}")
    for what, free, total in (
        ("space", found.f_bavail, found.f_blocks),
        ("inodes", found.f_favail, found.f_files),
    ):
        if total and free / total < _LEAST_FREE:
            text = f"{folder} has {free / total:.0%} of its {what} left"
            yield Finding(WARNING, text, "make room: the command prune")


def _check_sharing(folder: str, kind: str, server: ServerArgs) -> Iterator[Finding]:
    if kind in _PASSING:
        text = f"{folder} is {kind}: it goes with this machine or container"
        yield Finding(WARNING, text, "mount a disk there to keep the cache")
    if server.tp_spans_nodes and kind in _LOCAL | _PASSING:
        yield Finding(
            WARNING,
            f"{folder} is a disk of this node ({kind}), and TP ranks are on "
            f"{server.nnodes} nodes: of MLA and DeepSeek V4 models one rank writes for all, "
            "the other nodes see nothing, and no prefix hits",
            "a file system that all nodes share, or TP inside a node",
        )


def _check_alignment(backends: list[str]) -> Iterator[Finding]:
    """Pools that are on disk already, so that their pages' sizes are known."""
    there = (_stores(backend) for backend in backends if os.path.isdir(backend))
    folders = [f for found in there for f in found if not f.deployment]
    sizes = [_component_sizes(folder) for folder in folders]
    if not any(sizes):
        text = "the pools' page sizes are unknown until the first start: one with pieces of no "
        text += f"multiple of {DIRECT_UNIT} bytes will use buffered psync"
        yield Finding(NOTE, text, "run this again after it")
    for folder, known in zip(folders, sizes, strict=True):
        odd = [size for size in known if size % DIRECT_UNIT]
        if odd:
            text = f"pool {folder.pool} has pieces of {odd[0]:,} bytes, no multiple of "
            text += f"{DIRECT_UNIT}: it uses buffered psync"
            yield Finding(NOTE, text)


def _component_sizes(folder: StoreFolder) -> set[int]:
    markers, _ = folder.markers(_skip)
    return {size for marker in markers for size in marker.format.component_sizes}


def check_capacity(config: HicacheConfig) -> Iterator[Finding]:
    """Capacities that are never reached, as the disk is full before."""
    disks = {}
    for folder in map(_existing, config.backends):
        found = os.statvfs(folder)
        disks[os.stat(folder).st_dev] = found.f_blocks * found.f_frsize
    total = sum(disks.values())
    for key in ("posix_capacity_gb", SIDECAR_CAPACITY):
        value = config.options.get(key)
        if isinstance(value, int) and value << 30 > total > 0:
            text = f"{key} is {value}, and all disks together have {size_text(total)}"
            yield Finding(WARNING, text, "what the disk can hold, in GiB")


def check_limits(config: HicacheConfig, server: ServerArgs) -> Iterator[Finding]:
    """Threads and descriptors that the options ask for, against what a process may have."""
    options, ranks = config.options, server.ranks_a_node
    aio = options.get("posix_io_engine") == "aio"
    lanes = ["data_trans", "lookup"] + (["open", "commit"] if aio else [])
    threads = max(_largest(options, f"posix_{lane}_concurrency") for lane in lanes)
    left = _threads_left()
    if ranks * threads > left:
        text = f"{ranks} ranks want up to {threads} I/O threads each, {left} are left"
        fix = "raise pids.max or ulimit -u, or lower posix_data_trans_concurrency"
        yield Finding(ERROR, text, fix)
    depth = 2 * _largest(options, "posix_aio_queue_depth") * _MOST_POOLS if aio else 0
    # SGLang raises the soft limit itself.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # A dump may have two, the file's and the one that keeps it while it has no name.
    wanted = 2 * threads + depth + depth // 2 + _SERVER_DESCRIPTORS
    if limit != resource.RLIM_INFINITY and wanted > limit:
        text = f"a rank may want {wanted} descriptors, its limit is {limit}"
        yield Finding(ERROR, text, "raise ulimit -Hn, or lower posix_aio_queue_depth")
    yield from _check_aio(depth * ranks)


def _largest(options: dict[str, Any], name: str) -> int:
    """Of what any pool of a process asks for: threads are shared."""
    default = find(STORE, name).default
    pools = ({**d, **options} for d in (ANCHOR_DEFAULTS, SIDECAR_DEFAULTS))
    values = [pool.get(name, default) for pool in pools]
    return max([value for value in values if isinstance(value, int)], default=0)


def _threads_left() -> float:
    """What RLIMIT_NPROC and the control group let this user's processes start."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    bound = soft != resource.RLIM_INFINITY and os.geteuid() != 0
    left = [float(soft) if bound else float("inf")]
    with contextlib.suppress(OSError, ValueError, IndexError):
        name = Path("/proc/self/cgroup").read_text().split("0::", 1)[1].strip()
        group = Path("/sys/fs/cgroup", name.lstrip("/"))
        current = int((group / "pids.current").read_text())
        left.append(int((group / "pids.max").read_text()) - current)
    return min(left)


def _check_aio(wanted: int) -> Iterator[Finding]:
    if not wanted:
        return
    with contextlib.suppress(OSError):
        most, taken = (
            int(Path("/proc/sys/fs", f"aio-{name}").read_text())
            for name in ("max-nr", "nr")
        )
        if wanted > most - taken:
            text = f"the ranks may want {wanted} aio requests, {most - taken} are left"
            yield Finding(WARNING, text, f"sysctl fs.aio-max-nr={taken + wanted}")
