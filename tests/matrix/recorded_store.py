"""The backend under test, with a record of every call that SGLang makes to it."""

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ucm.integration.sglang.unifiedcache_store import UnifiedCacheStore

CALLS: "list[Call]" = []
# Run once, before the next read: how a test takes a block away under SGLang's feet.
BEFORE_READ: list[Callable[[], None]] = []
REGISTRATIONS = (
    "register_mem_pool_host",
    "register_mem_host_pool_v2",
    "on_host_pools_registered",
)
TRANSFERS = ("batch_set_v1", "batch_get_v1", "batch_set_v2", "batch_get_v2")
QUERIES = ("exists", "batch_exists", "batch_exists_v2")
GENERIC = ("get", "batch_get", "set", "batch_set")
OTHERS = ("clear", "close", "get_stats")


@dataclass
class Call:
    name: str
    args: tuple
    kwargs: dict[str, Any]
    thread: str
    result: Any = None


class RecordedStore(UnifiedCacheStore):
    def __init__(self, *args, **kwargs):
        name = threading.current_thread().name
        CALLS.append(Call("__init__", args, kwargs, name))
        super().__init__(*args, **kwargs)


def _recorded(name):
    real = getattr(UnifiedCacheStore, name)

    @functools.wraps(real)
    def call(self, *args, **kwargs):
        entry = Call(name, args, kwargs, threading.current_thread().name)
        CALLS.append(entry)
        while "get" in name and BEFORE_READ:
            BEFORE_READ.pop()()
        entry.result = real(self, *args, **kwargs)
        return entry.result

    return call


for _name in (*REGISTRATIONS, *TRANSFERS, *QUERIES, *GENERIC, *OTHERS):
    if hasattr(UnifiedCacheStore, _name):
        setattr(RecordedStore, _name, _recorded(_name))


def calls(*names) -> list[Call]:
    return [call for call in CALLS if not names or call.name in names]
