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
"""Page-sized host buffers for pools whose pages must be copied whole."""

import threading
import time
from collections.abc import Callable

import torch

_ALIGNMENT = 4096


class StagingExhausted(RuntimeError):
    """No staging page came free in time."""


class StagingPages:
    """A bounded set of reusable pages; any thread may lease, release or retire them.

    A page that a late system call may still write is retired: it comes back only once its
    transfer is known to have ended, and a fresh page takes its place, up to `limit` of them.
    """

    def __init__(self, page_bytes: int, budget_bytes: int = 256 << 20):
        self.page_bytes = page_bytes
        self.limit = max(1, min(16, budget_bytes // page_bytes))
        self._free: list[torch.Tensor] = []
        self._retired: list[tuple[Callable[[], bool], list[torch.Tensor]]] = []
        self._leased = 0
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()

    def lease(self, count: int, timeout_s: float = 0.0) -> list[torch.Tensor]:
        """1 to count pages (uint8, 4096-aligned); [] when timeout_s is 0 and none is free or
        somebody waits for one.

        Raises StagingExhausted when timeout_s passed without a free page.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while timeout_s > 0 or not self._waiting:
                self._readmit()
                available = self.limit - self._leased
                if available > 0 and not self._closed and not self._overdrawn():
                    return self._take(min(count, available))
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._wait(min(remaining, 1.0))
        if timeout_s > 0:
            raise StagingExhausted(
                f"no staging page of {self.page_bytes} bytes is free"
            )
        return []

    def release(self, pages: list[torch.Tensor]) -> None:
        with self._changed:
            self._leased -= len(pages)
            if not self._closed:
                self._free += pages
            self._changed.notify_all()

    def retire(self, pages: list[torch.Tensor], has_ended: Callable[[], bool]) -> None:
        """Keep pages out of use until has_ended() says that nothing touches them."""
        with self._changed:
            self._leased -= len(pages)
            self._retired.append((has_ended, pages))
            self._changed.notify_all()

    def close(self) -> None:
        """Free idle pages; retired ones stay alive as long as their transfer may run."""
        with self._changed:
            self._closed = True
            self._free.clear()
            self._readmit()
            self._changed.notify_all()

    def _wait(self, seconds: float) -> None:
        self._waiting += 1
        try:
            self._changed.wait(seconds)
        finally:
            self._waiting -= 1

    def _overdrawn(self) -> bool:
        return sum(len(pages) for _, pages in self._retired) >= self.limit

    def _readmit(self) -> None:
        still = []
        for has_ended, pages in self._retired:
            if not has_ended():
                still.append((has_ended, pages))
            elif not self._closed:
                self._free += pages
        self._retired = still

    def _take(self, count: int) -> list[torch.Tensor]:
        pages = [self._free.pop() for _ in range(min(count, len(self._free)))]
        pages += [_aligned_page(self.page_bytes) for _ in range(count - len(pages))]
        self._leased += count
        return pages


def _aligned_page(size: int) -> torch.Tensor:
    raw = torch.empty(size + _ALIGNMENT, dtype=torch.uint8)
    start = -raw.data_ptr() % _ALIGNMENT
    return raw[start : start + size]
