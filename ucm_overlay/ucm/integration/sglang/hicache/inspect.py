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
"""Show what every pool keeps below a storage backend.

For each pool's folder: pages, bytes, when its oldest and newest page was written, blocks of a
size that neither the folder's name nor a format marker tells (cut off, or in the primary pool
of a model that was stored before there were markers), temporaries, and how many of those are
over an hour old, so that no writer waits for them. Then what is no store's.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from ucm.integration.sglang.block_files import (
    Failed,
    Kind,
    StoreFolder,
    is_left_over,
    stat,
)
from ucm.integration.sglang.hicache import _folders
from ucm.integration.sglang.hicache._report import (
    progress,
    show,
    size_text,
    table,
    time_text,
)

_NAMED = 20


@dataclass
class Usage:
    """What one store's folder holds. oldest, newest: seconds, 0 for no page."""

    path: str
    pool: str
    namespace: str
    models: list[str]
    pages: int = 0
    bytes: int = 0
    oldest: float = 0
    newest: float = 0
    wrong_size: int = 0
    temporaries: int = 0
    left_over: int = 0
    left_over_bytes: int = 0
    unknown: int = 0
    unknown_paths: list[str] = field(default_factory=list)

    def add(
        self,
        kind: Kind,
        entry: os.DirEntry[str],
        sizes: frozenset[int],
        failed: Failed,
    ) -> None:
        if kind is Kind.UNKNOWN:
            self.unknown += 1
            if len(self.unknown_paths) < _NAMED:
                self.unknown_paths.append(entry.path)
            return
        found = stat(entry, failed)
        if found is None or kind is Kind.MARKER:
            return
        if kind is Kind.TEMPORARY:
            self._add_temporary(found)
        else:
            self._add_block(found, sizes)

    def _add_block(self, found: os.stat_result, sizes: frozenset[int]) -> None:
        self.pages += 1
        self.bytes += found.st_size
        self.oldest = min(self.oldest or found.st_mtime, found.st_mtime)
        self.newest = max(self.newest, found.st_mtime)
        self.wrong_size += found.st_size not in (sizes or [found.st_size])

    def _add_temporary(self, found: os.stat_result) -> None:
        self.temporaries += 1
        if is_left_over(found):
            self.left_over += 1
            self.left_over_bytes += found.st_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _folders.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """1 when something could not be read."""
    unread = _folders.Unread()
    usages = [_usage(folder, unread) for folder in _folders.chosen(args, unread)]
    show(args, [asdict(usage) for usage in usages], _lines(usages))
    return 1 if unread.paths else 0


def _usage(folder: StoreFolder, failed: Failed) -> Usage:
    markers, _ = folder.markers(failed)
    models = sorted({marker.format.model for marker in markers})
    usage = Usage(folder.path, folder.pool, folder.deployment, models)
    sizes = folder.block_sizes(failed)
    for kind, entry in progress(folder.files(failed), folder.pool):
        usage.add(kind, entry, sizes, failed)
    return usage


def _lines(usages: list[Usage]) -> Iterator[str]:
    header = ("pool", "pages", "bytes", "oldest", "newest", "wrong size")
    header += ("temporaries", "left over", "unknown", "folder")
    yield from table(header, [_row(usage) for usage in usages])
    for model in sorted({model for usage in usages for model in usage.models}):
        pools = {usage.pool: None for usage in usages if model in usage.models}
        yield f"model {model}: {', '.join(pools)}"
    for usage in usages:
        yield from (f"unknown: {path}" for path in usage.unknown_paths)
        if usage.unknown > _NAMED:
            yield f"unknown: {usage.unknown - _NAMED:,} more in {usage.path}"


def _row(usage: Usage) -> tuple[object, ...]:
    times = [time_text(t) if usage.pages else "-" for t in (usage.oldest, usage.newest)]
    counts = (usage.wrong_size, usage.temporaries, usage.left_over, usage.unknown)
    return (
        usage.pool,
        usage.pages,
        size_text(usage.bytes),
        *times,
        *counts,
        usage.path,
    )
