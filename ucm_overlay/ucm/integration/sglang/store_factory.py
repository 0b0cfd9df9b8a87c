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
"""Opens the store of one pool: claims its folders, creates it, and undoes both on failure."""

import logging
from collections.abc import Sequence
from typing import Any

from ucm.integration.sglang import format_marker, sglang_release
from ucm.integration.sglang.format_marker import PageFormat
from ucm.integration.sglang.hicache_config import HicacheConfig
from ucm.integration.sglang.hicache_keys import KeyScheme
from ucm.integration.sglang.page_layout import LayoutError, PageLayout, probe
from ucm.integration.sglang.pool_stats import Exporter
from ucm.integration.sglang.pool_store import (
    AnchorStore,
    FlattenedPoolStore,
    PoolStore,
    ZeroCopyPoolStore,
)
from ucm.store.factory_v1 import UcmConnectorFactoryV1

logger = logging.getLogger(__name__)

KV = "kv"
MAMBA = "mamba"


class StoreFactory:
    """Makes every store of one deployment. Each call raises ValueError with the reason."""

    def __init__(
        self,
        config: HicacheConfig,
        keys: KeyScheme,
        exporters: Sequence[Exporter] = (),
    ):
        self.config = config
        self.keys = keys
        self._exporters = exporters

    def open_anchor(self, pool: Any) -> PoolStore:
        """The primary KV's store: v1 keys, folders and options."""
        if sglang_release.index_keys_missing_from_pages(pool, sglang_release.release()):
            raise LayoutError(
                "pool 'kv': this SGLang keeps DSA index keys outside the pages it stores; "
                "use SGLang 0.5.11 or later"
            )
        layout = probe(pool, KV)
        options = self.config.anchor_store(layout)
        suffix = self.keys.anchor_suffix()
        owner = self.keys.owner(self.keys.replicated)
        return self._open(AnchorStore, KV, pool, layout, suffix, owner, options)

    def open_sidecar(self, name: str, pool: Any, replicated: bool) -> PoolStore:
        """A store of its own, below the namespace that pool name and page size make."""
        layout = probe(pool, name, flattened=name == MAMBA)
        options = self.config.sidecar_store(name, layout)
        suffix = self.keys.sidecar_suffix(name, replicated)
        owner = self.keys.owner(replicated)
        return self._open(ZeroCopyPoolStore, name, pool, layout, suffix, owner, options)

    def _open(
        self,
        kind: type[PoolStore],
        name: str,
        pool: Any,
        layout: PageLayout,
        suffix: str,
        owner: int,
        options: dict[str, Any],
    ) -> PoolStore:
        """Markers first, so that no block is ever without one."""
        kind = FlattenedPoolStore if layout.flattened else kind
        page_format = PageFormat.of(pool, layout, self.keys.model_name)
        made = format_marker.claim(options["storage_backends"], suffix, page_format)
        try:
            # No local may hold the native store: UCM's logger keeps its callers' frames
            # alive, and with them threads that close() is to end.
            opened = kind(
                name,
                pool,
                layout,
                page_format,
                suffix,
                format_marker.Marked(options["storage_backends"], suffix, page_format),
                self._create(name, options),
                self._exporters,
            )
        except BaseException:
            format_marker.release(made)
            raise
        _tell(opened, owner, options)
        return opened

    def _create(self, name: str, options: dict[str, Any]) -> Any:
        """The native store; an error tells the pool, the cause and the threads it wants."""
        try:
            return UcmConnectorFactoryV1.create_connector(
                self.config.connector_name, options, self.config.module_path
            )
        except Exception as e:
            raise ValueError(
                f"pool {name!r}: no store at {options['storage_backends']}: {e}. It uses "
                f"up to {options.get('posix_data_trans_concurrency', 128)} threads, which the "
                "stores of a process share (option posix_data_trans_concurrency)"
            ) from e


def _tell(store: PoolStore, owner: int, options: dict[str, Any]) -> None:
    layout = store.layout
    logger.info(
        "L3 pool %s: pages of %d x %d = %d bytes, %s, engine %s, direct I/O %s, "
        "owner rank %d, in %s",
        store.name,
        layout.component_count,
        layout.component_size,
        layout.page_bytes,
        "flattened" if layout.flattened else "zero-copy",
        options.get("posix_io_engine", "psync"),
        "on" if options.get("io_direct") else "off",
        owner,
        ", ".join(store.folders),
    )
