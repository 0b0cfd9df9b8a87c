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
"""Where the counts of the pools go besides statistics(): Prometheus, UCM's metrics module."""

import functools
import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from ucm.integration.sglang import sglang_release
from ucm.integration.sglang.hicache_keys import KeyScheme
from ucm.integration.sglang.pool_stats import Exporter, PoolCounts

logger = logging.getLogger(__name__)

PREFIX = "hicache_"
_LABELS = ("model_name", "tp_rank", "pp_rank", "cp_rank", "pool")
_HELD_SAMPLES = 1024
_GIB = 1 << 30  # what SGLang's own backends call a GB


class CallSamples:
    """Pages and GiB/s of each call since SGLang asked last; the oldest go if it never asks."""

    def __init__(self):
        self._samples: deque[tuple[str, int, float]] = deque(maxlen=_HELD_SAMPLES)

    def add(
        self, side: str, began: float, moved: Iterable[tuple[int, list[bool]]]
    ) -> None:
        """side: "prefetch" or "backup". moved: each pool's bytes a page, and its results.

        A call counts the pages of its longest pool and the bytes of all.
        """
        seconds = time.perf_counter() - began
        counts = [(done.count(True), page_bytes) for page_bytes, done in moved]
        pages = max((pages for pages, _ in counts), default=0)
        if pages:
            moved_bytes = sum(pages * page_bytes for pages, page_bytes in counts)
            self._samples.append((side, pages, moved_bytes / seconds / _GIB))

    def drain(self) -> Any | None:
        """SGLang's StorageMetrics with the samples; None where this SGLang has none."""
        metrics = sglang_release.storage_metrics()
        while metrics is not None and self._samples:
            side, pages, speed = self._samples.popleft()
            getattr(metrics, f"{side}_pgs").append(pages)
            getattr(metrics, f"{side}_bandwidth").append(speed)
        return metrics


def exporters(keys: KeyScheme, sglang: bool, ucm_config: str) -> list[Exporter]:
    """sglang: whether the server exports metrics. ucm_config: metrics_config_path or ""."""
    found = []
    if sglang:
        found.append(_optional("--enable-metrics", _to_prometheus, keys))
    if ucm_config:
        found.append(_optional("metrics_config_path", _to_ucm, keys, ucm_config))
    return [export for export in found if export is not None]


def _optional(option: str, make: Any, *args: Any) -> Exporter | None:
    try:
        return make(*args)
    except Exception as e:
        logger.warning("%s: the counts of the pools are not exported: %r", option, e)
        return None


def _to_prometheus(keys: KeyScheme) -> Exporter:
    """Counters ucm:hicache_*_total at the server's own /metrics, labelled by pool and rank."""
    rank = (keys.model_name, keys.tp_rank, keys.pp_rank, keys.cp_rank)

    counters = _counters()

    @functools.cache
    def counter(name: str, pool: str) -> Any:
        return counters[name].labels(*rank, pool)

    def export(pool: str, changes: dict[str, float]) -> None:
        for name, change in changes.items():
            if change:
                counter(name, pool).inc(change)

    return export


@functools.lru_cache(maxsize=1)
def _counters() -> dict[str, Any]:
    """One set a process: Prometheus refuses to make a counter twice."""
    # Not before SGLang has set PROMETHEUS_MULTIPROC_DIR.
    from prometheus_client import Counter

    return {
        field.name: Counter(
            f"ucm:{PREFIX}{field.name}", f"L3 {field.name} of a pool", _LABELS
        )
        for field in fields(PoolCounts)
        if field.name != "last_error"
    }


def _to_ucm(keys: KeyScheme, config_path: str) -> Exporter:
    """Counters hicache_<pool>_<count> of ucmmetrics; it passes on those the file names."""
    from ucm.shared.metrics import ucmmetrics

    worker = f"tp{keys.tp_rank}_pp{keys.pp_rank}_cp{keys.cp_rank}"
    _stats_logger(keys.model_name, worker, config_path)

    def export(pool: str, changes: dict[str, float]) -> None:
        ucmmetrics.update_stats(
            {f"{PREFIX}{pool}_{name}": change for name, change in changes.items()}
        )

    return export


@functools.lru_cache(maxsize=1)
def _stats_logger(model: str, worker: str, config_path: str) -> Any:
    from ucm.observability import PrometheusStatsLogger

    return PrometheusStatsLogger(model, worker, config_path)
