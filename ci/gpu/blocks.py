"""The blocks of a store's folder, pool by pool: count, spoil, put back. A block is one page of one pool."""

import os
import re
import shutil
from collections import Counter
from pathlib import Path

BLOCK = re.compile(r"[0-9a-f]{32}")


def listing(root: Path) -> dict[str, list[Path]]:
    """Pool name -> its whole blocks. The primary KV lies beside the folder of the sidecars."""
    found: dict[str, list[Path]] = {}
    for folder, names, files in os.walk(root):
        # Blocks that are being written, and markers.
        names[:] = [name for name in names if not name.startswith(".")]
        parts = Path(folder).relative_to(root).parts
        pool = (
            parts[1].rsplit("_", 1)[0]
            if parts[:1] == ("sglang_v2",) and parts[1:]
            else "kv"
        )
        blocks = [Path(folder) / name for name in files if BLOCK.fullmatch(name)]
        if blocks:
            found.setdefault(pool, []).extend(blocks)
    return found


def counts(root: Path) -> dict[str, int]:
    return {pool: len(blocks) for pool, blocks in sorted(listing(root).items())}


def namespaces(root: Path) -> list[dict]:
    """Each sidecar's folder, its blocks, and whether every one has the size the name promises."""
    rows = []
    for folder in sorted((root / "sglang_v2").glob("*")):
        size, number = folder.name.rsplit("_", 1)[1].split("x")
        sizes = Counter(
            path.stat().st_size
            for path in folder.rglob("*")
            if BLOCK.fullmatch(path.name)
        )
        rows.append(
            {
                "folder": folder.name,
                "blocks": sum(sizes.values()),
                "as_named": set(sizes) == {int(size) * int(number)},
            }
        )
    return rows


def zero(blocks: list[Path]) -> None:
    for path in blocks:
        path.write_bytes(bytes(path.stat().st_size))


def truncate(blocks: list[Path]) -> None:
    for path in blocks:
        os.truncate(path, path.stat().st_size // 2)


def delete(blocks: list[Path]) -> None:
    for path in blocks:
        path.unlink(missing_ok=True)


SPOIL = {"zero": zero, "truncate": truncate, "delete": delete}


def save(root: Path, copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)


def put_back(root: Path, copy: Path) -> None:
    """The saved blocks and no others; folders stay, for a store is open on them."""
    kept = {
        path.relative_to(copy) for blocks in listing(copy).values() for path in blocks
    }
    for blocks in listing(root).values():
        delete([path for path in blocks if path.relative_to(root) not in kept])
    for name in kept:
        fresh = (root / name).with_suffix(".back")
        fresh.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(copy / name, fresh)
        fresh.replace(root / name)


def drop_cached(paths: list[Path]) -> None:
    """Ask the kernel to forget these files' bytes, so that the next read goes to the device."""
    os.sync()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
