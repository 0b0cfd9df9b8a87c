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
"""What differs between SGLang releases, in one place."""

import re
from dataclasses import fields
from importlib import import_module
from typing import Any

SUPPORTED = "SGLang 0.5.10 to 0.5.23"


def _host_pool_class() -> type:
    """SGLang's host pool class, which 0.5.19 moved."""
    for module in ("memory_pool_host", "pool_host"):
        try:
            return import_module(f"sglang.srt.mem_cache.{module}").HostKVCache
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"no HostKVCache in this SGLang; supported are {SUPPORTED}")


_NEWEST = (99, 0, 0)


def __getattr__(name: str) -> type:
    """HostKVCache, when it is asked for: the tool for operators runs without SGLang."""
    if name == "HostKVCache":
        return _host_pool_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def release() -> tuple[int, int, int]:
    """The installed SGLang as (0, 5, patch); a development tree counts as the newest."""
    try:
        from sglang.version import __version__ as text
    except ImportError:
        return _NEWEST
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    numbers = tuple(int(part) for part in found.groups()) if found else (0, 0, 0)
    return numbers if numbers > (0, 0, 0) else _NEWEST


def only_rank_zero_writes(name: str, version: tuple[int, int, int]) -> bool:
    """Whether SGLang lets one rank write this sharded pool beside a replicated anchor."""
    return name != "mamba" or version <= (0, 5, 16)


def index_keys_missing_from_pages(pool: Any, version: tuple[int, int, int]) -> bool:
    """0.5.10 keeps DSA index keys beside the MLA pages, where no page call reaches them."""
    kinds = [cls.__name__ for cls in type(pool).__mro__]
    return version <= (0, 5, 10) and "NSATokenToKVPoolHost" in kinds


def fp8_element_type() -> str:
    """The server's fp8 KV type; "" for other types, or where no server runs.

    Host pools hold both fp8 kinds as uint8.
    """
    try:
        try:
            from sglang.srt.runtime_context import get_server_args
        except ImportError:
            from sglang.srt.server_args import get_global_server_args as get_server_args
        kind = str(get_server_args().kv_cache_dtype)
    except Exception:
        return ""
    return kind if kind.startswith("fp8") else ""


def hit_result(result_class: type, boundaries: dict[str, int], ends: list[int]) -> Any:
    """A PoolTransferResult with the fields that this release's class has."""
    result = result_class(ends[-1] if ends else 0, boundaries)
    if any(field.name == "restorable_prefix_pages" for field in fields(result_class)):
        result.restorable_prefix_pages = ends
    return result


def storage_metrics() -> Any | None:
    """An empty StorageMetrics; None where this SGLang has none."""
    try:
        module = import_module("sglang.srt.observability.metrics_collector")
    except ImportError:
        return None
    return module.StorageMetrics()
