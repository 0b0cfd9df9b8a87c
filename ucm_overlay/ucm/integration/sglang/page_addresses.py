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
from ucm.store.pipeline import ucmpipelinestore


@dataclass
class _Grid:
    """Pages at one distance.

    first: addresses of page 0, and meta what the pool said about it. step: bytes to the next
    page. named: uint8, 1 for each page whose address the pool itself has told to be there.
    """

    first: tuple[int, ...]
    meta: Any
    step: int
    named: np.ndarray


class PageAddresses:
    """Addresses of a pool's pages.

    SGLang's get_page_buffer_meta() makes a Python object of every slot, 8,192 of them for
    128 pages of 64 tokens, before the first byte can move. But its pools lay their pages at
    one distance. So each page is asked for once, and computed from then on.
    """

    def __init__(self, pool: Any, layout: PageLayout):
        self._pool, self._layout = pool, layout
        self._first_page = torch.arange(layout.tokens, dtype=torch.int64)
        self._grid = self._find_grid()

    def find(self, slots: torch.Tensor, pages: int) -> np.ndarray:
        """uint64 [pages, component_count]: the pages that start in every tokens-th slot.

        The pool is asked where its first page is each time, and for all of slots where
        that has moved, a page is new, or a slot starts none. Raises what page_pointers()
        does, above all for slots outside the pool.
        """
        grid = self._grid if pages > 1 else None
        found = None if grid is None else self._compute(grid, slots)
        if found is None:
            return page_pointers(self._pool, self._layout, slots, pages)
        computed, all_named = found
        if all_named and self._ask_first_page() == grid.meta:
            return computed
        told = page_pointers(self._pool, self._layout, slots, pages)
        if np.array_equal(told, computed):
            tokens = self._layout.tokens
            grid.named[slots.numpy()[::tokens] // tokens] = 1
        else:
            self._grid = None  # its memory is another, or its pages lie otherwise
        return told

    def _compute(
        self, grid: _Grid, slots: torch.Tensor
    ) -> tuple[np.ndarray, bool] | None:
        """Addresses, and whether all are named; None where a slot starts no page."""
        try:
            return ucmpipelinestore.PageAddresses(
                slots.numpy(), self._layout.tokens, grid.first, grid.step, grid.named
            )
        except TypeError:  # slots of another type, or on a device
            return None

    def _ask_first_page(self) -> Any:
        return self._pool.get_page_buffer_meta(self._first_page)

    def _find_grid(self) -> _Grid | None:
        """None where pages have empty components, or the pool moves them (SGLang 0.5.23's
        UnifiedPageEnvelopeHostPool does when it compacts its domain)."""
        pool, layout = self._pool, self._layout
        if 0 in layout.sizes:
            return None
        if getattr(pool, "shared_allocation_domain", None) is not None:
            return None
        try:
            slots = torch.arange(2 * layout.tokens, dtype=torch.int64)
            first, second = page_pointers(pool, layout, slots, 2).tolist()
            named = np.zeros(pool.size // layout.tokens, dtype=np.uint8)
            meta = self._ask_first_page()
        except Exception:  # a transfer asks again, and reports
            return None
        return _Grid(tuple(first), meta, second[0] - first[0], named)
