"""Calls that SGLang engines made on a GPU, replayed: same keys, same pages, same answers, same bytes.

The traces are written by ci/gpu/traces.py from what ci/gpu/counting_store.py recorded. Pools here
are SGLang's own with small pages; keys and page numbers are those of the run.
"""

import itertools
import json
from pathlib import Path

import hicache_kit as kit
import pytest
import torch
from hicache_kit import PoolHitPolicy, PoolName

from ucm.integration.sglang import ucm_connector

TRACES = sorted((Path(__file__).parent / "traces").glob("*.jsonl"))
PAGE = 2
SEEDS = itertools.count()
MAKE = {
    "MHATokenToKVPoolHost": lambda name, pages: kit.mha(page=PAGE, pages=pages),
    "MLATokenToKVPoolHost": lambda name, pages: kit.mla(page=PAGE, pages=pages),
    "DSAIndexerPoolHost": lambda name, pages: kit.paged(name, page=PAGE, pages=pages),
    "DeepSeekV4PagedHostPool": lambda name, pages: kit.paged(
        name, page=PAGE, pages=pages
    ),
    "DeepSeekV4StateHostPool": lambda name, pages: kit.state(
        name, page=PAGE, pages=pages
    ),
    "MambaPoolHost": lambda name, pages: kit.mamba(pages=pages),
    "LogicalHostPool": lambda name, pages: kit.logical(page=PAGE, pages=pages),
}


def numbers(runs):
    return [n for first, count in runs for n in range(first, first + count)]


def flags(outcome):
    return [bool(ok) for ok, count in outcome for _ in range(count)]


def key(place):
    return f"{place:064x}"


class Rank:
    """One rank's backend and pools; what it reads is compared with what was written last."""

    def __init__(self, site, config, registered, written, along):
        self.pools = {row["pool"]: self.make(row) for row in registered}
        sidecars = {n: p for n, p in self.pools.items() if n != "kv"}
        self.store = site.attach(self.pools["kv"], sidecars, config=config)
        self.written, self.along = written, along

    @staticmethod
    def make(row):
        return MAKE[row["kind"]](row["pool"], row["pages"])

    def transfer(self, row):
        name, keys = row["pool"], row["keys"]
        if isinstance(keys, str):
            keys = ["__placeholder__"] * int(keys.split()[0])
        elif keys is not None:
            keys = [key(place) for place in numbers(keys)]
        pages = row["pages"]
        return kit.PoolTransfer(
            name=PoolName(name),
            keys=keys,
            host_indices=(
                None if pages is None else kit.slots(self.pools[name], numbers(pages))
            ),
            hit_policy=PoolHitPolicy(row["policy"]),
            indices_from_pool=row["from"] and PoolName(row["from"]),
        )

    def batch_exists_v2(self, row):
        found = self.store.batch_exists_v2(
            [key(place) for place in numbers(row["keys"])],
            [self.transfer(t) for t in row["transfers"]],
        )
        assert found.kv_hit_pages == row["hit"]
        assert found.extra_pool_hit_pages == row["pools"]

    def batch_set_v1(self, row):
        self.write("kv", row)
        assert self.v1("batch_set_v1", row) == flags(row["done"])

    def batch_get_v1(self, row):
        """Up to 0.5.16 pools that follow the KV are read along, into the same pages."""
        names = ["kv", *self.along]
        self.poison(names, row)
        assert self.v1("batch_get_v1", row) == flags(row["done"])
        for name in names:
            self.compare(name, row, flags(row["done"]))

    def v1(self, call, row):
        keys = [key(place) for place in numbers(row["keys"])]
        indices = kit.slots(self.pools["kv"], numbers(row["pages"]))
        return getattr(self.store, call)(keys, indices)

    def batch_set_v2(self, row):
        for transfer in row["transfers"]:
            self.write(transfer["pool"], transfer)
        self.v2("batch_set_v2", row)

    def batch_get_v2(self, row):
        for transfer in row["transfers"]:
            self.poison([transfer["pool"]], transfer)
        self.v2("batch_get_v2", row)
        for transfer in row["transfers"]:
            name = transfer["pool"]
            self.compare(name, transfer, flags(row["done"][name]))

    def v2(self, call, row):
        done = getattr(self.store, call)([self.transfer(t) for t in row["transfers"]])
        assert done == {name: flags(o) for name, o in row["done"].items()}

    def write(self, name, row):
        """Other bytes each time, so that an old page cannot pass for a new one."""
        pages = numbers(row["pages"])
        if name == "kv" and self.pools["kv"].kv_buffer is None:
            return
        data = kit.fill(self.pools[name], pages, seed=next(SEEDS))
        for place, page in zip(numbers(row["keys"]), data, strict=True):
            self.written[name, place] = page

    def poison(self, names, row):
        for name in names:
            if name != "kv" or self.pools["kv"].kv_buffer is not None:
                kit.poison(self.pools[name], numbers(row["pages"]))

    def compare(self, name, row, done):
        if name == "kv" and self.pools["kv"].kv_buffer is None:
            return
        assert any(done), "a trace whose reads all fail shows nothing"
        found = kit.contents(self.pools[name], numbers(row["pages"]))
        for place, page, ok in zip(numbers(row["keys"]), found, done, strict=True):
            if ok:
                assert torch.equal(page, self.written[name, place]), (name, place)


