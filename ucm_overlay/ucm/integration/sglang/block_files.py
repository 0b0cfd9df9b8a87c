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
"""What lies in a storage backend: blocks, temporaries, format markers, and what is not ours.

    <backend>/                        the primary store's folder; ns-<name>/ is one like it
      <hex digits>/ or data/          blocks, named by 32 hex digits
      .tmp/                           unfinished blocks that need a name
      .layout/                        format markers
      sglang_v2/<pool>_<size>x<n>/    a sidecar store's folder, laid out in the same way

One pass, no name is kept, no symbolic link is followed. Other processes may write and delete
meanwhile: what has gone when it is looked at is left out.
"""

import operator
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import Enum

from ucm.integration.sglang import format_marker
from ucm.integration.sglang.format_marker import MARKER_FOLDER, PageFormat
from ucm.integration.sglang.hicache_config import (
    DEPLOYMENT_PREFIX,
    SIDECAR_FOLDER,
    parse_sidecar_folder,
)

PRIMARY_POOL = "kv"
# PosixStore's: the folder of unfinished blocks, and the age at which any of them is left over.
TEMPORARY_FOLDER = ".tmp"
TEMPORARY_AGE_S = 3600
_UNSHARDED_FOLDER = "data"
_SHARD_FOLDER = re.compile(r"[0-9a-f]{1,5}")
_BLOCK = re.compile(r"[0-9a-f]{32}")
_COLLECTOR_LOCK = re.compile(r"\.gc-\d+\.lock")
Failed = Callable[[OSError], None] | None


class Kind(str, Enum):
    """A file under its final name, one being written or left over, a marker, anything else."""

    BLOCK = "block"
    TEMPORARY = "temporary"
    MARKER = "marker"
    UNKNOWN = "unknown"


# The files of the store's two other folders, by name; the rest there is UNKNOWN.
_NAMES = {
    TEMPORARY_FOLDER: [(re.compile(r"[0-9a-f]{32}\..+"), Kind.TEMPORARY)],
    MARKER_FOLDER: [
        (re.compile(r"[0-9a-f]{32}\.json"), Kind.MARKER),
        (re.compile(r"[0-9a-f]{32}\.json\.[0-9a-f]{32}\.tmp"), Kind.TEMPORARY),
    ],
}


@dataclass(frozen=True)
class Marker:
    """One format marker. keys: the suffix that its blocks' key texts end in."""

    path: str
    keys: str
    format: PageFormat


@dataclass(frozen=True)
class StoreFolder:
    """One store's folder below a storage backend.

    deployment: the option namespace, "" for none. page_bytes: 0 where the folder's name does
    not tell, as the primary store's.
    """

    path: str
    pool: str
    deployment: str = ""
    page_bytes: int = 0

    def files(self, failed: Failed = None) -> Iterator[tuple[Kind, os.DirEntry[str]]]:
        """Every file with what it is; a folder that is not the store's is one UNKNOWN entry.

        failed: told of each folder that cannot be read, instead of an OSError that ends all.
        """
        for entry in _entries(self.path, failed):
            if not entry.is_dir(follow_symlinks=False):
                if not _COLLECTOR_LOCK.fullmatch(entry.name):
                    yield Kind.UNKNOWN, entry
            elif entry.name in _NAMES:
                yield from _named(self.path, entry.name, failed)
            elif is_shard_folder(entry.name):
                yield from _blocks(entry, failed)
            elif self.pool == PRIMARY_POOL and entry.name == SIDECAR_FOLDER:
                strangers = _strangers(entry.path, failed)
                yield from ((Kind.UNKNOWN, e) for e in strangers)
            elif not self._holds_deployment(entry.name):
                yield Kind.UNKNOWN, entry

    def markers(self, failed: Failed = None) -> tuple[list[Marker], list[str]]:
        """The readable markers, and the paths of the others."""
        readable, unreadable = [], []
        for kind, entry in _named(self.path, MARKER_FOLDER, failed):
            if kind is not Kind.MARKER:
                continue
            try:
                readable.append(_read_marker(entry.path))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError, KeyError):
                unreadable.append(entry.path)
        return readable, unreadable

    def block_sizes(self, failed: Failed = None) -> frozenset[int]:
        """Bytes that whole blocks have here; empty where nothing tells."""
        if self.page_bytes:
            return frozenset([self.page_bytes])
        markers, _ = self.markers(failed)
        return frozenset(sum(marker.format.component_sizes) for marker in markers)

    def holds_store(self, failed: Failed = None) -> bool:
        """Whether a store was ever opened here."""
        return self.page_bytes > 0 or any(
            entry.is_dir(follow_symlinks=False)
            and (entry.name in _NAMES or is_shard_folder(entry.name))
            for entry in _entries(self.path, failed)
        )

    def _holds_deployment(self, name: str) -> bool:
        at_top = self.pool == PRIMARY_POOL and not self.deployment
        return at_top and name.startswith(DEPLOYMENT_PREFIX)


