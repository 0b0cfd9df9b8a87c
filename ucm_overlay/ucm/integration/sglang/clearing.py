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
"""Removes the pages of one deployment, where its folders show that no other's are among them."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence

from ucm.integration.sglang import block_files
from ucm.integration.sglang.block_files import Kind, Marker, StoreFolder

logger = logging.getLogger(__name__)


def clear_all(folders: Sequence[StoreFolder], model: str) -> str:
    """Clear all of them or, if one refuses, none. Returns what is wrong, or "".

    Safe beside other processes: who reads a block keeps it, what is stored from now on stays.
    """
    began = time.time()
    reasons = [_told(refusal, folder, model) for folder in folders]
    if any(reasons):
        return "; ".join(filter(None, reasons)) + (
            ". Nothing was removed. ucm_connector_config.namespace gives a deployment "
            "folders of its own, which can be cleared"
        )
    return "; ".join(filter(None, [_clear(folder, began) for folder in folders]))


def refusal(folder: StoreFolder, model: str) -> str:
    """Why this folder's pages may not be removed; "" if they may.

    A block's name is a digest and tells no model, but a store marks its folder before it
    writes: one whose markers all name this model holds no other's. Older blocks, or ones of a
    size that no marker tells, come from a UCM without markers. A configured namespace has
    none of those.
    """
    markers, unreadable = folder.markers()
    others = sorted({marker.format.model for marker in markers} - {model})
    if unreadable:
        return f"{folder.path}: marker {unreadable[0]} cannot be read"
    if others:
        return f"{folder.path}: also holds pages of {', '.join(map(repr, others))}"
    if folder.deployment:
        return ""
    if not markers:
        return f"{folder.path}: no page format marker tells whose pages these are"
    is_told = _told_by_markers(folder, markers)
    strange = sum(not is_told(stat) for _, stat in _blocks(folder))
    if strange:
        return (
            f"{folder.path}: {strange} blocks are older than its first marker or of a size "
            "that none tells"
        )
    return ""


def _told(check: Callable[..., str], *args: object) -> str:
    """What the check says, or why it cannot."""
    try:
        return check(*args)
    except OSError as e:
        return f"{e.filename}: {e.strerror}"


def _clear(folder: StoreFolder, before: float) -> str:
    """Remove the blocks that were stored before this time; what went wrong, or ""."""
    began, removed, removed_bytes = time.monotonic(), 0, 0

    def remove() -> str:
        nonlocal removed, removed_bytes
        for path, stat in _blocks(folder):
            if stat.st_mtime > before:
                continue
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                removed, removed_bytes = removed + 1, removed_bytes + stat.st_size
        return ""

    wrong = _told(remove)
    logger.info(
        "L3 pool %s: removed %d pages, %d bytes from %s in %.1f s",
        folder.pool,
        removed,
        removed_bytes,
        folder.path,
        time.monotonic() - began,
    )
    return wrong


def _blocks(folder: StoreFolder) -> Iterator[tuple[str, os.stat_result]]:
    for kind, entry in folder.files():
        found = block_files.stat(entry) if kind is Kind.BLOCK else None
        if found is not None:
            yield entry.path, found


def _told_by_markers(
    folder: StoreFolder, markers: Sequence[Marker]
) -> Callable[[os.stat_result], bool]:
    """Whether a block can be one of those that the folder's markers tell of."""
    first = min(os.stat(marker.path).st_mtime for marker in markers)
    sizes = folder.block_sizes()
    return lambda stat: stat.st_mtime >= first and stat.st_size in sizes
