"""The one place that knows which store is tested and where it keeps its files.

To test another store, write a class with these methods and return it from `adapter`.
"""

import re
from pathlib import Path

from kit import StoreSpec

_BLOCK = re.compile(r"[0-9a-f]{32}")


class PosixAdapter:
    """UCM's PosixStore behind its Python interface."""

    engines = ("psync", "aio")
    digits = 1

    def open(self, spec: StoreSpec, roots: list[Path]):
        from ucm.store.pipeline.connector import UcmPipelineStore

        return UcmPipelineStore(self.config(spec, roots))

    def config(self, spec: StoreSpec, roots: list[Path]) -> dict:
        return {
            "store_pipeline": "Posix",
            "storage_backends": [str(root) for root in roots],
            "device_id": 0,
            "tensor_size": spec.component,
            "shard_size": spec.shard_size,
            "block_size": spec.block_size,
            "posix_io_engine": spec.engine,
            "io_direct": spec.direct,
            "timeout_ms": spec.timeout_ms,
            "data_dir_shard_bytes": self.digits,
            "posix_data_trans_concurrency": spec.workers,
            "posix_lookup_concurrency": 4,
            "posix_open_concurrency": spec.workers,
        } | spec.options

    def lookup_only(self) -> dict:
        """Options of a store that answers lookups and moves nothing."""
        return {"device_id": -1}

    def syncing(self, how: str) -> dict:
        """Options that flush before publishing: none, data, or full (folder entry too)."""
        return {"posix_sync": how}

    def queue_depth(self, requests: int) -> dict:
        """Options that bound the requests of an asynchronous engine in flight."""
        return {"posix_aio_queue_depth": requests}

    def path(self, root: Path, block: bytes) -> Path:
        """Where the block lies; its folder is made, so that a test can put anything there."""
        name = block.hex()
        path = root / name[: self.digits] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def blocks(self, root: Path) -> set[str]:
        """Hex names of the visible blocks."""
        return {p.name for p in self._files(root) if _BLOCK.fullmatch(p.name)}

    def temporaries(self, root: Path) -> list[Path]:
        """Files of unfinished dumps."""
        return [p for p in self._files(root) if not _BLOCK.fullmatch(p.name)]

    def guessable(self, root: Path, block: bytes) -> list[Path]:
        """Names that someone else could expect a dump to write through."""
        path = self.path(root, block)
        return [path.with_name(path.name + ".tmp")]

    def _files(self, root: Path) -> list[Path]:
        return [p for p in root.rglob("*") if not p.is_dir() or p.is_symlink()]


def adapter() -> PosixAdapter:
    return PosixAdapter()
