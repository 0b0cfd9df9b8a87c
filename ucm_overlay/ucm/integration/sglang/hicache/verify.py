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
"""Check sizes and format markers, and with --read that the disk gives every block back.

Wrong is a block whose size is none of its pool's, a format marker that cannot be read or tells
sizes that its folder does not have, and with --read a block that the disk does not give back.
The primary pool's sizes come from its markers: without any, only empty blocks are wrong there.
A model that was stored there before there were markers looks wrong beside one that has them.
Which bytes a page must have, nobody knows without the page.
"""

import argparse
import os
from collections.abc import Iterator

from ucm.integration.sglang.block_files import Failed, Kind, StoreFolder, stat
from ucm.integration.sglang.hicache import _folders
from ucm.integration.sglang.hicache._report import progress, show

_READ_BYTES = 4 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _folders.add_arguments(parser)
    parser.add_argument("--read", action="store_true", help="read every block")
    parser.add_argument(
        "--limit",
        type=int,
        default=100,
        help="how many faults to name (default: 100); all are counted",
    )


def run(args: argparse.Namespace) -> int:
    """1 when something is wrong or could not be read."""
    faults, count, unread = [], 0, _folders.Unread()
    for folder in _folders.chosen(args, unread):
        for path, text in _faults(folder, args.read, unread):
            count += 1
            if len(faults) < args.limit:
                faults.append({"path": path, "fault": text})
    lines = [f"{fault['path']}: {fault['fault']}" for fault in faults]
    lines.append(f"{count:,} faults" if count else "nothing is wrong")
    show(args, {"count": count, "faults": faults}, lines)
    return 1 if count or unread.paths else 0


def _faults(
    folder: StoreFolder, read: bool, failed: Failed
) -> Iterator[tuple[str, str]]:
    yield from _marker_faults(folder, failed)
    sizes = folder.block_sizes(failed)
    buffer = bytearray(_READ_BYTES)
    for kind, entry in progress(folder.files(failed), folder.pool):
        if kind is not Kind.BLOCK:
            continue
        found = stat(entry, failed)
        if found is None:
            continue
        if found.st_size == 0 or found.st_size not in (sizes or [found.st_size]):
            whole = " or ".join(f"{size:,}" for size in sorted(sizes)) or "some"
            yield entry.path, f"has {found.st_size:,} bytes, a whole block {whole}"
        elif read:
            fault = _read_fault(entry.path, buffer)
            if fault:
                yield entry.path, fault


def _marker_faults(folder: StoreFolder, failed: Failed) -> Iterator[tuple[str, str]]:
    markers, unreadable = folder.markers(failed)
    yield from ((path, "is no format marker that can be read") for path in unreadable)
    for marker in markers:
        size = sum(marker.format.component_sizes)
        if folder.page_bytes not in (0, size):
            yield marker.path, f"tells of pages of {size:,} bytes"


def _read_fault(path: str, buffer: bytearray) -> str:
    """Why the file cannot be read to its end; "" if it can, or has gone."""
    try:
        with open(path, "rb", buffering=0) as f:
            while f.readinto(buffer):
                pass
        return ""
    except FileNotFoundError:
        return ""
    except OSError as e:
        return f"cannot be read: {os.strerror(e.errno)}"
