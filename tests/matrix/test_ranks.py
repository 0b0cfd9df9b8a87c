"""Ranks of one server, each a process with its own controller, over one storage folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mixes import COUNT
from storage import storage_folder

PEER = Path(__file__).parent / "rank_peer.py"
SCENARIOS = {
    "V4 replicated": {"mix": "DeepSeek V4", "sharded": []},
    "MLA replicated": {"mix": "MLA KV", "sharded": []},
    "DSA replicated": {"mix": "MLA KV + INDEXER", "sharded": []},
    "SWA sharded": {"mix": "KV + SWA", "sharded": ["kv", "swa"]},
    "MAMBA sharded": {"mix": "KV + MAMBA", "sharded": ["kv", "mamba"]},
    "MLA and MAMBA": {"mix": "MLA KV + MAMBA", "sharded": ["mamba"]},
    "one rank lost a page": {
        "mix": "KV",
        "sharded": ["kv"],
        "losses": [{"rank": 1, "pool": "kv", "page": 3}],
    },
    "ends that meet": {
        "mix": "KV + SWA",
        "sharded": ["kv", "swa"],
        "losses": [{"rank": 1, "pool": "swa", "page": 4}],
    },
    "ends that do not meet": {
        "mix": "KV + MAMBA",
        "sharded": ["kv", "mamba"],
        "losses": [
            {"rank": 0, "pool": "mamba", "page": 5},
            {"rank": 1, "pool": "mamba", "page": 3},
        ],
    },
    "ends that meet below": {
        "mix": "KV + MAMBA",
        "sharded": ["kv", "mamba"],
        "nodes": [2, 2, 2],
        "losses": [
            {"rank": 0, "pool": "mamba", "page": 5},
            {"rank": 1, "pool": "mamba", "page": 3},
        ],
    },
}


def run_ranks(size: int, names: list[str]) -> dict[str, list[dict]]:
    """What each rank of `size` saw, by scenario."""
    wanted = json.dumps([{"name": name, **SCENARIOS[name]} for name in names])
    with storage_folder() as folder:
        command = [sys.executable, "-W", "ignore", str(PEER)]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(size), str(folder), wanted],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            done = [rank.communicate(timeout=240) for rank in ranks]
        finally:
            for rank in ranks:  # one that waits for another would wait on
                rank.kill()
                rank.wait()
    for rank, (_, errors) in zip(ranks, done, strict=True):
        assert rank.returncode == 0, errors[-3000:]
    said = [json.loads(out.splitlines()[-1]) for out, _ in done]
    return {name: [rank[i] for rank in said] for i, name in enumerate(names)}


def served(release, name):
    mix = SCENARIOS[name]["mix"].replace("MLA KV + MAMBA", "KV + MAMBA")
    known = mix in release["l3"] or mix == "MLA KV"
    return known and mix not in release.get("refused", {})


@pytest.fixture(scope="module")
def two(release):
    return run_ranks(2, [name for name in SCENARIOS if served(release, name)])


@pytest.fixture
def seen(two, release):
    def seen(name):
        if name not in two:
            pytest.skip(f"not on SGLang {release['version']}: see test_tree.py")
        return two[name]

    return seen


REPLICATED = ["V4 replicated", "MLA replicated", "DSA replicated"]


@pytest.mark.parametrize("name", REPLICATED)
def test_replicated_pools_are_written_once_and_read_by_all(seen, name):
    """One rank writes; the other's hit is as long, and its bytes are those."""
    first, second = seen(name)
    assert first["wrote"] and second["wrote"] == {}
    assert first["hit"] == second["hit"] == COUNT
    assert all(first["right"].values()) and all(second["right"].values())
    anchor = 0 if name == "V4 replicated" else first["wrote"]["kv"]
    sidecars = sum(count for pool, count in first["wrote"].items() if pool != "kv")
    assert first["files"] == anchor + sidecars


