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
"""Where the pages of a host pool lie, without asking the pool for each of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ucm.integration.sglang.page_layout import PageLayout, page_pointers

# So many pages, from the first to the last, are compared before a distance is believed.
_SAMPLES = 9


@dataclass(frozen=True)
class _Grid:
    """Pages at one distance. first: addresses of page 0; step: bytes to the next page."""

    first: tuple[int, ...]
    step: int
    slots: int


class PageAddresses:
    """Addresses of a pool's pages.

    SGLang's get_page_buffer_meta() makes a Python object of every slot, 8,192 of them for
    128 pages of 64 tokens, before the first byte can move. But its pools lay their pages at
    one distance, so that few addresses tell the others.
    """

    def __init__(self, pool: Any, layout: PageLayout):
        self._pool, self._layout = pool, layout
        self._grid = _find_grid(pool, layout)

    def find(self, slots: torch.Tensor, pages: int) -> np.ndarray:
        """uint64 [pages, component_count]: the pages that start in every tokens-th slot.

        The pool is asked for the last of them each time, and for all where that lies
        elsewhere or slots are no starts of its pages. Raises what page_pointers() does.
        """
        tokens, grid = self._layout.tokens, self._grid
        if grid and pages > 1:
            starts = slots[::tokens].tolist()
            if _are_page_starts(starts, tokens, grid.slots):
                steps = [slot // tokens * grid.step for slot in starts]
                found = [first + step for step in steps for first in grid.first]
                width, last = len(grid.first), slots[-tokens:]
                if self._lies_at(found[-width:], last):
                    return np.array(found, dtype=np.uint64).reshape(pages, width)
        return page_pointers(self._pool, self._layout, slots, pages)

    def _lies_at(self, addresses: list[int], page: torch.Tensor) -> bool:
        meta = self._pool.get_page_buffer_meta(page)
        return meta is not None and tuple(map(list, meta)) == (
            addresses,
            list(self._layout.sizes),
        )


def _are_page_starts(slots: list[int], tokens: int, end: int) -> bool:
    return (
        min(slots) >= 0
        and max(slots) < end
        and not any([slot % tokens for slot in slots])
    )


def _find_grid(pool: Any, layout: PageLayout) -> _Grid | None:
    """None where pages do not lie at one distance, or have empty components."""
    if 0 in layout.sizes:
        return None
    try:
        pages = pool.size // layout.tokens
        numbers = np.linspace(0, pages - 1, min(pages, _SAMPLES), dtype=np.int64)
        numbers = np.union1d(numbers, [1])
        slots = numbers[:, None] * layout.tokens + np.arange(layout.tokens)
        slots = torch.from_numpy(slots.ravel())
        found = page_pointers(pool, layout, slots, len(numbers)).astype(object)
    except Exception:  # a transfer asks again, and reports
        return None
    step = found[1][0] - found[0][0]
    if (found != found[0] + numbers[:, None] * step).any():
        return None
    return _Grid(tuple(found[0]), step, pages * layout.tokens)
