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
"""Delete the blocks that were written longest ago; only shows what it would do unless --delete.

Safe beside a running server, to which a deleted block is a miss. Format markers, temporaries
of less than an hour and files that are no store's stay; older temporaries go too. It does not
know timeout_ms: where a server has more than an hour there, a page that it is writing can go.
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ucm.integration.sglang.block_files import (
    Failed,
    Kind,
    StoreFolder,
    is_left_over,
    stat,
)
from ucm.integration.sglang.hicache import _folders
from ucm.integration.sglang.hicache._report import (
    parse_age,
    parse_size,
    progress,
    show,
    size_text,
    table,
)

_NAMED = 20


@dataclass
class Cut:
    """Which blocks go: those written before a second, and of that second so many bytes."""

    second: float
    bytes: int = 0

    def takes(self, found: os.stat_result) -> bool:
        written = int(found.st_mtime)
        if written != self.second or self.bytes <= 0:
            return written < self.second
        self.bytes -= found.st_size
        return True


@dataclass
class Outcome:
    """Of one folder: what was there, what went, and why something could not go.

    errors: the first of the failed.
    """

    path: str
    pool: str
    pages: int = 0
    bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    temporaries: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)

    def fail(self, error: OSError) -> None:
        self.failed += 1
        if len(self.errors) < _NAMED:
            self.errors.append(f"{error.filename}: {error.strerror}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _folders.add_arguments(parser)
    limit = parser.add_mutually_exclusive_group(required=True)
    limit.add_argument(
        "--older-than", type=parse_age, metavar="AGE", help="30m, 12h, 7d"
    )
    limit.add_argument(
        "--to-bytes",
        type=parse_size,
        metavar="N",
        help="500G: what all chosen folders may keep together",
    )
    parser.add_argument("--delete", action="store_true", help="do it")


def run(args: argparse.Namespace) -> int:
    """1 when something could not be read or deleted."""
    unread = _folders.Unread()
    folders = _folders.chosen(args, unread)
    if args.older_than is not None:
        cut = Cut(int(time.time() - args.older_than))
    else:
        cut = _cut_to(args.to_bytes, folders)
    outcomes = [_prune(folder, cut, args.delete) for folder in folders]
    show(args, [vars(outcome) for outcome in outcomes], _lines(args, outcomes))
    failed = unread.paths or any(outcome.failed for outcome in outcomes)
    return 1 if failed else 0


def _cut_to(limit: int, folders: list[StoreFolder]) -> Cut:
    """A pass of its own, which keeps one number for each second in which blocks were written."""
    written: Counter[int] = Counter()
    for folder in folders:
        for kind, _, found in _files(folder, lambda _: None):  # _prune() tells
            if kind is Kind.BLOCK:
                written[int(found.st_mtime)] += found.st_size
    excess = written.total() - limit
    for second in sorted(written):
        if excess <= written[second]:
            return Cut(second, excess)
        excess -= written[second]
    return Cut(0)


def _prune(folder: StoreFolder, cut: Cut, delete: bool) -> Outcome:
    outcome = Outcome(folder.path, folder.pool)
    for kind, entry, found in _files(folder, outcome.fail):
        block = kind is Kind.BLOCK
        if block:
            outcome.pages += 1
            outcome.bytes += found.st_size
        if not (cut.takes(found) if block else is_left_over(found)):
            continue
        if delete and not _delete(entry.path, outcome.fail):
            continue
        outcome.temporaries += not block
        outcome.deleted += block
        outcome.deleted_bytes += found.st_size
    return outcome


def _files(
    folder: StoreFolder, failed: Failed
) -> Iterator[tuple[Kind, os.DirEntry[str], os.stat_result]]:
    """The blocks and temporaries of one folder that can be read."""
    for kind, entry in progress(folder.files(failed), folder.pool):
        if kind not in (Kind.BLOCK, Kind.TEMPORARY):
            continue
        found = stat(entry, failed)
        if found is not None:
            yield kind, entry, found


def _delete(path: str, failed: Failed) -> bool:
    """False when it is still there, or somebody else deleted it."""
    try:
        os.unlink(path)
        return True
    except FileNotFoundError:
        return False
    except OSError as e:
        failed(e)
        return False


def _lines(args: argparse.Namespace, outcomes: list[Outcome]) -> Iterator[str]:
    rows = [
        (
            o.pool,
            o.pages,
            size_text(o.bytes),
            o.deleted,
            o.temporaries,
            size_text(o.deleted_bytes),
            o.path,
        )
        for o in outcomes
    ]
    verb = "deleted" if args.delete else "would delete"
    header = ("pool", "pages", "bytes", verb, "temporaries", "bytes freed", "folder")
    yield from table(header, rows)
    for outcome in outcomes:
        yield from (f"not deleted: {error}" for error in outcome.errors)
        if outcome.failed > _NAMED:
            yield f"not deleted: {outcome.failed - _NAMED:,} more in {outcome.path}"
    if not args.delete:
        yield "nothing was deleted; --delete does it"
