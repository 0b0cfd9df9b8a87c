"""What is moved and looked up: pools, page sizes, page counts. Data only; no torch, no ucm."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

MODEL = "bench/model"
KV = "kv"
FOLDER_DIGITS = 2


@dataclass(frozen=True)
class Pool:
    """One host pool. components: bytes of each piece of a page, in order."""

    name: str
    components: tuple[int, ...]
    kind: str = "paged"
    layers: int = 1
    tokens: int = 64

    @property
    def page_bytes(self) -> int:
        return sum(self.components)

    @property
    def aligned(self) -> bool:
        return all(size % 4096 == 0 for size in self.components)

    @property
    def stored(self) -> tuple[int, int]:
        """(component bytes, components) of a block; MAMBA is flattened."""
        if self.kind == "mamba":
            return self.page_bytes, 1
        return self.components[0], len(self.components)

    @property
    def folder(self) -> str:
        """Below a storage backend; the primary KV lies at its root."""
        size, count = self.stored
        return "" if self.name == KV else f"sglang_v2/{self.name}_{size}x{count}"


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    pools: tuple[Pool, ...]
    pages: int

    @property
    def bytes(self) -> int:
        return self.pages * sum(pool.page_bytes for pool in self.pools)

    @property
    def aligned(self) -> bool:
        return all(pool.aligned for pool in self.pools)

    def of(self, pages: int, pools: int | None = None) -> "Workload":
        return replace(self, pages=pages, pools=self.pools[:pools])


V4 = Workload(
    "v4",
    "DeepSeek V4 Flash, six pools",
    (
        Pool("swa", (6589440,), layers=44, tokens=256),
        Pool("deepseek_v4_c4", (786240,), layers=21, tokens=256),
        Pool("deepseek_v4_c4_indexer", (177408,), layers=21, tokens=256),
        Pool("deepseek_v4_c4_state", (2752512,), "state", layers=21, tokens=256),
        Pool("deepseek_v4_c4_indexer_state", (688128,), "state", 21, 256),
        Pool("deepseek_v4_c128", (34560,), layers=20, tokens=256),
    ),
    pages=32,
)
MHA = Workload(
    "mha",
    "MHA pages of 2 x 256 KiB",
    (Pool("swa", (262144, 262144), "mha", layers=2),),
    pages=128,
)
ANCHOR = Workload(
    "kv",
    "MHA pages of 2 x 256 KiB as the primary KV (v1 calls)",
    (Pool(KV, (262144, 262144), "mha", layers=2),),
    pages=128,
)
SMALL = Workload(
    "small", "small pages of 16 KiB", (Pool("indexer", (16384,)),), pages=1024
)
MAMBA = Workload(
    "mamba",
    "MAMBA pages of 28,085,760 bytes",
    (Pool("mamba", (27131904, 953856), "mamba", layers=23, tokens=1),),
    pages=16,
)
MANY = Workload(
    "pools",
    "pools of 16 KiB pages",
    tuple(Pool(f"pool_{i:02}", (16384,)) for i in range(20)),
    pages=64,
)
LOOKUPS = Workload(
    "exists",
    "KV and five sidecar pools, tiny pages",
    (
        Pool(KV, (512, 512), "mha", tokens=4),
        Pool("indexer", (512,)),
        Pool("draft", (512,)),
        Pool("draft_indexer", (512,)),
        Pool("swa", (512,)),
        Pool("mamba", (1200, 192), "mamba", layers=2, tokens=1),
    ),
    pages=1,
)
# How the last two answer: only the last pages of a prefix must be there.
TRAILING = {"swa": 8, "mamba": 1}
CHECKPOINT = 64


@dataclass(frozen=True)
class Place:
    """Where the files lie and how the page cache stands when a transfer starts."""

    name: str
    memory: bool = False
    cold: bool = False
    direct: bool = False


PLACES = (
    Place("memory (tmpfs), warm", memory=True),
    Place("disk, page cache warm"),
    Place("disk, page cache dropped", cold=True),
    Place("disk, O_DIRECT", direct=True),
)


@dataclass(frozen=True)
class Site:
    """The folders and names of one deployment, derived here and not by what is tested."""

    root: str
    rank: int = 0
    ranks: int = 1

    @property
    def backend(self) -> str:
        return os.path.join(self.root, "ucm")

    @property
    def file_backend(self) -> str:
        return os.path.join(self.root, "hicache_file")

    def folder(self, pool: Pool) -> str:
        return os.path.join(self.backend, pool.folder)

    def ids(self, pool: Pool, keys: Sequence[str]) -> list[bytes]:
        """16 bytes a key, as docs/design.md defines them for pools split over TP ranks."""
        place = f"{self.rank}_{self.ranks}"
        suffix = f"_{MODEL.replace('/', '-')}_{place}"
        if pool.name != KV:
            suffix += f"__v2_tp_{place}__pool_{pool.name}__component_0"
        return [hashlib.md5((key + suffix).encode()).digest() for key in keys]

    def paths(self, pool: Pool, keys: Sequence[str]) -> list[str]:
        folder = self.folder(pool)
        names = [block.hex() for block in self.ids(pool, keys)]
        return [f"{folder}/{name[:FOLDER_DIGITS]}/{name}" for name in names]

    def file_paths(self, pool: Pool, keys: Sequence[str]) -> list[str]:
        """The files of SGLang's HiCacheFile."""
        part = "" if pool.name == KV else f".{pool.name}"
        tail = f"{part}_{MODEL.replace('/', '-')}_{self.rank}_{self.ranks}.bin"
        return [f"{self.file_backend}/{key}{tail}" for key in keys]

    def make(self, pools: Sequence[Pool]) -> None:
        """Every folder, so that no contestant makes one while the clock runs."""
        os.makedirs(self.file_backend, exist_ok=True)
        for pool in pools:
            folder = self.folder(pool)
            for n in range(16**FOLDER_DIGITS):
                name = f"{n:0{FOLDER_DIGITS}x}"
                os.makedirs(os.path.join(folder, name), exist_ok=True)


def keys(tag: str, count: int) -> list[str]:
    """Page hashes as SGLang makes them: 64 hex digits."""
    return [
        hashlib.sha256(f"{tag} {page}".encode()).hexdigest() for page in range(count)
    ]
