"""Compiles kernel.c and gives it lists of files: what the same system calls cost without a store."""

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("kernel.c")
KINDS = {"set": 0, "get": 1, "lookup": 2}
_OP = np.dtype(
    [("path", "u8"), ("temp", "u8"), ("pieces", "u8")]
    + [("size", "u8"), ("count", "i4"), ("error", "i4")],
    align=True,
)
_PIECE = np.dtype([("base", "u8"), ("len", "u8")])


def library(build: Path) -> ctypes.CDLL:
    """The compiled kernel.c; compiled into `build` unless it is there already."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    made = build / f"kernel-{digest}.so"
    if not made.exists():
        build.mkdir(parents=True, exist_ok=True)
        temporary = made.with_suffix(f".{os.getpid()}")
        flags = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]
        command = [os.environ.get("CC", "cc"), *flags, "-o", temporary, SOURCE]
        subprocess.run(command, check=True)
        temporary.rename(made)
    lib = ctypes.CDLL(str(made))
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    lib.kernel_open.restype, lib.kernel_open.argtypes = pointer, [number]
    lib.kernel_close.restype, lib.kernel_close.argtypes = None, [pointer]
    lib.kernel_run.restype = lib.kernel_inline.restype = None
    lib.kernel_run.argtypes = [pointer, pointer, size, number, number]
    lib.kernel_inline.argtypes = [pointer, size, number, number]
    lib.kernel_resident.restype = ctypes.c_double
    lib.kernel_resident.argtypes = [ctypes.c_char_p]
    return lib


@dataclass(frozen=True)
class FileOps:
    """System calls on some files, ready to run: everything they point to is kept alive."""

    table: np.ndarray
    kept: tuple

    @classmethod
    def of(
        cls,
        paths: Sequence[str],
        size: int | np.ndarray,
        pointers: np.ndarray | None = None,
        sizes: Sequence[int] = (),
    ) -> "FileOps":
        """One operation per path; pointers: uint64 [files, components] of these `sizes`.

        A set writes beside the file and renames there: the kernel takes one lock per folder, and
        one per file system where a rename changes the folder.
        """
        table = np.zeros(len(paths), dtype=_OP)
        table["size"] = size
        temps = [f"{path}.{os.getpid()}" for path in paths]
        texts = [_strings(paths), _strings(temps)]
        table["path"], table["temp"] = texts[0][1], texts[1][1]
        pieces = np.zeros(0, dtype=_PIECE)
        if pointers is not None:
            pieces = np.zeros(pointers.shape, dtype=_PIECE)
            pieces["base"], pieces["len"] = pointers, np.asarray(sizes, np.uint64)
            step = pieces.strides[0]
            table["pieces"] = pieces.ctypes.data + np.arange(len(paths)) * step
            table["count"] = pointers.shape[1]
        return cls(table, (texts, pieces))

    @classmethod
    def join(cls, parts: Sequence["FileOps"]) -> "FileOps":
        table = np.concatenate([part.table for part in parts])
        return cls(table, tuple(parts))

    @property
    def done(self) -> np.ndarray:
        """bool [files]: which operations of the last run succeeded."""
        return self.table["error"] == 0

    def errors(self) -> str:
        codes = sorted({int(e) for e in self.table["error"] if e})
        return ", ".join(f"{c} {os.strerror(c)}" for c in codes)


def _strings(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(bytes that hold them, address of each), for C."""
    encoded = [os.fsencode(text) + b"\0" for text in texts]
    buffer = np.frombuffer(b"".join(encoded) or b"\0", dtype=np.uint8).copy()
    ends = np.cumsum([0] + [len(e) for e in encoded])[: len(encoded)]
    return buffer, ends.astype(np.uint64) + np.uint64(buffer.ctypes.data)


class Kernel:
    """A pool of `threads` threads, or the calling thread alone for 0."""

    def __init__(self, build: Path, threads: int) -> None:
        self._lib = library(build)
        self._pool = self._lib.kernel_open(threads) if threads else None
        if threads and not self._pool:
            raise OSError(f"{threads} threads could not be started")

    def run(self, kind: str, ops: FileOps, direct: bool = False) -> None:
        where = (ops.table.ctypes.data, len(ops.table), KINDS[kind], int(direct))
        if self._pool:
            self._lib.kernel_run(self._pool, *where)
        else:
            self._lib.kernel_inline(*where)

    def resident(self, path: Path | str) -> float:
        """The part of the file that the page cache holds, 0 to 1."""
        return self._lib.kernel_resident(os.fsencode(path))

    def close(self) -> None:
        if self._pool:
            self._lib.kernel_close(self._pool)
            self._pool = None