def store_folders(backend: str, failed: Failed = None) -> Iterator[StoreFolder]:
    """Every store's folder below one storage backend; OSError where that cannot be read.

    failed: told of each folder below it that cannot be read, as in StoreFolder.files().
    """
    with os.scandir(backend) as entries:
        deployments = sorted(
            entry.name
            for entry in entries
            if entry.name.startswith(DEPLOYMENT_PREFIX)
            and entry.is_dir(follow_symlinks=False)
        )
    yield from _deployment(backend, "", failed)
    for name in deployments:
        path = os.path.join(backend, name)
        yield from _deployment(path, name.removeprefix(DEPLOYMENT_PREFIX), failed)


def block_path(block: bytes, shard_digits: int) -> str:
    """The path of a block below its store's folder, as PosixStore makes it."""
    name = block.hex()
    return os.path.join(name[:shard_digits] or _UNSHARDED_FOLDER, name)


def is_shard_folder(name: str) -> bool:
    return name == _UNSHARDED_FOLDER or bool(_SHARD_FOLDER.fullmatch(name))


def stat(entry: os.DirEntry[str], failed: Failed = None) -> os.stat_result | None:
    """Of the file itself; None when it has gone, or cannot be looked at."""
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as e:
        if failed is None:
            raise
        failed(e)
        return None


def is_left_over(found: os.stat_result) -> bool:
    """Whether no writer can be waiting for a temporary of this age."""
    return time.time() - found.st_mtime > TEMPORARY_AGE_S


def _deployment(folder: str, name: str, failed: Failed) -> Iterator[StoreFolder]:
    yield StoreFolder(folder, PRIMARY_POOL, name)
    sidecars = os.path.join(folder, SIDECAR_FOLDER)
    for entry in sorted(_entries(sidecars, failed), key=lambda entry: entry.name):
        if _is_sidecar(entry):
            pool, size, count = parse_sidecar_folder(entry.name)
            yield StoreFolder(entry.path, pool, name, size * count)


def _is_sidecar(entry: os.DirEntry[str]) -> bool:
    named = parse_sidecar_folder(entry.name) is not None
    return named and entry.is_dir(follow_symlinks=False)


def _strangers(sidecars: str, failed: Failed) -> Iterator[os.DirEntry[str]]:
    return (
        entry
        for entry in _entries(sidecars, failed)
        if not _is_sidecar(entry) and not _COLLECTOR_LOCK.fullmatch(entry.name)
    )


def _entries(folder: str, failed: Failed = None) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except FileNotFoundError:
        pass
    except OSError as e:
        if failed is None:
            raise
        failed(e)


def _named(
    store: str, folder: str, failed: Failed = None
) -> Iterator[tuple[Kind, os.DirEntry[str]]]:
    path = os.path.join(store, folder)
    if os.path.islink(path):
        return
    for entry in _entries(path, failed):
        kind = Kind.UNKNOWN
        if entry.is_file(follow_symlinks=False):
            kinds = (
                kind for name, kind in _NAMES[folder] if name.fullmatch(entry.name)
            )
            kind = next(kinds, Kind.UNKNOWN)
        yield kind, entry


def _blocks(
    folder: os.DirEntry[str], failed: Failed
) -> Iterator[tuple[Kind, os.DirEntry[str]]]:
    """Blocks that the store would look for in this folder; a UCM without .tmp/ wrote beside."""
    prefix = "" if folder.name == _UNSHARDED_FOLDER else folder.name
    for entry in _entries(folder.path, failed):
        stem, dot, rest = entry.name.partition(".")
        known = _BLOCK.fullmatch(stem) and stem.startswith(prefix)
        if not known or not entry.is_file(follow_symlinks=False):
            yield Kind.UNKNOWN, entry
        elif not dot:
            yield Kind.BLOCK, entry
        else:
            yield (Kind.TEMPORARY if rest == "tmp" else Kind.UNKNOWN), entry


def _read_marker(path: str) -> Marker:
    content = format_marker.read(path)
    known = {field.name for field in fields(PageFormat)}
    values = {key: value for key, value in content.items() if key in known}
    values["component_sizes"] = tuple(map(operator.index, values["component_sizes"]))
    values["model"] = str(values["model"])
    return Marker(path, str(content["keys"]), PageFormat(**values))
