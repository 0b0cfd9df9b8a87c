"""What the tests say about any store: its geometry, host pages, keys and transfers."""

import hashlib
import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

PAGE = 4096
GUARD = 0xEE


@dataclass(frozen=True)
class StoreSpec:
    """Geometry and settings of one store; sizes in bytes."""

    engine: str = "psync"
    direct: bool = False
    component: int = 16384
    components: int = 2
    shards: int = 1
    timeout_ms: int = 30000
    workers: int = 4
    options: dict = field(default_factory=dict)

    @property
    def shard_size(self) -> int:
        return self.component * self.components

    @property
    def block_size(self) -> int:
        return self.shard_size * self.shards


def key(name: object) -> bytes:
    return hashlib.md5(str(name).encode()).digest()


def keys(n: int, prefix: str = "k") -> list[bytes]:
    return [key(f"{prefix}{i}") for i in range(n)]


class Pages:
    """Host memory for `n` blocks: page-aligned components with guard bytes between them."""

    def __init__(self, spec: StoreSpec, n: int, seed: int | None = None) -> None:
        self.spec, self.n = spec, n
        self.rows = n * spec.shards
        self.stride = (spec.component + PAGE) // PAGE * PAGE + PAGE
        size = max(1, self.rows * spec.components) * self.stride
        self.map = mmap.mmap(-1, size)
        shape = (-1, spec.components, self.stride)
        flat = np.frombuffer(self.map, dtype=np.uint8)
        self.memory = flat[: self.rows * spec.components * self.stride].reshape(shape)
        self.memory[:] = GUARD
        self.fill(0 if seed is None else None, seed)

    @property
    def data(self) -> np.ndarray:
        """View of shape (rows, components, component): row = block * shards + shard."""
        return self.memory[:, :, : self.spec.component]

    def fill(self, value: int | None, seed: int | None = None) -> None:
        if value is not None:
            self.data[:] = value
            return
        size = self.data.shape
        self.data[:] = np.random.default_rng(seed).integers(0, 256, size, np.uint8)

    def pointers(self) -> np.ndarray:
        """uint64 of shape (rows, components)."""
        first = np.uint64(self.memory.ctypes.data)
        steps = np.arange(self.rows * self.spec.components, dtype=np.uint64)
        grid = first + steps * np.uint64(self.stride)
        return grid.reshape(self.rows, self.spec.components)

    def block(self, i: int) -> bytes:
        shards = self.spec.shards
        return self.data[i * shards : (i + 1) * shards].tobytes()

    def guards_intact(self) -> bool:
        return bool((self.memory[:, :, self.spec.component :] == GUARD).all())


def rows(ids: list[bytes], spec: StoreSpec) -> tuple[list[bytes], list[int]]:
    """One row per shard, block by block."""
    expanded = [i for i in ids for _ in range(spec.shards)]
    return expanded, list(range(spec.shards)) * len(ids)


def start_dump(store, ids: list[bytes], pages: Pages):
    """The task; `pages` must outlive it."""
    return store.dump_data(*rows(ids, pages.spec), pages.pointers())


def start_load(store, ids: list[bytes], pages: Pages):
    """The task; `pages` must outlive it."""
    return store.load_data(*rows(ids, pages.spec), pages.pointers())


def dump(store, ids: list[bytes], pages: Pages) -> None:
    store.wait(start_dump(store, ids, pages))


def load(store, ids: list[bytes], pages: Pages) -> None:
    store.wait(start_load(store, ids, pages))


def stored(store, spec: StoreSpec, n: int, prefix: str = "k", seed: int = 1):
    """Dump `n` blocks of random bytes; their ids and pages."""
    ids, pages = keys(n, prefix), Pages(spec, n, seed)
    dump(store, ids, pages)
    return ids, pages


def found(store, ids: list[bytes]) -> list[bool]:
    return [bool(x) for x in store.lookup(ids)]


def statuses(store, task, n: int) -> list[bool]:
    """Waits; one bool for each of the task's `n` rows, True where its bytes moved."""
    if hasattr(store, "wait_blocks"):
        return [bool(x) for x in store.wait_blocks(task)]
    try:
        store.wait(task)
        return [True] * n
    except RuntimeError:
        return [False] * n


def load_statuses(store, ids: list[bytes], pages: Pages) -> list[bool]:
    return statuses(store, start_load(store, ids, pages), len(pages.memory))


def dump_statuses(store, ids: list[bytes], pages: Pages) -> list[bool]:
    return statuses(store, start_dump(store, ids, pages), len(pages.memory))


def error_of(call: Callable, *kinds: type) -> str:
    """The text of the error of one of `kinds` (RuntimeError) that `call` raises."""
    expected = kinds or (RuntimeError,)
    try:
        result = call()
    except expected as error:
        return str(error)
    raise AssertionError(f"no error, returned {result!r}")


def seconds(call: Callable) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


def until(condition: Callable[[], bool], limit: float = 5.0) -> bool:
    """Poll until true; False when it is not within `limit` seconds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Background(threading.Thread):
    """Runs `call` in a thread and keeps what it returned or raised."""

    def __init__(self, call: Callable) -> None:
        super().__init__(daemon=True)
        self.call, self.result, self.error = call, None, None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.call()
        except Exception as error:
            self.error = error.with_traceback(None)  # its frames would keep the store

    def finished(self, limit: float = 0.0) -> bool:
        self.join(limit)
        return not self.is_alive()
