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
import math
import os
import time
from collections.abc import Callable, Sequence

from ucm.integration.sglang.block_files import Kind, StoreFolder

logger = logging.getLogger(__name__)


def refusal(folder: StoreFolder, model: str) -> str:
    """Why this folder's pages may not be removed; "" if they may.

    A block's name is a digest and tells no model, but a store marks its folder before it
    writes: one whose markers all name this model holds no other's. A folder of a configured
    namespace is its deployment's own.
    """
    if folder.deployment:
        return ""
    markers, unreadable = folder.markers()
    others = sorted({marker.format.model for marker in markers} - {model})
    if unreadable:
        return f"{folder.path}: marker {unreadable[0]} cannot be read"
    if not markers:
        return f"{folder.path}: no page format marker tells whose pages these are"
    if others:
        return f"{folder.path}: also holds pages of {', '.join(others)}"
    return ""


def clear(folder: StoreFolder) -> str:
    """Remove every block; what could not be removed, as text, or "".

    Safe beside other processes: who reads a block keeps it, who writes one publishes it
    afterwards. Files that are not blocks stay, and blocks that may be somebody else's: older
    than the folder's first marker, or of a size that no marker tells, for a UCM without
    markers can write there too.
    """
    began = time.monotonic()
    is_own = _own_blocks(folder)
    removed, removed_bytes, strange, failed = 0, 0, 0, ""
    for kind, entry in folder.files():
        if kind is not Kind.BLOCK:
            continue
        with contextlib.suppress(FileNotFoundError):
            stat = entry.stat(follow_symlinks=False)
            if not is_own(stat):
                strange += 1
                continue
            try:
                os.unlink(entry.path)
            except PermissionError as e:
                failed = failed or f"{entry.path}: {e.strerror}"
                continue
            removed, removed_bytes = removed + 1, removed_bytes + stat.st_size
    logger.info(
        "L3 pool %s: removed %d pages, %d bytes from %s in %.1f s",
        folder.pool,
        removed,
        removed_bytes,
        folder.path,
        time.monotonic() - began,
    )
    if strange:
        return (
            f"{folder.path}: left {strange} blocks that are older than its first marker or "
            "of a size that none tells"
        )
    return failed


def clear_all(folders: Sequence[StoreFolder], model: str) -> str:
    """Clear all of them or, if one refuses, none. Returns what is wrong, or ""."""
    reasons = [refusal(folder, model) for folder in folders]
    if any(reasons):
        return "; ".join(filter(None, reasons)) + (
            ". Nothing was removed. ucm_connector_config.namespace gives a deployment "
            "folders of its own, which can be cleared"
        )
    return "; ".join(filter(None, [clear(folder) for folder in folders]))


def _own_blocks(folder: StoreFolder) -> Callable[[os.stat_result], bool]:
    """Whether a block is surely one of those that the folder's markers tell of."""
    if folder.deployment:
        return lambda stat: True
    paths = [marker.path for marker in folder.markers()[0]]
    first = min((os.stat(path).st_mtime for path in paths), default=math.inf)
    sizes = folder.block_sizes()
    return lambda stat: stat.st_mtime >= first and stat.st_size in sizes
