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
"""How long a prefix can be restored, from what each pool holds. Pure functions.

A pool's *legal ends* are the prefix lengths, in pages, at which that pool alone could be
restored. A prefix is restorable where the ends of all pools meet; the minimum of their
maxima can be a length that no pool allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALL_PAGES = "all_pages"
TRAILING_PAGES = "trailing_pages"
BLOCK_GROUPS = "block_groups"


@dataclass(frozen=True)
class PoolPresence:
    """Which of the candidate pages one pool holds.

    present: bool, one per candidate page. window: pages that TRAILING_PAGES needs before
    an end. block_pages, group_pages: the geometry of BLOCK_GROUPS, in pages.
    """

    name: str
    present: np.ndarray
    policy: str = ALL_PAGES
    window: int = 1
    block_pages: int = 0
    group_pages: int = 0


@dataclass(frozen=True)
class HitVerdict:
    """restorable: ascending prefix lengths. boundaries: each pool's own longest end."""

    restorable: list[int]
    boundaries: dict[str, int]

    @property
    def hit_pages(self) -> int:
        return self.restorable[-1] if self.restorable else 0


def leading_run(present: np.ndarray) -> int:
    """Number of pages before the first missing one."""
    return len(present) if present.all() else int(np.argmin(present))


def trailing_ends(present: np.ndarray, window: int) -> np.ndarray:
    """bool, one per prefix length 1..n: whether the window before it is complete.

    The window is cut at the start of the sequence.
    """
    pages = np.arange(len(present))
    last_missing = np.maximum.accumulate(np.where(present, -1, pages))
    return pages - last_missing >= np.minimum(pages + 1, max(1, window))


def covered_by_groups(present: np.ndarray, block_pages: int, group_pages: int) -> int:
    """Pages covered by the leading blocks whose group of keys is complete."""
    block = max(1, block_pages)
    group = min(group_pages, block) if group_pages > 0 else block
    blocks = len(present) // block
    whole = present[: blocks * block].reshape(blocks, block)[:, :group].all(axis=1)
    return leading_run(whole) * block


def judge(pages: int, pools: Sequence[PoolPresence]) -> HitVerdict:
    """Intersect the legal ends of all pools over prefix lengths 1..pages."""
    legal = np.ones(pages, dtype=bool)
    boundaries: dict[str, int] = {}
    for pool in pools:
        if pool.policy == BLOCK_GROUPS:
            boundaries[pool.name] = covered_by_groups(
                pool.present, pool.block_pages, pool.group_pages
            )
            continue
        if pool.policy == TRAILING_PAGES:
            ends = trailing_ends(pool.present, pool.window)
        else:
            ends = np.arange(pages) < leading_run(pool.present)
        boundaries[pool.name] = int(np.flatnonzero(ends)[-1]) + 1 if ends.any() else 0
        legal &= ends
    return HitVerdict((np.flatnonzero(legal) + 1).tolist(), boundaries)
