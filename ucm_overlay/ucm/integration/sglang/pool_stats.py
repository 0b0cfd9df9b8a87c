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
"""What each pool did since it was registered, counted once per call."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

logger = logging.getLogger(__name__)

# Takes the pool's name and what one call adds to fields of PoolCounts.
Exporter = Callable[[str, dict[str, float]], None]


@dataclass
class PoolCounts:
    """Totals of one pool. Lookups and loads are apart: a hit is a page that was found.

    hit_pages / looked_up_pages is the hit rate; a page that was found and could not be read
    counts as a hit and as a failed load. Seconds go from the call's submission to its last
    page, so pools that one call moves together share them.
    """

    lookups: int = 0
    failed_lookups: int = 0
    looked_up_pages: int = 0
    hit_pages: int = 0
    lookup_seconds: float = 0.0
    loads: int = 0
    loaded_pages: int = 0
    failed_load_pages: int = 0
    loaded_bytes: int = 0
    load_seconds: float = 0.0
    stores: int = 0
    stored_pages: int = 0
    failed_store_pages: int = 0
    stored_bytes: int = 0
    store_seconds: float = 0.0
    last_error: str = ""


class PoolStats:
    """Counts one pool; any thread may add. The lock is taken once per call, not per page."""

    def __init__(
        self, pool: str, page_bytes: int, exporters: Sequence[Exporter] = ()
    ) -> None:
        self._pool = pool
        self._page_bytes = page_bytes
        self._exporters = exporters
        self._lock = threading.Lock()
        self._counts = PoolCounts()

    def counts(self) -> PoolCounts:
        """A copy."""
        with self._lock:
            return replace(self._counts)

    def looked_up(self, pages: int, hits: int, began: float) -> None:
        """hits: pages found. began: time.perf_counter() at the start."""
        self._add(
            lookups=1,
            looked_up_pages=pages,
            hit_pages=hits,
            lookup_seconds=time.perf_counter() - began,
        )

    def lookup_failed(self, pages: int) -> None:
        self._add(lookups=1, failed_lookups=1, looked_up_pages=pages)

    def loaded(self, done: list[bool], began: float) -> None:
        pages = done.count(True)
        self._add(
            loads=1,
            loaded_pages=pages,
            failed_load_pages=len(done) - pages,
            loaded_bytes=pages * self._page_bytes,
            load_seconds=time.perf_counter() - began,
        )

    def stored(self, done: list[bool], began: float) -> None:
        """Pages that were there already count as stored."""
        pages = done.count(True)
        self._add(
            stores=1,
            stored_pages=pages,
            failed_store_pages=len(done) - pages,
            stored_bytes=pages * self._page_bytes,
            store_seconds=time.perf_counter() - began,
        )

    def error(self, text: str) -> None:
        self._counts.last_error = text

    def _add(self, **changes: float) -> None:
        with self._lock:
            counts = self._counts
            for name, change in changes.items():
                setattr(counts, name, getattr(counts, name) + change)
        for export in self._exporters:
            try:
                export(self._pool, changes)
            except Exception as e:
                # No page may fail for it, nor a read be left alone that is still going on.
                self._exporters = [
                    other for other in self._exporters if other != export
                ]
                logger.error(
                    "pool %s: its counts are exported no more: %r", self._pool, e
                )
