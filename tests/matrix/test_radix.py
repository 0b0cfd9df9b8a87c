"""From SGLang's radix tree to disk and back to device slots, through a hybrid tree."""

from array import array

import pytest
import recorded_store
import torch
from host_pools import PAGE
from radix import TOKENS, Tree
from storage import lose


@pytest.fixture
def tree(extra_config, monkeypatch, needs_l3):
    needs_l3("KV + SWA")
    made = Tree(extra_config, monkeypatch)
    yield made
    made.tree.cache_controller.detach_storage_backend()


def backed_up(tree) -> bool:
    """Both writes of the node are acknowledged: the window's pages and the KV."""
    stored = [c for c in recorded_store.calls("batch_set_v1") if c.result]
    return (
        bool(stored)
        and not tree.tree.ongoing_write_through
        and not tree.tree.ongoing_backup
    )


def test_backup_flush_prefetch_load_back(tree):
    """Keys and values of every layer are what they were before the flush."""
    tokens = array("q", range(100, 100 + TOKENS))
    written = tree.contents(tree.prefill(tokens))
    tree.wait(lambda: backed_up(tree))
    tree.tree.sanity_check()
    tree.flush()
    assert tree.on_device(tokens) == 0
    assert tree.prefetch(tokens) == TOKENS
    assert tree.match(tokens).host_hit_length == TOKENS
    slots = tree.load_back(tokens)
    assert len(slots) == TOKENS
    for found, expected in zip(tree.contents(slots), written, strict=True):
        assert torch.equal(found, expected)
    assert tree.on_device(tokens) == TOKENS
    tree.tree.sanity_check()


def test_a_lost_window_page_shortens_the_prefix(tree, folder):
    """By one page: the window before it is whole. What comes is byte for byte what was."""
    tokens = array("q", range(500, 500 + TOKENS))
    written = tree.contents(tree.prefill(tokens)[:-PAGE])
    tree.wait(lambda: backed_up(tree))
    window = recorded_store.calls("batch_set_v2")[-1].args[0][0].keys
    lose(folder, tree.tree.cache_controller.storage_backend, "swa", window[-1])
    tree.flush()
    assert tree.prefetch(tokens) == TOKENS - PAGE
    slots = tree.load_back(tokens)
    assert len(slots) == TOKENS - PAGE
    for found, expected in zip(tree.contents(slots), written, strict=True):
        assert torch.equal(found, expected)
    tree.tree.sanity_check()
