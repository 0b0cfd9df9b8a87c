"""SGLang's real controller and its real threads take every pool of a mix to disk and back."""

import host_pools
import pytest
import recorded_store
import torch
from controller import Controller, page_hashes, tokens_of
from mixes import COUNT, MIXES, WINDOW
from storage import lose

# Pool, the number of the page whose block is lost, and how far the rest can be restored.
LOSSES = {
    "KV": [("kv", 3, 3)],
    "KV + SWA": [("kv", 3, 0), ("swa", 5, 5), ("swa", 4, 4), ("swa", 3, 6)],
    "KV + MAMBA": [("mamba", 5, 4), ("mamba", 3, 6), ("kv", 4, 4)],
    "MLA KV + INDEXER": [("kv", 2, 2), ("indexer", 3, 3)],
    "DeepSeek V4": [
        ("deepseek_v4_c4", 5, 5),
        ("deepseek_v4_c128", 4, 4),
        ("deepseek_v4_c4_indexer", 0, 0),
        ("deepseek_v4_c4_state", 5, 5),
        ("swa", 4, 4),
    ],
}
CASES = [(name, *loss) for name, losses in LOSSES.items() for loss in losses]


@pytest.fixture
def attach(extra_config):
    """Controllers over fresh pools of a mix, all on one folder; detached at the end."""
    made = []

    def attach(name):
        made.append(Controller(MIXES[name](), extra_config))
        return made[-1]

    yield attach
    for controller in made:
        assert controller.detach() == []


def store(controller, seed=1):
    """Write COUNT pages; returns tokens, hashes and the bytes of every pool."""
    tokens = tokens_of(seed)
    hashes = page_hashes(tokens)
    slots = controller.mix.fill(seed)
    controller.write(slots, hashes)
    return tokens, hashes, controller.mix.contents(slots)


def test_there_and_back(attach, supported_mix, record_property):
    """Bytes that one controller wrote are what another one, over other pools, prefetches."""
    record_property("mix", supported_mix)
    record_property("verdict", "pass")
    tokens, _, written = store(attach(supported_mix))
    reader = attach(supported_mix)
    fetched = reader.prefetch(tokens)
    expected = {name: len(pages) for name, pages in fetched.pages.items()}
    assert fetched.hit == COUNT
    assert {n: fetched.counts.get(n) for n in expected} == expected
    for name, found in reader.mix.contents(fetched.slots).items():
        pages = fetched.pages[name]
        assert torch.equal(found[: len(pages)], written[name][list(pages)]), name


def test_nothing_is_claimed_that_was_never_written(attach, supported_mix):
    store(attach(supported_mix), seed=1)
    assert attach(supported_mix).prefetch(tokens_of(2)).hit == 0


@pytest.mark.parametrize(("name", "pool", "page", "rest"), CASES)
def test_a_lost_block_shortens_the_hit(
    attach, folder, needs_l3, name, pool, page, rest
):
    """To the longest prefix whose every page is there, in every pool that it needs."""
    needs_l3(name)
    writer = attach(name)
    tokens, hashes, written = store(writer)
    lose(folder, writer.backend, pool, hashes[page])
    reader = attach(name)
    fetched = reader.prefetch(tokens)
    assert fetched.hit == rest
    for sidecar, found in reader.mix.contents(fetched.slots).items():
        pages = fetched.pages[sidecar]
        assert torch.equal(found[: len(pages)], written[sidecar][list(pages)]), sidecar


@pytest.mark.parametrize(
    ("name", "pool", "page"),
    [
        ("KV", "kv", 3),
        ("KV + SWA", "swa", 5),
        ("KV + MAMBA", "mamba", 5),
        ("MLA KV + INDEXER", "indexer", 3),
        ("DeepSeek V4", "deepseek_v4_c4", 3),
        ("DeepSeek V4", "deepseek_v4_c4_state", 5),
    ],
)
def test_a_block_lost_after_the_query(
    attach, folder, needs_l3, release, name, pool, page
):
    """SGLang must see it in the counts that it goes by, whatever its release looks at."""
    needs_l3(name)
    writer = attach(name)
    tokens, hashes, _ = store(writer)
    reader = attach(name)
    recorded_store.BEFORE_READ.append(
        lambda: lose(folder, reader.backend, pool, hashes[page])
    )
    fetched = reader.prefetch(tokens)
    assert fetched.hit == COUNT and not recorded_store.BEFORE_READ
    sidecar = next((s for s in reader.mix.sidecars if s.name == pool), None)
    if sidecar is None or sidecar.source == "kv":
        looked_at = ["kv"] if release["number"] <= [0, 5, 16] else ["kv", pool]
        assert min(fetched.counts.get(n, COUNT) for n in looked_at) == page
        return
    # Up to 0.5.16 the tree reads the count of SWA, and none of a pool that follows it.
    read = sidecar.source or pool if release["number"] <= [0, 5, 16] else pool
    assert fetched.counts["kv"] < COUNT or fetched.counts[read] < len(
        fetched.pages[read]
    )


def test_slots_that_are_not_asked_for_stay_as_they_were(attach, supported_mix):
    tokens, _, _ = store(attach(supported_mix))
    reader = attach(supported_mix)
    before = reader.mix.allocate()
    for name, pool in reader.mix.pools.items():
        size = host_pools.page_bytes(pool)
        if size:
            poison = torch.full((COUNT, size), 0xEE, dtype=torch.uint8)
            host_pools.write(pool, before[name].starts, poison)
    assert reader.prefetch(tokens).hit == COUNT
    for name, found in reader.mix.contents(before).items():
        assert bool((found == 0xEE).all()), name


def test_attach_again(attach, supported_mix):
    """Detach at runtime, attach at runtime: the pages are still there."""
    controller = attach(supported_mix)
    tokens, _, _ = store(controller)
    controller.detach()
    controller.attach()
    assert controller.prefetch(tokens).hit == COUNT
    assert recorded_store.calls("close")


def test_clear_empties_the_storage(attach, supported_mix):
    """This deployment's pages go from every pool; what is stored afterwards is there."""
    controller = attach(supported_mix)
    tokens, _, _ = store(controller)
    assert controller.backend.clear() is True
    assert controller.prefetch(tokens).hit == 0
    tokens, _, _ = store(controller)
    assert controller.prefetch(tokens).hit == COUNT


def test_window_constant():
    """LOSSES is written for these."""
    assert (WINDOW, COUNT) == (2, 6)
