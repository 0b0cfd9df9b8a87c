"""Roots written by the unpatched base are read, and the base reads what is written now."""

import pytest
from hosts import peer
from kit import StoreSpec

# Every second one lies on two backends.
LAYOUTS = [
    StoreSpec(component=786240, components=1),
    StoreSpec(component=8192, components=2, shards=4),
]


@pytest.mark.limit(60)
@pytest.mark.parametrize("writer", ["base", "tree"])
def test_both_ways_with_the_base(fast_site, tree, base_tree, writer):
    """With the old folder depth, on one and on two backends: what one tree wrote the other
    finds and loads, byte for byte."""
    trees = [base_tree, tree] if writer == "base" else [tree, base_tree]
    for built, action in zip(trees, ("write", "check"), strict=True):
        run = peer(built, action, "k", LAYOUTS, fast_site.root)
        assert (
            "peer is done" in run.stdout
        ), f"{built} {action}\n{run.stdout}{run.stderr}"
