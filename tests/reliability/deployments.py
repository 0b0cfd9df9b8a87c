"""Connectors on one root, and pages whose every byte tells what it belongs to."""

import ctypes
import hashlib
import os
import random
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import hicache_kit as kit
import numpy as np
import pytest
import torch
from adapter import PosixAdapter
from hosts import Process

POISON, WRITERS = 0xEE, 8
_STEP = np.uint64(0x9E3779B97F4A7C15)


class Wrong(AssertionError):
    """A byte or an answer that is not right; says where, and with which seed."""


def known_bytes(size: int, *owner: object) -> np.ndarray:
    """`size` bytes; those of two owners differ in every 8 of them."""
    digest = hashlib.blake2b(repr(owner).encode(), digest_size=8).digest()
    words = np.arange(-(-size // 8), dtype=np.uint64) * _STEP
    return (words + np.frombuffer(digest, np.uint64)).view(np.uint8)[:size]


class Deployment:
    """One attached connector. `rank`: what tells its bytes from those of other TP ranks."""

    def __init__(
        self, site: kit.Site, anchor, pools: dict, model="org/model", **config
    ):
        # After a fork torch makes its threads anew, which two threads may not do at once.
        torch.set_num_threads(1)
        self.site, self.anchor, self.pools = site, anchor, pools
        self.store = site.attach(anchor, pools, model=model, **config)
        self.owner = (model, config.get("tp", (0, 1)))
        if anchor.kv_buffer is not None:
            self.pools = {"kv": anchor, **pools}
        self.sizes = {name: kit.page_bytes(pool) for name, pool in self.pools.items()}

    def expected(self, name: str, key: str, writer: int) -> np.ndarray:
        return known_bytes(self.sizes[name], *self.owner, name, key, writer)

    def fill(self, keys: Sequence[str], pages: Sequence[int], writer: int = 0) -> None:
        for name, pool in self.pools.items():
            for key, page in zip(keys, pages, strict=True):
                data = self.expected(name, key, writer)
                kit.write(pool, page, torch.from_numpy(data.copy()))

    def put(self, keys, pages, writer: int = 0) -> dict[str, list[bool]]:
        self.fill(keys, pages, writer)
        return self._move("set", keys, pages)

    def get(self, keys, pages) -> dict[str, list[bool]]:
        """Into poisoned pages; check() tells whether they are right."""
        for pool in self.pools.values():
            kit.poison(pool, pages, POISON)
        return self._move("get", keys, pages)

    def _move(self, op: str, keys, pages) -> dict[str, list[bool]]:
        sidecars = [n for n in self.pools if n != "kv"]
        moved = [kit.transfer(n, self.pools[n], keys, pages) for n in sidecars]
        found = dict(getattr(self.store, f"batch_{op}_v2")(moved))
        if "kv" in self.pools:
            slots = kit.slots(self.anchor, pages)
            found["kv"] = getattr(self.store, f"batch_{op}_v1")(keys, slots)
        return found

    def present(self, keys: Sequence[str]) -> dict[str, set[str]]:
        """The keys that SGLang is told are there; a sidecar's only where primary KV is."""
        found = {}
        if "kv" in self.pools:
            keys = [key for key in keys if self.store.exists(key)]
            found["kv"] = set(keys)
        for name in self.pools.keys() - found.keys():
            # With a window of one page, a length can be restored where its last page is there.
            asked = kit.query(name, kit.TRAILING, window=1)
            ends = self.store.batch_exists_v2(keys, [asked]).restorable_prefix_pages
            found[name] = {keys[end - 1] for end in ends}
        return found

    def check(self, keys, pages, found: dict[str, list[bool]], seed: object) -> int:
        """Pages that are True hold one writer's bytes, whole. The number of bytes compared."""
        compared = 0
        for name, done in found.items():
            for key, page, moved in zip(keys, pages, done, strict=True):
                if moved:
                    self._check_page(name, key, page, seed)
                    compared += self.sizes[name]
        return compared

    def _check_page(self, name: str, key: str, page: int, seed: object) -> None:
        data = kit.read(self.pools[name], page).numpy()
        head = data[:8].tobytes()
        for writer in range(WRITERS):
            if known_bytes(8, *self.owner, name, key, writer).tobytes() == head:
                wrong = np.flatnonzero(data != self.expected(name, key, writer))
                break
        else:
            wrong = np.arange(1)
        if wrong.size:
            raise Wrong(
                f"seed {seed}: pool {name}, key {key}: {wrong.size} wrong bytes of "
                f"{data.size}, the first at {wrong[0]}"
            )


def keys_of(count: int, tag: object = "") -> list[str]:
    """Page hashes as SGLang makes them."""
    return [hashlib.sha256(f"{tag}/{i}".encode()).hexdigest() for i in range(count)]


def temporaries(root: Path) -> list[Path]:
    """What unfinished writes left: neither a block nor a page format marker."""
    return [p for p in PosixAdapter().temporaries(root) if p.suffix != ".json"]


def blocks(root: Path) -> list[Path]:
    names = PosixAdapter().blocks(root)
    return [path for path in root.rglob("*") if path.name in names]


def rss() -> int:
    """Bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def counts() -> dict[str, int]:
    """What a process holds while nothing is going on."""
    return {"threads": kit.threads(), "descriptors": kit.descriptors(), "rss": rss()}


def chunks(items: Iterable, size: int) -> list[list]:
    items = list(items)
    return [items[i : i + size] for i in range(0, len(items), size)]


def picks(seed: object, *more: object) -> random.Random:
    """The random choices of one worker."""
    return random.Random(repr((seed, *more)))


def die_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def alone(call: Callable, limit: float):
    """The result of `call`, made in a process of its own; what that started ends with it.

    Raises Wrong for an exception, a crash or a hang, and pytest's Skipped for a skip.
    """

    def run():
        os.setsid()
        die_with_parent()
        return call()

    process = Process(run)
    try:
        value, error = process.outcome(limit)
    finally:
        for end in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                end(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
    if error and error.startswith("Skipped: "):
        pytest.skip(error.removeprefix("Skipped: "))
    if error:
        raise Wrong(error)
    return value
