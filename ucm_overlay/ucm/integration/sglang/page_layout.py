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
"""What one page of a host pool looks like, found by asking the pool for one page."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_BUFFER_ALIGNMENT = 4096
# What Linux moves in one system call: 2 GiB less a memory page.
_LONGEST_PAGE = 0x7FFFF000
# The kernel maps nothing below: mmap_min_addr, and None, False and True as numbers.
_LOWEST_ADDRESS = 4096


class LayoutError(ValueError):
    """A pool's pages do not have the layout that a store needs."""


@dataclass(frozen=True)
class PageLayout:
    """The layout fixed at registration.

    tokens: slots of host_indices per page. sizes: bytes of every component, zero ones
    included, in the pool's order. flattened: pages go through flat staging copies.
    aligned: size and address of every component are multiples of 4096.
    """

    tokens: int
    sizes: tuple[int, ...]
    flattened: bool = False
    aligned: bool = False

    @property
    def component_size(self) -> int:
        return max(self.sizes)

    @property
    def component_count(self) -> int:
        return sum(1 for size in self.sizes if size)

    @property
    def page_bytes(self) -> int:
        return self.component_size * self.component_count


def resolve_anchor(pool: Any) -> Any:
    """The anchor's own host pool: up to SGLang 0.5.18 it comes wrapped in a HostPoolGroup."""
    entry = getattr(pool, "anchor_entry", None)
    return pool if entry is None else entry.host_pool


def is_logical_anchor(pool: Any) -> bool:
    """Whether the pool keeps slot numbers only (DeepSeek V4's primary KV).

    A pool without a buffer whose page metadata raises is another thing (an allocator-only
    MLA pool), and is left to the probe to refuse.
    """
    if getattr(pool, "kv_buffer", pool) is not None:
        return False
    try:
        return _page_meta(pool, _slots(pool, 1)) is None
    except Exception:
        return False


def check_meta(pool: Any) -> None:
    """LayoutError for malformed page metadata; what the pool itself raises is no matter."""
    try:
        _page_meta(pool, _slots(pool, 1))
    except LayoutError:
        raise
    except Exception:
        pass


def has_mla_pages(pool: Any) -> bool:
    """Whether the pool's class is built from MLA or DeepSeek V4 pages."""
    kinds = {"MLATokenToKVPoolHost", "DeepSeekV4PagedHostPool"}
    return any(cls.__name__ in kinds for cls in type(pool).__mro__)


def probe(pool: Any, name: str, flattened: bool = False) -> PageLayout:
    """Find the layout of a pool's pages; LayoutError, naming the pool, if it has none."""
    host_layout = getattr(pool, "layout", "page_first")
    if host_layout != "page_first":
        raise LayoutError(
            f"pool {name!r} has host layout {host_layout!r}; "
            "start SGLang with --hicache-mem-layout page_first"
        )
    if flattened:
        return _probe_flat(pool, name, cause=None)
    try:
        meta = _page_meta(pool, _slots(pool, 1))
    except LayoutError as e:
        raise LayoutError(f"pool {name!r}: {e}") from e
    except Exception as e:
        return _probe_flat(pool, name, cause=e)
    if meta is None or not any(meta[1]):
        raise LayoutError(f"pool {name!r} has no page data to store")
    pointers = _whole_numbers(meta[0], name, "addresses")
    sizes = _whole_numbers(meta[1], name, "sizes")
    filled = sorted({size for size in sizes if size})
    if len(filled) > 1:
        raise LayoutError(
            f"pool {name!r} has unequal components of {list(sizes)} bytes a page; "
            "only equal ones can share a store block (asymmetric K and V are not supported)"
        )
    _check_length(name, filled[0], sum(size > 0 for size in sizes))
    lowest = min(ptr for ptr, size in zip(pointers, sizes, strict=True) if size)
    if lowest < _LOWEST_ADDRESS:
        raise LayoutError(f"pool {name!r} gives address {lowest} for a page component")
    aligned = filled[0] % _BUFFER_ALIGNMENT == 0 and _addresses_aligned(pool)
    return PageLayout(pool.page_size, sizes, False, aligned)


def page_pointers(
    pool: Any, layout: PageLayout, slots: torch.Tensor, pages: int
) -> np.ndarray:
    """uint64 addresses [pages, component_count] of the pages that start in slots.

    LayoutError if counts or sizes are no longer those of the registration, or a page would
    lie outside the pool.
    """
    check_slots(pool, slots[:: layout.tokens].tolist())
    pointers, sizes = _page_meta(pool, slots) or ([], [])
    if sizes != list(layout.sizes) * pages:
        raise LayoutError(
            f"{pages} pages came with component sizes {_brief(sizes)}, "
            f"registered were {list(layout.sizes)} a page"
        )
    addresses = np.array(pointers)
    if addresses.dtype.kind not in "iu":
        raise LayoutError(f"page addresses are {addresses.dtype}, not whole numbers")
    addresses = addresses.reshape(pages, len(layout.sizes))
    if 0 in layout.sizes:
        filled = np.array(layout.sizes) > 0
        addresses = np.ascontiguousarray(addresses[:, filled])
    if addresses.min() < _LOWEST_ADDRESS:
        raise LayoutError(f"a page component has address {addresses.min()}")
    return addresses.astype(np.uint64, copy=False)


