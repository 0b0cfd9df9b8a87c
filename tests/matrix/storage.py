"""Where a test keeps its stores, how SGLang is told of them, and how a block gets lost."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def storage_folder():
    """In memory where possible: stores make many folders."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="matrix-", dir=memory) as root:
        yield Path(root)


def storage_options(folder: Path) -> dict:
    """What an operator gives as --hicache-storage-backend-extra-config."""
    store = {
        "storage_backends": str(folder),
        "timeout_ms": 10000,
        "data_dir_shard_bytes": 1,
    }
    return {
        "backend_name": "ucm",
        "module_path": "recorded_store",
        "class_name": "RecordedStore",
        "interface_v1": 1,
        "kv_connector_extra_config": {
            "ucm_connector_name": "UcmPipelineStore",
            "ucm_connector_config": store,
        },
    }


def lose(folder: Path, backend, name: str, key: str) -> None:
    """Remove one block of a pool, by the id under which the store keeps it."""
    connector = backend.connector
    pool = connector._anchor if name == "kv" else connector.pools.get(name)
    (block,) = pool.ids([key])
    found = [path for path in folder.rglob(block.hex()) if path.is_file()]
    assert len(found) == 1
    found[0].unlink()
