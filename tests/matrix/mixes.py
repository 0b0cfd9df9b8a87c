"""The pool mixes of the support table: what a model kind brings, and how its pages are asked for."""

from dataclasses import dataclass, field
from typing import Any

import host_pools
import torch
from host_pools import PAGE
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolTransfer

WINDOW = 2  # pages of a sliding window
NODES = (4, 2)  # pages of the two tree nodes that a test writes, one after the other
COUNT = sum(NODES)


@dataclass
class Sidecar:
    """A pool beside the anchor. `source`: whose slots it uses; "" for its own."""

    name: str
    pool: Any
    source: str = ""
    window: int = 0  # pages that decide, from the end; 0: all of them

    @property
    def policy(self) -> PoolHitPolicy:
        kind = "TRAILING_PAGES" if self.window else "ALL_PAGES"
        return getattr(PoolHitPolicy, kind)

    def stored(self) -> list[int]:
        """The pages that the tree hands over when it backs the nodes up."""
        pages, first = [], 0
        for count in NODES:
            end = first + count
            pages += range(end - self.window if self.window else first, end)
            first = end
        return pages

    def transfer(self, **fields) -> PoolTransfer:
        if self.source:
            fields["indices_from_pool"] = self.source
        known = PoolTransfer.__dataclass_fields__
        fields = {name: value for name, value in fields.items() if name in known}
        return PoolTransfer(name=member(self.name), hit_policy=self.policy, **fields)


@dataclass
class Mix:
    """One column of the support table. `kind`: the device pool, which decides is_mla_model."""

    anchor: Any
    kind: str
    sidecars: list[Sidecar] = field(default_factory=list)

    @property
    def pools(self) -> dict[str, Any]:
        return {"kv": self.anchor, **{s.name: s.pool for s in self.sidecars}}

    def fill(self, seed: int) -> "dict[str, Slots]":
        """Slots for every page in every pool that has slots, and random bytes in them."""
        slots = self.allocate()
        for offset, name in enumerate(self.pools):
            self.refill(name, slots, seed + offset)
        return slots

    def refill(self, name: str, slots: "dict[str, Slots]", seed: int) -> None:
        pool = self.pools[name]
        if host_pools.page_bytes(pool):
            data = host_pools.random_pages(pool, COUNT, seed)
            host_pools.write(pool, slots[name].starts, data)

    def allocate(self) -> "dict[str, Slots]":
        slots = {"kv": Slots.of(self.anchor)}
        for sidecar in self.sidecars:
            source = slots.get(sidecar.source)
            slots[sidecar.name] = source or Slots.of(sidecar.pool)
        return slots

    def contents(self, slots: "dict[str, Slots]") -> dict[str, torch.Tensor]:
        """Bytes [pages, page bytes] of every pool that has bytes."""
        pools = {n: p for n, p in self.pools.items() if host_pools.page_bytes(p)}
        return {n: host_pools.read(p, slots[n].starts) for n, p in pools.items()}


@dataclass
class Slots:
    """Host slots of COUNT pages of one pool."""

    indices: torch.Tensor
    tokens: int

    @classmethod
    def of(cls, pool) -> "Slots":
        return cls(pool.alloc(COUNT * pool.page_size), pool.page_size)

    @property
    def starts(self) -> torch.Tensor:
        return self.indices[:: self.tokens]

    def pages(self, first: int, end: int) -> torch.Tensor:
        return self.indices[first * self.tokens : end * self.tokens]


def member(text: str):
    """SGLang's own member for this name; the text where the release has none."""
    from sglang.srt.mem_cache.hicache_storage import PoolName

    return next((member for member in PoolName if member.value == text), text)


def plain_kv() -> Mix:
    return Mix(host_pools.mha(), "MHATokenToKVPool")


def kv_swa() -> Mix:
    swa = Sidecar("swa", host_pools.mha(heads=1), window=WINDOW)
    return Mix(host_pools.mha(), "MHATokenToKVPool", [swa])


def kv_mamba() -> Mix:
    mamba = Sidecar("mamba", host_pools.mamba(), window=1)
    return Mix(host_pools.mha(), "MHATokenToKVPool", [mamba])


def mla_indexer() -> Mix:
    if host_pools.find("NSAIndexerPoolHost", "DSAIndexerPoolHost") is None:
        return Mix(host_pools.mla_with_index_keys(), "NSATokenToKVPool")
    anchor = host_pools.mla()
    indexer = Sidecar("indexer", host_pools.indexer(anchor), source="kv")
    return Mix(anchor, "MLATokenToKVPool", [indexer])


def mla_kv() -> Mix:
    return Mix(host_pools.mla(), "MLATokenToKVPool")


def mla_mamba() -> Mix:
    mamba = Sidecar("mamba", host_pools.mamba(), window=1)
    return Mix(host_pools.mla(), "MLATokenToKVPool", [mamba])


def deepseek_v4() -> Mix:
    sidecars = [Sidecar("swa", host_pools.paged("swa", 64), window=WINDOW)]
    for part, row in (("c4", 32), ("c4_indexer", 16), ("c128", 8)):
        name = f"deepseek_v4_{part}"
        sidecars.append(Sidecar(name, host_pools.paged(name, row), source="kv"))
    for part in ("c4_state", "c4_indexer_state"):
        name = f"deepseek_v4_{part}"
        pool = host_pools.state(name)
        sidecars.append(Sidecar(name, pool, source="swa", window=WINDOW))
    return Mix(host_pools.logical(), "DeepSeekV4TokenToKVPool", sidecars)


MIXES = {
    "KV": plain_kv,
    "KV + SWA": kv_swa,
    "KV + MAMBA": kv_mamba,
    "MLA KV + INDEXER": mla_indexer,
    "DeepSeek V4": deepseek_v4,
}
# Not in the table: for what depends on how pools are spread over ranks.
RANK_MIXES = {**MIXES, "MLA KV": mla_kv, "MLA KV + MAMBA": mla_mamba}
TOKENS = COUNT * PAGE