def page_slots(
    layout: PageLayout, host_indices: torch.Tensor | None, pages: int
) -> torch.Tensor:
    """The slots of exactly these pages.

    Up to SGLang 0.5.18 host_indices can be longer than its keys need; the head is meant.
    """
    wanted = pages * layout.tokens
    # len() of a tensor is ten times slower where its code has left the caches.
    given = 0 if host_indices is None else host_indices.shape[0]
    if given < wanted:
        raise LayoutError(
            f"{pages} pages need {wanted} host indices, {given} were given"
        )
    return host_indices if given == wanted else host_indices[:wanted]


def check_slots(pool: Any, firsts: Sequence[int]) -> None:
    """LayoutError where a page would begin before the pool's first slot or end behind its
    last: the pool's own arithmetic takes every number."""
    slots = getattr(pool, "size", None)
    for first in (min(firsts), max(firsts)):
        if slots is not None and not 0 <= first <= slots - pool.page_size:
            raise LayoutError(
                f"host index {first} starts no page of {pool.page_size} in {slots} slots"
            )


def _slots(pool: Any, pages: int) -> torch.Tensor:
    return torch.arange(pages * pool.page_size, dtype=torch.int64)


def _page_meta(pool: Any, slots: torch.Tensor) -> tuple[list[int], list[int]] | None:
    """(pointers, sizes), page-major and flat; None when the pool has no pages."""
    meta = pool.get_page_buffer_meta(slots)
    if meta is None:
        return None
    if not isinstance(meta, (tuple, list)) or len(meta) != 2:
        raise LayoutError(f"page metadata is {type(meta).__name__}, not two lists")
    if meta[0] is None and meta[1] is None:
        return None
    pointers, sizes = _flat(meta[0]), _flat(meta[1])
    if len(pointers) != len(sizes):
        raise LayoutError(
            f"page metadata has {len(pointers)} pointers and {len(sizes)} sizes"
        )
    return pointers, sizes


def _flat(values: Any) -> list[int]:
    """One list of numbers, whether the pool gives them flat or one list a page."""
    if not isinstance(values, Sequence):
        raise LayoutError(f"page metadata holds {type(values).__name__}, not a list")
    if not values or not isinstance(values[0], (list, tuple)):
        return list(values)
    try:
        return [value for page in values for value in page]
    except TypeError as e:
        raise LayoutError(f"page metadata mixes lists and numbers: {e}") from e


def _whole_numbers(values: list[Any], name: str, what: str) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, values))
    except TypeError as e:
        raise LayoutError(f"pool {name!r} has page {what} {values}: {e}") from e


def _check_length(name: str, size: int, count: int) -> None:
    """LayoutError for a page that cannot be one, before it becomes a folder's name."""
    if not 0 < size * count <= _LONGEST_PAGE:
        raise LayoutError(
            f"pool {name!r} has pages of {count} x {size} = {count * size} bytes; a page "
            f"may have 1 to {_LONGEST_PAGE}. Lower SGLang's --page-size"
        )


def _probe_flat(pool: Any, name: str, cause: Exception | None) -> PageLayout:
    """The layout of a pool whose pages can only be copied whole."""
    try:
        dummy = pool.get_dummy_flat_data_page()
        size = dummy.numel() * dummy.element_size()
        page = pool.get_data_page(0, flat=True)
        given = page.numel() * page.element_size()
    except Exception as e:
        detail = f"page metadata: {cause!r}, " if cause else ""
        raise LayoutError(
            f"pool {name!r} ({type(pool).__name__}) can give no pages: "
            f"{detail}flat page: {e!r}"
        ) from e
    if size == 0 or given != size:
        raise LayoutError(
            f"pool {name!r}: a flat page has {given} bytes, the dummy page {size}"
        )
    _check_length(name, size, 1)
    return PageLayout(
        pool.page_size, (size,), True, aligned=size % _BUFFER_ALIGNMENT == 0
    )


def _addresses_aligned(pool: Any) -> bool:
    """Whether pages start on 4096-byte borders; two of them show base and stride."""
    slots = _slots(pool, 2 if getattr(pool, "size", 0) >= 2 * pool.page_size else 1)
    meta = _page_meta(pool, slots)
    return all(ptr % _BUFFER_ALIGNMENT == 0 for ptr in meta[0] if ptr)


def _brief(sizes: list[int]) -> str:
    shown = ", ".join(str(size) for size in sizes[:8])
    return f"[{shown}, ...] ({len(sizes)})" if len(sizes) > 8 else f"[{shown}]"
