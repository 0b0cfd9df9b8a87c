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
"""One pool's pages in one store: zero-copy, or through flat staging pages.

start_get() and start_set() submit and return at once; the function they return waits and
gives one bool per key. Submitting all pools before waiting for any keeps the disk busy.
Nothing here raises: a page that could not be moved is False, and the log says why.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ucm.integration.sglang.flat_pages import FlatPages
from ucm.integration.sglang.format_marker import Marked, PageFormat
from ucm.integration.sglang.hicache_keys import block_ids
from ucm.integration.sglang.log_limit import LogLimit
from ucm.integration.sglang.page_addresses import PageAddresses
from ucm.integration.sglang.page_layout import (
    LayoutError,
    PageLayout,
    check_slots,
    page_slots,
    probe,
)
from ucm.integration.sglang.pool_stats import Exporter, PoolStats
from ucm.integration.sglang.staging import StagingPages
from ucm.store.ucmstore_v1 import UcmKVStoreBaseV1

logger = logging.getLogger(__name__)

Finish = Callable[[], list[bool]]

_STAGING_TIMEOUT_S = 30.0
# The store names an error as errno(3) does.
_ADVICE = {
    "ENOSPC": "free space; `python -m ucm.integration.sglang.hicache prune` can",
    "EDQUOT": "raise the quota of the server's user",
    "EMFILE": "raise `ulimit -n`",
    "ENFILE": "raise fs.file-max",
    "EACCES": "let the server's user read and write the folder",
    "EROFS": "remount the folder for writing, or expect no new pages",
    "EIO": "look at the device",
    "ELOOP": "put a folder in place of the link",
    "ESTALE": "mount the folder again",
    "stalled": "look at the device or mount",
    "gave up": "look at the device or mount; `timeout_ms` is how long a call waits",
}


class PoolStore:
    """Base of both kinds: lookup, error reports, lifetime."""

    def __init__(
        self,
        name: str,
        pool: Any,
        layout: PageLayout,
        page_format: PageFormat,
        suffix: str,
        marked: Marked,
        store: Any,
        exporters: Sequence[Exporter] = (),
    ):
        self.name = name
        self.pool = pool
        self.layout = layout
        self.store = store
        self._format = page_format
        self._suffix = suffix
        self._marked = marked
        options = getattr(store, "config", {})
        self.folders = list(options.get("storage_backends", []))
        self._direct = bool(options.get("io_direct"))
        self.stats = PoolStats(name, layout.page_bytes, exporters)
        place = (
            f"{name} in {', '.join(self.folders)} ({layout.page_bytes} bytes a page)"
        )
        self._failures = FailureLog(place, self.stats.error)

    def presence(self, keys: Sequence[str]) -> np.ndarray:
        """bool [len(keys)]: which pages the store holds whole; all False on an error."""
        if not keys:
            return np.zeros(0, dtype=bool)
        began = time.perf_counter()
        try:
            found = np.asarray(self.store.lookup(self.ids(keys)), dtype=bool)
            if found.shape != (len(keys),):
                raise RuntimeError(f"{len(keys)} keys got {found.size} answers")
        except Exception as e:
            self._lookup_failed(len(keys), e)
            return np.zeros(len(keys), dtype=bool)
        self.stats.looked_up(len(keys), int(found.sum()), began)
        return found

    def leading_pages(self, keys: Sequence[str]) -> int:
        """Pages before the first one that the store lacks; 0 on an error."""
        if not keys:
            return 0
        began = time.perf_counter()
        try:
            pages = self.store.lookup_on_prefix(self.ids(keys)) + 1
        except Exception as e:
            self._lookup_failed(len(keys), e)
            return 0
        self.stats.looked_up(len(keys), pages, began)
        return pages

    def _lookup_failed(self, pages: int, cause: Exception) -> None:
        self.stats.lookup_failed(pages)
        self._failures.report("lookup", pages, pages, cause)

    def ids(self, keys: Sequence[str]) -> list[bytes]:
        return block_ids(keys, self._suffix)

    def regauge(self, pool: Any) -> None:
        """Take another pool of the same pages; LayoutError, naming what differs."""
        layout = probe(pool, self.name, self.layout.flattened)
        page_format = PageFormat.of(pool, layout, self._format.model)
        changes = self._format.changes(page_format)
        if layout.sizes != self.layout.sizes:
            changes["sizes"] = (self.layout.sizes, layout.sizes)
        if self._direct and not layout.aligned:
            changes["aligned to 4096"] = (True, False)
        if changes:
            raise LayoutError(
                f"pool {self.name!r} is registered with pages of another format ("
                + ", ".join(f"{k}: {a!r}, now {b!r}" for k, (a, b) in changes.items())
                + "); close() the store first"
            )
        self.pool = pool

    def start_get(
        self, keys: Sequence[str], host_indices: torch.Tensor | None
    ) -> Finish:
        return self._start("get", keys, host_indices)

    def start_set(
        self, keys: Sequence[str], host_indices: torch.Tensor | None
    ) -> Finish:
        return self._start("set", keys, host_indices)

    def close(self) -> None:
        """Close the native store once; no call may be in flight."""
        store, self.store = self.store, None
        close = getattr(store, "close", None)
        if callable(close):
            try:
                close()
            except Exception as e:
                logger.error("pool %s: closing its store failed: %r", self.name, e)

    def _start(self, op: str, keys: Sequence[str], host_indices) -> Finish:
        if not keys:
            return list
        began = time.perf_counter()
        try:
            slots = page_slots(self.layout, host_indices, len(keys))
            if op == "set":
                self._marked.restore()
            finish = self._submit(op, keys, slots)
        except Exception as e:
            self._failures.report(op, len(keys), len(keys), e)
            finish = partial(_all_failed, len(keys))
        return partial(self._count, op, finish, began)

    def _count(self, op: str, finish: Finish, began: float) -> list[bool]:
        done = finish()
        count = self.stats.loaded if op == "get" else self.stats.stored
        count(done, began)
        return done

    def _submit(self, op: str, keys: Sequence[str], slots: torch.Tensor) -> Finish:
        raise NotImplementedError

    def _transfer(self, op: str, keys: Sequence[str], addresses: Any) -> Any:
        """Submit one block per key; addresses: [pages, component_count]."""
        move = self.store.load_data if op == "get" else self.store.dump_data
        return move(self.ids(keys), [0] * len(keys), addresses)


class ZeroCopyPoolStore(PoolStore):
    """Hands the host pool's own page addresses to the store."""

    def __init__(self, name: str, pool: Any, layout: PageLayout, *args: Any):
        super().__init__(name, pool, layout, *args)
        self._addresses = PageAddresses(pool, layout)

    def regauge(self, pool: Any) -> None:
        addresses = PageAddresses(pool, self.layout)
        super().regauge(pool)
        self._addresses = addresses

    def _submit(self, op: str, keys: Sequence[str], slots: torch.Tensor) -> Finish:
        addresses = self._addresses.find(slots, len(keys))
        task = self._transfer(op, keys, addresses)
        return partial(self._finish, op, task, len(keys))

    def _finish(self, op: str, task: Any, pages: int) -> list[bool]:
        try:
            done = wait_blocks(self.store, task, pages)
        except Exception as e:
            self._failures.report(op, pages, pages, e)
            return _all_failed(pages)
        if not all(done):
            cause = BlockError(task.error)
            self._failures.report(op, done.count(False), pages, cause)
        return done