def erase(ranks, places, only=None):
    """What the run deleted from the disk between two calls; in one pool, or in all."""
    for rank in ranks.values():
        connector = rank.store.connector
        pools = [connector.pools.get(n) for n in rank.pools if n != "kv"]
        pools = [p for p in pools if only in (None, p.name)]
        for pool in [*pools, *([] if only else [connector._anchor])]:
            if pool is None:
                continue
            names = {block.hex() for block in pool.ids([key(p) for p in places])}
            for folder in pool.folders:
                for path in Path(folder).rglob("*"):
                    if path.name in names and path.is_file():
                        path.unlink()


@pytest.fixture
def attach(site, monkeypatch):
    """A trace's rows, and its ranks on one disk, on the release that made the calls."""

    def attach(path):
        head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
        monkeypatch.setattr(ucm_connector, "release", lambda: tuple(head["release"]))
        listed = [t for row in rows for t in row.get("transfers", ())]
        follow = {t["pool"] for t in listed if t["from"] == "kv"}
        along = sorted(follow) if head["release"] < [0, 5, 17] else []
        ranks, written = {}, {}
        for start in (row for row in rows if row["call"] == "init"):
            registered = [
                row
                for row in rows
                if row["call"] == "register_mem_host_pool_v2"
                and row["rank"] == start["rank"]
            ]
            tp = start["tp_rank"], start["tp_size"]
            config = site.config(mla=start["is_mla_model"], tp=tp, backends=2)
            # Ranks of an MLA model have the same pages, others their own.
            own = written if start["is_mla_model"] else {}
            rank = Rank(site, config, registered, own, along)
            ranks[start["rank"]] = rank
        return rows, ranks

    return attach


def replay(rows, ranks):
    """Each row as it is replayed."""
    for row in rows:
        if row["call"] == "erase":
            erase(ranks, numbers(row["keys"]))
        elif row["call"].startswith("batch_"):
            getattr(ranks[row["rank"]], row["call"])(row)
        yield row


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_real_calls_get_the_answers_that_they_got(attach, path):
    rows, ranks = attach(path)
    replayed = [r for r in replay(rows, ranks) if r["call"].startswith("batch_")]
    assert len(replayed) > 30


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("dsa", "indexer"),
        ("dsv4", "deepseek_v4_c4"),
        ("dsv4", "deepseek_v4_c4_indexer"),
        ("dsv4", "deepseek_v4_c128"),
    ],
)
def test_a_follower_lost_after_the_lookup_fails_the_kv_pages(attach, name, pool):
    """SGLang 0.5.16 takes the KV's answer alone, so the KV's answer must be no."""
    rows, ranks = attach(Path(__file__).parent / "traces" / f"{name}.jsonl")
    steps = replay(rows, ranks)
    found = next(r for r in steps if r["call"] == "batch_exists_v2" and r["hit"])
    places, half = numbers(found["keys"]), found["hit"] // 2
    erase(ranks, places[half:], only=pool)
    indices = kit.slots(ranks[0].pools["kv"], range(found["hit"]))
    done = ranks[0].store.batch_get_v1([key(place) for place in places], indices)
    assert done == [i < half for i in range(found["hit"])]


def test_the_traces_cover_every_kind_of_model():
    assert {path.stem.split("-")[0] for path in TRACES} == {
        "swa",
        "gdn",
        "mamba2",
        "dsa",
        "dsv4",
    }
