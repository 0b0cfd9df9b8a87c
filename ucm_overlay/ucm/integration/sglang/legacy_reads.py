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
"""Makes failed sidecar reads count on SGLang releases that do not look at them.

Without this, 0.5.16 and earlier turn the stale host bytes of a failed read into cache.
"""

import threading
from collections.abc import Sequence
from typing import Any

from ucm.integration.sglang.hicache_keys import text
from ucm.integration.sglang.pool_registry import PoolRegistry
from ucm.integration.sglang.pool_store import PoolStore

_REMEMBERED = 1 << 16


class LegacyReads:
    """Inert from 0.5.17 on, where SGLang clamps or drops what failed."""

    def __init__(self, pools: PoolRegistry, version: tuple[int, int, int]):
        unread = (0, 5, 13) <= version <= (0, 5, 16)
        self._pools = pools
        # 0.5.13 to 0.5.16: results of pools that follow KV or SWA are not looked at.
        self._reload_kv_followers = unread
        self._fold_into_swa = unread
        # Up to 0.5.12: sidecars are read before the KV pages, and not looked at either.
        self._remember_failed = version <= (0, 5, 12)
        self._failed: dict[str, None] = {}
        self._lock = threading.Lock()

    def pools_read_with_kv(self) -> list[PoolStore]:
        """Pools that batch_get_v1 must load as well; it fails a page if one of them does."""
        if not self._reload_kv_followers:
            return []
        return [pool for pool in self._pools.following("kv") if pool is not None]

    def settle_sidecars(
        self, transfers: Sequence[Any], results: dict[str, list[bool]]
    ) -> None:
        """Carry failures of batch_get_v2 to where the release does look."""
        if not (self._remember_failed or self._fold_into_swa):
            return
        failed = {
            name: {key for key, ok in zip(keys, results[name], strict=False) if not ok}
            for name, keys in ((text(t.name), t.keys or []) for t in transfers)
        }
        if self._remember_failed:
            self._remember(set().union(*failed.values()), transfers)
        if self._fold_into_swa and "swa" in results:
            lost = set().union(
                *(keys for name, keys in failed.items() if self._follows_swa(name))
            )
            swa_keys = next(t.keys or [] for t in transfers if text(t.name) == "swa")
            results["swa"] = [
                ok and key not in lost
                for key, ok in zip(swa_keys, results["swa"], strict=False)
            ]

    def settle_kv(self, keys: Sequence[str], done: list[bool]) -> list[bool]:
        """Fail the KV pages whose sidecars failed just before."""
        if not self._remember_failed:
            return done
        with self._lock:
            lost = {key for key in keys if self._failed.pop(key, self) is None}
        return [ok and key not in lost for key, ok in zip(keys, done, strict=False)]

    def _follows_swa(self, name: str) -> bool:
        return self._pools.source_of(name) == "swa"

    def _remember(self, failed: set, transfers: Sequence[Any]) -> None:
        with self._lock:
            for transfer in transfers:
                for key in transfer.keys or []:
                    self._failed.pop(key, None)
            self._failed.update(dict.fromkeys(failed))
            while len(self._failed) > _REMEMBERED:
                self._failed.pop(next(iter(self._failed)))
