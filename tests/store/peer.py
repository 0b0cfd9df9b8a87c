"""Writes or checks blocks with the tree named first; run as a process of its own.

peer.py TREE write|check PREFIX SPEC-AS-JSON ROOT...
"""

import json
import os
import sys
from pathlib import Path

sys.path[:0] = [sys.argv[1]]
os.environ["UC_LOGGER_LEVEL"] = "off"

import numpy as np  # noqa: E402
from adapter import PosixAdapter  # noqa: E402
from kit import Pages, StoreSpec, dump, found, keys, load  # noqa: E402

N = 24


class OldRoots(PosixAdapter):
    """Three digits of folders, as every root made before the series."""

    digits = 3


def open_on_all(spec: StoreSpec, roots: list[Path]):
    """The base makes the folders of its first backend only, so each is first once."""
    for root in roots[1:]:
        OldRoots().open(spec, [root])
    return OldRoots().open(spec, roots)


def main() -> None:
    _, tree, action, prefix, text, *roots = sys.argv
    import ucm

    assert Path(tree) in Path(ucm.__file__).parents
    spec = StoreSpec(**json.loads(text))
    store = open_on_all(spec, [Path(r) for r in roots])
    ids, pages = keys(N, prefix), Pages(spec, N, 7)
    if action == "write":
        dump(store, ids, pages)
    assert found(store, ids) == [True] * N, "lookup"
    copy = Pages(spec, N)
    load(store, ids, copy)
    assert np.array_equal(copy.data, pages.data), "bytes"
    sys.stdout.write("same\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
