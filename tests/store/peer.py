"""Uses a store of the tree named first, in a fresh process; see hosts.peer.

peer.py TREE ACTION PREFIX SPECS-AS-JSON FOLDER: one root, or two, per spec under FOLDER.
ACTION: open, write (and read), check (read); signals and crash write first.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

sys.path[:0] = [sys.argv[1]]

import numpy as np  # noqa: E402
from adapter import PosixAdapter  # noqa: E402
from kit import Pages, StoreSpec, found, keys, load  # noqa: E402

N = 24
kept: list = []  # the base takes seconds to destroy a store


class OldRoots(PosixAdapter):
    """Three digits of folders, as every root made before the series."""

    digits = 3


def roots_of(folder: Path, number: int) -> list[Path]:
    """Two backends for every second spec."""
    roots = [folder / f"{number}-{backend}" for backend in range(1 + number % 2)]
    for root in roots:
        root.mkdir(exist_ok=True)
    return roots


def open_on_all(spec: StoreSpec, roots: list[Path]):
    """The base makes the folders of its first backend only, so each is first once."""
    kept.extend(OldRoots().open(spec, [root]) for root in roots[1:])
    return OldRoots().open(spec, roots)


def dump_by_shard(store, ids: list[bytes], pages: Pages) -> None:
    """As UCM's connectors do, the only way in which the base publishes whole blocks."""
    shards, pointers = pages.spec.shards, pages.pointers()
    for shard in range(shards):
        task = store.dump_data(ids, [shard] * len(ids), pointers[shard::shards].copy())
        store.wait(task)


def use(action: str, prefix: str, spec: StoreSpec, roots: list[Path]) -> None:
    store = open_on_all(spec, roots)
    kept.append(store)
    ids, pages, copy = keys(N, prefix), Pages(spec, N, 7), Pages(spec, N)
    if action not in ("open", "check"):
        dump_by_shard(store, ids, pages)
    if action != "open":
        assert found(store, ids) == [True] * N, "lookup"
        load(store, ids, copy)
        assert np.array_equal(copy.data, pages.data), "bytes"


def handlers() -> dict[str, bytes]:
    """The address of every signal's handler, which `struct sigaction` begins with."""
    libc, action = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    found = {}
    for number in range(1, 32):
        if libc.sigaction(number, None, action) == 0:
            found[signal.Signals(number).name] = action.raw[:8]
    return found


def main() -> None:
    _, tree, action, prefix, specs, folder = sys.argv
    before = handlers()
    import ucm

    assert Path(tree) in Path(ucm.__file__).parents
    for number, spec in enumerate(json.loads(specs)):
        use(action, prefix, StoreSpec(**spec), roots_of(Path(folder), number))
    after = handlers()
    if action == "signals":
        print("changed:", *[name for name in before if before[name] != after[name]])
    if action == "crash":
        ctypes.string_at(0)
    sys.stdout.write("\npeer is done\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
