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

import threading
from typing import Any

import torch

from ucm.integration.sglang.page_layout import LayoutError

# Pages that are looked at before it is given up that one of them can be compared.
_COMPARISONS = 8
# Elements of a component that must not all be the same, nor those of another one.
_HEAD = 4096


class FlatPages:
    """Copies a pool's pages into flat ones (uint8) and back; any thread may.

    The pool's get_data_page() joins a page's components in a new tensor, so that staging
    needs a second copy. The components themselves, as SGLang's MambaPoolHost lists them,
    are joined right in staging, once a page was seen to get the same bytes either way.
    """

    def __init__(self, pool: Any):
        self._pool = pool
        self._dtype = pool.get_dummy_flat_data_page().dtype
        self._lock = threading.Lock()
        self._comparisons = _COMPARISONS
        self._same_bytes = False

    def copy_in(self, staged: torch.Tensor, first: int) -> None:
        """Fill staged with the page that starts in slot `first`; LayoutError if the page
        has another length, and whatever the pool raises."""
        if self._same_bytes:
            parts = [_bytes(part) for part in self._components(first)]
            _check_length(sum(part.numel() for part in parts), staged)
            torch.cat(parts, out=staged)
            return
        page = _bytes(self._pool.get_data_page(first, flat=True))
        _check_length(page.numel(), staged)
        staged.copy_(page)
        if self._comparisons:
            self._compare(staged, first)

    def copy_out(self, staged: torch.Tensor, first: int) -> None:
        """Give the pool its page back; raises what the pool does."""
        self._pool.set_from_flat_data_page(first, staged.view(self._dtype))

    def _components(self, first: int) -> list[torch.Tensor]:
        return list(self._pool._iter_page_tensors(first))

    def _compare(self, page: torch.Tensor, first: int) -> None:
        with self._lock:
            if not self._comparisons:
                return
            self._comparisons -= 1
            try:
                parts = self._components(first)
                if not _differ(parts):
                    return
                joined = torch.cat([_bytes(part) for part in parts])
                self._same_bytes = torch.equal(joined, page)
            except Exception:  # no such method, or one of another meaning
                pass
            self._comparisons = 0


def _differ(parts: list[torch.Tensor]) -> bool:
    """Whether each part would be other bytes in any other place: zeros would not."""
    heads = [part.reshape(-1)[:_HEAD].contiguous() for part in parts if part.numel()]
    repeated = [bool((_rows(head) == _rows(head)[0]).all()) for head in heads]
    different = {_bytes(head).numpy().tobytes() for head in heads}
    return not any(repeated) and len(different) == len(heads)


def _rows(head: torch.Tensor) -> torch.Tensor:
    """The bytes of each element."""
    return _bytes(head).reshape(-1, head.element_size())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8).reshape(-1)


def _check_length(given: int, staged: torch.Tensor) -> None:
    if given != staged.numel():
        raise LayoutError(
            f"a flat page has {given} bytes, registered were {staged.numel()}"
        )
