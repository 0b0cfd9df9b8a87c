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
"""Copies of whole pages, flat, where components cannot share a block: [temporal | conv0 ...]."""

from typing import Any

import torch

from ucm.integration.sglang.page_layout import LayoutError

# Pages that may be compared before it is given up that one of them tells.
_COMPARISONS = 8


class FlatPages:
    """Copies a pool's pages into flat ones (uint8) and back.

    The pool's get_data_page() joins a page's components in a new tensor, so that staging
    needs a second copy. The components themselves, as SGLang's MambaPoolHost lists them,
    are joined right in staging, once a page was seen to get the same bytes either way.
    """

    def __init__(self, pool: Any):
        self._pool = pool
        self._dtype = pool.get_dummy_flat_data_page().dtype
        self._comparisons = _COMPARISONS
        self._same_bytes = False

    def copy_in(self, staged: torch.Tensor, first: int) -> None:
        """Fill staged with the page that starts in slot `first`; LayoutError if the page
        has another length, and whatever the pool raises."""
        if self._same_bytes:
            _join(self._components(first), staged)
            return
        page = self._pool.get_data_page(first, flat=True)
        _join([_bytes(page)], staged)
        if self._comparisons:
            self._compare(staged, first)

    def copy_out(self, staged: torch.Tensor, first: int) -> None:
        """Give the pool its page back; raises what the pool does."""
        self._pool.set_from_flat_data_page(first, staged.view(self._dtype))

    def _components(self, first: int) -> list[torch.Tensor]:
        return [_bytes(part) for part in self._pool._iter_page_tensors(first)]

    def _compare(self, page: torch.Tensor, first: int) -> None:
        self._comparisons -= 1
        try:
            parts = self._components(first)
            same = torch.equal(torch.cat(parts), page)
        except Exception:  # no such method, or one of another meaning
            same = False
        if not same:
            self._comparisons = 0
        elif all([_tells(part) for part in parts]):
            self._same_bytes, self._comparisons = True, 0


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8).reshape(-1)


def _tells(part: torch.Tensor) -> bool:
    """One byte all over would look the same in another place."""
    return part.numel() == 0 or bool((part != part[0]).any())


def _join(parts: list[torch.Tensor], staged: torch.Tensor) -> None:
    given = sum(part.numel() for part in parts)
    if given != staged.numel():
        raise LayoutError(
            f"a flat page has {given} bytes, registered were {staged.numel()}"
        )
    torch.cat(parts, out=staged)