class AnchorStore(ZeroCopyPoolStore):
    """The primary KV: the store calls and argument types that v1 always had."""

    def _transfer(self, op: str, keys: Sequence[str], addresses: np.ndarray) -> Any:
        return super()._transfer(op, keys, addresses.tolist())


class FlattenedPoolStore(PoolStore):
    """Copies each page through a flat staging page: [temporal | conv0 | conv1 ...]."""

    def __init__(self, name: str, pool: Any, layout: PageLayout, *args: Any):
        super().__init__(name, pool, layout, *args)
        self.staging = StagingPages(layout.page_bytes)
        self.pages = FlatPages(pool)

    def regauge(self, pool: Any) -> None:
        super().regauge(pool)
        self.pages = FlatPages(pool)

    def close(self) -> None:
        super().close()
        self.staging.close()

    def _submit(self, op: str, keys: Sequence[str], slots: torch.Tensor) -> Finish:
        firsts = slots[:: self.layout.tokens].tolist()
        check_slots(self.pool, firsts)
        transfer = _FlatTransfer(self, op, list(zip(keys, firsts, strict=True)))
        transfer.begin(timeout_s=0.0)
        return partial(self._finish, op, transfer)

    def _finish(self, op: str, transfer: "_FlatTransfer") -> list[bool]:
        done = transfer.finish()
        if not all(done):
            self._failures.report(op, done.count(False), len(done), transfer.cause)
        return done


