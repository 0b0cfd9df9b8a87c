"""Roots written by the unpatched base are read, and the base reads what is written now."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from kit import StoreSpec

PEER = Path(__file__).with_name("peer.py")
LAYOUTS = {
    "K and V": StoreSpec(component=8192, components=2),
    "layers": StoreSpec(component=4096, components=2, shards=4),
    "one backend": StoreSpec(component=786240, components=1),
}


def peer(tree: Path, action: str, prefix: str, spec: StoreSpec, roots: list[Path]) -> None:
    words = [action, prefix, json.dumps(asdict(spec)), *map(str, roots)]
    run = subprocess.run(
        [sys.executable, PEER, str(tree), *words], capture_output=True, text=True, timeout=50
    )
    assert run.stdout.endswith("same\n"), f"{tree} {words}\n{run.stdout}{run.stderr}"


@pytest.mark.limit(60)
@pytest.mark.parametrize("name", LAYOUTS)
def test_both_ways_with_the_base(site, tree, base_tree, name):
    """With two backends and the old folder depth: base writes, tree reads; tree writes, base
    reads."""
    roots = [site.root] + ([] if name == "one backend" else [site.folder("second")])
    for writer, reader in ((base_tree, tree), (tree, base_tree)):
        prefix = f"by-{'base' if writer is base_tree else 'tree'}"
        peer(writer, "write", prefix, LAYOUTS[name], roots)
        peer(reader, "check", prefix, LAYOUTS[name], roots)
