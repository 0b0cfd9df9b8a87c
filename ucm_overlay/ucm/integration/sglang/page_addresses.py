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


@dataclass
class _Grid:
    """Pages at one distance.

    first: addresses of page 0. step: bytes to the next page. named: 1 for each page whose
    address the pool itself has told to be there.
    """

    first: tuple[int, ...]
    step: int
    named: bytearray

    def addresses(self, pages: list[int]) -> list[int]:
        steps = [page * self.step for page in pages]
        return [first + step for step in steps for first in self.first]


class PageAddresses:
    """Addresses of a pool's pages.

    SGLang's get_page_buffer_meta() makes a Python object of every slot, 8,192 of them for
    128 pages of 64 tokens, before the first byte can move. But its pools lay their pages at
    one distance. So each page is asked for once, and computed from then on.
    """

    def __init__(self, pool: Any, layout: PageLayout):
        self._pool, self._layout = pool, layout
        self._grid = _find_grid(pool, layout)

    def find(self, slots: torch.Tensor, pages: int) -> np.ndarray:
        """uint64 [pages, component_count]: the pages that start in every tokens-th slot.

        The pool is asked for the last of them each time, and for all where that lies
        elsewhere, one is new, or slots are no starts of its pages. Raises what
        page_pointers() does.
        """
        grid = self._grid
        numbers = self._page_numbers(grid, slots) if grid and pages > 1 else None
        if numbers is None:
            return page_pointers(self._pool, self._layout, slots, pages)
        computed, width = grid.addresses(numbers), len(grid.first)
        last = slots[-self._layout.tokens :]
        if all([grid.named[page] for page in numbers]) and self._lies_at(
            computed[-width:], last
        ):
            return np.array(computed, dtype=np.uint64).reshape(pages, width)
        told = page_pointers(self._pool, self._layout, slots, pages)
        if told.ravel().tolist() == computed:
            for page in numbers:
                grid.named[page] = 1
        else:
            self._grid = None  # its memory is another, or its pages lie otherwise
        return told

    def _page_numbers(self, grid: _Grid, slots: torch.Tensor) -> list[int] | None:
        """None where a slot starts no page of the pool."""
        tokens = self._layout.tokens
        starts = slots[::tokens].tolist()
        if min(starts) < 0 or max(starts) >= len(grid.named) * tokens:
            return None
        if any([slot % tokens for slot in starts]):
            return None
        return [slot // tokens for slot in starts]

    def _lies_at(self, addresses: list[int], page: torch.Tensor) -> bool:
        meta = self._pool.get_page_buffer_meta(page)
        return meta is not None and tuple(map(list, meta)) == (
            addresses,
            list(self._layout.sizes),
        )


def _find_grid(pool: Any, layout: PageLayout) -> _Grid | None:
    """None where pages have empty components, or the pool moves them (SGLang 0.5.23's
    UnifiedPageEnvelopeHostPool does when it compacts its domain)."""
    if 0 in layout.sizes or getattr(pool, "shared_allocation_domain", None) is not None:
        return None
    try:
        slots = torch.arange(2 * layout.tokens, dtype=torch.int64)
        first, second = page_pointers(pool, layout, slots, 2).tolist()
        named = bytearray(pool.size // layout.tokens)
    except Exception:  # a transfer asks again, and reports
        return None
    return _Grid(tuple(first), second[0] - first[0], named)