class _FlatTransfer:
    """Pages of one call, each a task of its own: the store moves one while another is copied.

    As many are under way as there was staging for. The page that is waited for makes room
    for the next, and nothing is held while there is no room at all.
    """

    def __init__(
        self, owner: FlattenedPoolStore, op: str, pages: list[tuple[str, int]]
    ):
        """pages: key and first slot."""
        self.cause: Exception | None = None
        self._owner, self._op = owner, op
        self._left = deque(pages)
        self._begun: deque[tuple[torch.Tensor, int, Any]] = deque()

    def begin(self, timeout_s: float) -> None:
        """Raises StagingExhausted when timeout_s, not 0, passed without a free page."""
        for page in self._owner.staging.lease(len(self._left), timeout_s):
            key, first = self._left.popleft()
            self._begun.append((page, first, self._submit(page, first, key)))

    def finish(self) -> list[bool]:
        """One bool per page, in their order."""
        done: list[bool] = []
        while self._begun or self._left:
            if self._left:
                self._begin_more()
            if self._begun:
                done.append(self._finish(*self._begun.popleft()))
            else:
                done += _all_failed(len(self._left))
                self._left.clear()
        return done

    def _begin_more(self) -> None:
        try:
            self.begin(timeout_s=0.0 if self._begun else _STAGING_TIMEOUT_S)
        except Exception as e:
            self.cause = self.cause or e

    def _submit(self, page: torch.Tensor, first: int, key: str) -> Any:
        """The page's task; None if it cannot be copied or handed over."""
        try:
            if self._op == "set":
                self._owner.pages.copy_in(page, first)
            address = np.array([[page.data_ptr()]], dtype=np.uint64)
            return self._owner._transfer(self._op, [key], address)
        except Exception as e:
            self.cause = self.cause or e
            return None

    def _finish(self, page: torch.Tensor, first: int, task: Any) -> bool:
        """Staging comes back into use when no system call can touch it any more."""
        store, staging = self._owner.store, self._owner.staging
        if task is None:
            staging.release([page])
            return False
        try:
            (moved,) = wait_blocks(store, task, 1)
            cause, over = BlockError(task.error), True
        except Exception as e:
            moved, cause, over = False, e, False
        if moved:
            done = self._op == "set" or self._copy_out(page, first)
            staging.release([page])
            return done
        self.cause = self.cause or cause
        staging.retire([page], partial(transfer_ended, store, task, over))
        return False

    def _copy_out(self, page: torch.Tensor, first: int) -> bool:
        try:
            self._owner.pages.copy_out(page, first)
            return True
        except Exception as e:
            self.cause = self.cause or e
            return False


class BlockError(RuntimeError):
    """The store's own words about the first block of a transfer that it could not move."""


class FailureLog:
    """One line per failed call, at most one per operation and interval."""

    def __init__(self, pool: str, listener: Callable[[str], None] | None = None):
        self._pool = pool
        self._listener = listener
        self._limit = LogLimit()

    def report(self, op: str, failed: int, pages: int, cause: Exception | None) -> None:
        text = str(cause) if isinstance(cause, BlockError) else repr(cause)
        if self._listener is not None:
            self._listener(f"{op}: {text}")
        more = self._limit.allow(op)
        if more is None:
            return
        logger.error(
            "L3 %s failed for %d of %d pages of pool %s: %s%s%s",
            op,
            failed,
            pages,
            self._pool,
            text,
            _advice(text),
            more,
        )


def _advice(text: str) -> str:
    """What an operator can do; "" where nothing is sure."""
    return next((f"; {do}" for name, do in _ADVICE.items() if name in text), "")


def wait_blocks(store: Any, task: Any, pages: int) -> list[bool]:
    """Wait for a transfer; one bool per block. Raises when the transfer as a whole failed."""
    own = getattr(type(store), "wait_blocks", None)
    if own is None or own is getattr(UcmKVStoreBaseV1, "wait_blocks", None):
        store.wait(task)
        return [True] * pages
    done = np.asarray(store.wait_blocks(task), dtype=bool).tolist()
    if len(done) != pages:
        raise RuntimeError(f"{pages} blocks got {len(done)} results")
    return done


def transfer_ended(store: Any, task: Any, unknown: bool) -> bool:
    """Whether a transfer is known to touch no memory any more.

    unknown: the answer for a store that has forgotten the task. Where the wait gave block
    results, it forgot because the work is done; where the wait raised, it may have given up.
    """
    try:
        return bool(store.check(task))
    except Exception:
        return unknown


def _all_failed(pages: int) -> list[bool]:
    return [False] * pages