@pytest.mark.parametrize("name", ["SWA sharded", "MAMBA sharded"])
def test_sharded_pools_come_back_to_their_rank(seen, name):
    first, second = seen(name)
    assert first["wrote"] == second["wrote"]
    assert first["hit"] == second["hit"] == COUNT
    assert all(first["right"].values()) and all(second["right"].values())
    assert all(
        first["digest"][pool] != second["digest"][pool] for pool in first["digest"]
    )
    assert first["files"] == 2 * sum(first["wrote"].values())


def test_mamba_is_sharded_beside_a_replicated_anchor(seen, release):
    """Up to 0.5.16 SGLang lets rank 0 alone write it: the others miss, and serve nothing."""
    first, second = seen("MLA and MAMBA")
    assert first["digest"]["mamba"] != second["digest"]["mamba"]
    assert first["digest"]["kv"] == second["digest"]["kv"]
    if "mamba" in second["wrote"]:
        assert second["wrote"] == {"mamba": first["wrote"]["mamba"]}
        assert first["hit"] == second["hit"] == COUNT
        assert all(first["right"].values()) and all(second["right"].values())
    else:
        assert first["hit"] == second["hit"] == 0


def test_who_writes_mamba_beside_mla(seen, release):
    """A fact of the release, which keys and warnings rest on."""
    _, second = seen("MLA and MAMBA")
    assert ("mamba" in second["wrote"]) == (release["number"] >= [0, 5, 17])


def test_a_missing_file_on_one_rank_shortens_the_hit_of_all(seen):
    first, second = seen("one rank lost a page")
    assert first["hit"] == second["hit"] == 3
    assert first["counts"]["kv"] == second["counts"]["kv"] == 3
    assert all(first["right"].values()) and all(second["right"].values())


def test_disagreeing_restorable_sets_meet(seen):
    """{4, 5, 6} and {4}: both load four pages."""
    first, second = seen("ends that meet")
    assert first["hit"] == second["hit"] == 4
    assert all(first["right"].values()) and all(second["right"].values())


@pytest.mark.parametrize(
    "name, common", [("ends that do not meet", 0), ("ends that meet below", 2)]
)
def test_the_longest_end_is_not_common(seen, release, name, common):
    """{4} and {6}, {2, 4} and {2, 6}: from 0.5.23 on SGLang takes what both can restore.

    Before it takes the smaller of the longest, 4, and rank 1 misses the state of four pages.
    """
    first, second = seen(name)
    if release["number"] >= [0, 5, 23]:
        assert first["hit"] == second["hit"] == common
        wanted = [common - 1] if common else []
        for rank in (first, second):
            assert rank["asked"].get("mamba", []) == wanted
            assert rank["counts"].get("mamba", 0) == len(wanted)
            assert all(rank["right"].values())
        return
    assert first["hit"] == second["hit"] == 4
    assert first["asked"]["mamba"] == [3]


@pytest.mark.parametrize("name", ["ends that do not meet", "ends that meet below"])
def test_which_state_is_asked_of_the_rank_that_has_more(seen, release, name):
    """Up to 0.5.12 SGLang lines the state up with the rank's own hit, not with the common one:

    it asks rank 1 for the state of six pages beside four pages of KV, and gets it.
    """
    if release["number"] >= [0, 5, 23]:
        pytest.skip("nothing that one rank lacks is asked for there")
    _, second = seen(name)
    early = release["number"] <= [0, 5, 12]
    assert second["asked"]["mamba"] == ([5] if early else [3])
    assert second["counts"]["mamba"] == (1 if early else 0)


def test_no_thread_outlives_a_rank(two):
    assert all(rank["threads"] == [] for ranks in two.values() for rank in ranks)


def test_four_ranks(release):
    if not release["newest"]:
        pytest.skip("four ranks run once, on the newest pinned release")
    names = ["V4 replicated", "SWA sharded"]
    seen = run_ranks(4, names)
    first, *others = seen["V4 replicated"]
    assert first["wrote"] and all(rank["wrote"] == {} for rank in others)
    for ranks in seen.values():
        assert [rank["hit"] for rank in ranks] == [COUNT] * 4
        assert all(all(rank["right"].values()) for rank in ranks)
    assert len({rank["digest"]["kv"] for rank in seen["SWA sharded"]}) == 4
