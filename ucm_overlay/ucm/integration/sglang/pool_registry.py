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
"""The sidecar pools of one connector: registration, refusal, lookup by name."""

import logging
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ucm.integration.sglang import sglang_release
from ucm.integration.sglang.hicache_keys import (
    index_source,
    is_known_pool,
    is_replicated_pool,
    pool_name,
    text,
)
from ucm.integration.sglang.page_layout import LayoutError, has_mla_pages
from ucm.integration.sglang.pool_store import FailureLog, PoolStore
from ucm.integration.sglang.store_factory import StoreFactory

logger = logging.getLogger(__name__)


class PoolRegistry:
    """Reads take no lock: every change replaces the mapping."""

    def __init__(self, factory: StoreFactory):
        self._factory = factory
        self._lock = threading.Lock()
        self._closed = False
        self._stores: Mapping[str, PoolStore] = MappingProxyType({})
        self._refused: dict[str, PoolStore] = {}
        self._sources: dict[str, str] = {}
        self._gc_options_named = False
        self._missing: dict[str, FailureLog] = {}

    def register(self, raw_name: Any, pool: Any) -> PoolStore:
        """Give the pool a store of its own; the same pool again changes nothing.

        Raises ValueError, and then has left no folder, thread or file behind.
        """
        name = pool_name(raw_name)
        try:
            with self._lock:
                return self._register(name, pool)
        except ValueError:
            raise
        except Exception as e:  # a host pool's own accessors can raise anything
            raise LayoutError(f"pool {name!r} cannot be read: {e!r}") from e

    def _register(self, name: str, pool: Any) -> PoolStore:
        if self._closed:
            raise LayoutError(f"pool {name!r}: the backend is closed, attach it again")
        store = self._stores.get(name)
        if store is not None:
            store.regauge(pool)
            return store
        replicated = self._is_replicated(name, pool)
        store = self._factory.open_sidecar(name, pool, replicated)
        self._name_dropped_options()
        # In this order: no reader may miss the pool in both.
        self._replace({**self._stores, name: store})
        self._refused.pop(name, None)
        return store

    def refuse(self, raw_name: Any) -> None:
        """Stop serving a pool: whatever needs it is a miss from now on."""
        name = text(raw_name)
        with self._lock:
            # Calls in flight may still use its store, so that close() closes it.
            self._refused[name] = self._stores.get(name, self._refused.get(name))
            self._replace({k: v for k, v in self._stores.items() if k != name})

    def get(self, name: str) -> PoolStore | None:
        return self._stores.get(name)

    def tell_missing(self, name: str, pages: int) -> None:
        """Log that a transfer named a pool without a store."""
        cause = LookupError("refused" if name in self._refused else "not registered")
        log = self._missing.setdefault(name, FailureLog(name))
        log.report("transfer", pages, pages, cause)

    def names(self) -> list[str]:
        return list(self._stores)

    def stores(self) -> list[PoolStore]:
        return list(self._stores.values())

    def note_sources(self, transfers: Sequence[Any]) -> None:
        """Remember whose indices a pool uses; later releases do not always say."""
        for transfer in transfers:
            source = getattr(transfer, "indices_from_pool", None)
            if source is not None:
                self._sources[text(transfer.name)] = text(source)

    def following(self, source: str) -> list[PoolStore | None]:
        """Stores of the pools that use the indices of source; None for a refused one."""
        names = [*self._stores, *self._refused]
        return [self.get(name) for name in names if self.source_of(name) == source]

    def close(self) -> None:
        with self._lock:
            stores = [*self._stores.values(), *filter(None, self._refused.values())]
            self._closed = True
            self._refused.clear()
            self._replace({})
        for store in stores:
            store.close()

    def source_of(self, name: str) -> str | None:
        return self._sources.get(name) or index_source(name)

    def _replace(self, stores: dict[str, PoolStore]) -> None:
        self._stores = MappingProxyType(stores)

    def _is_replicated(self, name: str, pool: Any) -> bool:
        keys = self._factory.keys
        if is_replicated_pool(name, keys.replicated, has_mla_pages(pool)):
            return True
        if not keys.replicated:
            return False
        if not is_known_pool(name):
            logger.warning("pool %s is unknown: its pages are keyed by TP rank", name)
        if keys.tp_size > 1 and sglang_release.only_rank_zero_writes(
            name, sglang_release.release()
        ):
            logger.warning(
                "L3 is off for this deployment: pool %s is split over %d TP ranks and "
                "only rank 0 writes it, so no prefix that needs it can be restored",
                name,
                keys.tp_size,
            )
        return False

    def _name_dropped_options(self) -> None:
        dropped = self._factory.config.gc_options
        if dropped and not self._gc_options_named:
            self._gc_options_named = True
            logger.warning(
                "sidecar pools take no garbage collection settings; dropped for them: %s. "
                "The option sidecar_capacity_gb bounds them",
                ", ".join(dropped),
            )
