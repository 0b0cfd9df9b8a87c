"""Sequences of calls on random deployments, drawn by hypothesis, against a dictionary."""

import gc
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import hicache_kit as kit
import torch
from deployments import POISON, Wrong, keys_of, known_bytes
from hypothesis import HealthCheck, Phase, given
from hypothesis import seed as seeded
from hypothesis import settings
from hypothesis import strategies as st

N_KEY, N_PAGE = 10, 12
OPERATIONS, WORLDS = 100, 20  # of a world, of a batch
SHRINK_S = 20
MODELS = ("org/a", "org/b")
# Models of a world, and each one's namespace: clear() refuses a folder that another model marked.
SHARES = {
    "two models, no namespace": dict.fromkeys(MODELS),
    "two models, one namespace": dict.fromkeys(MODELS, "n"),
    "two models, a namespace each": {"org/a": "a", "org/b": "b"},
    "one model, no namespace": {"org/a": None},
    "one model, a namespace": {"org/a": "a"},
}
CONNECTORS = 4  # of a world
ENGINES = {
    "psync": {},
    "psync, direct": {"io_direct": True},
    "aio": {"posix_io_engine": "aio"},
}
FORMS = [*product(ENGINES, [False, True]), ("aio", True), ("aio", True)]


@dataclass(frozen=True)
class Kind:
    """What the rules of docs/design.md say of a pool."""

    make: Callable  # (large, page=tokens, pages=)
    shared: bool = False  # the same bytes on every TP rank of an MLA model
    follows_kv: bool = False


def _pool(make: Callable, small: dict, large: dict) -> Callable:
    """Large ones have components that direct I/O and aio can serve."""
    return lambda is_large, **shape: (
        kit.aligned(make(**large, **shape)) if is_large else make(**small, **shape)
    )


def _paged(row: int) -> Callable:
    return _pool(kit.paged, {"name": "p", "row": row}, {"name": "p", "row": 4096})


def _mamba(is_large: bool, page: int, pages: int):
    large = {"temporal": (8, 8, 8), "convs": ((32, 16), (32, 16))}
    return kit.mamba(pages=pages, **(large if is_large else {}))


KINDS = {
    "swa": Kind(_paged(64), shared=True),
    "indexer": Kind(_paged(40), shared=True, follows_kv=True),
    "deepseek_v4_c4": Kind(_paged(24), shared=True, follows_kv=True),
    "deepseek_v4_c128": Kind(_paged(8), shared=True, follows_kv=True),
    "deepseek_v4_c4_state": Kind(
        _pool(kit.state, {"name": "p"}, {"name": "p", "width": 512}), shared=True
    ),
    "draft": Kind(_pool(kit.mha, {}, {"k_dim": 1024, "v_dim": 1024})),
    "mamba": Kind(_mamba),
    "new": Kind(_pool(kit.mha, {"heads": 1}, {"k_dim": 2048, "v_dim": 2048})),
}
ANCHORS = {
    "mha": (_pool(kit.mha, {}, {"k_dim": 1024, "v_dim": 1024}), False),
    "mla": (_pool(kit.mla, {}, {"dim": 2048}), True),
    "logical": (lambda is_large, **shape: kit.logical(**shape), True),
    "logical, not MLA": (lambda is_large, **shape: kit.logical(**shape), False),
}


@cache
def _below(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, n - 1)


class Dice:
    """Choices that hypothesis draws, and shrinks where they lead to a difference."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def below(self, n: int) -> int:
        return self._data.draw(_below(n))

    def choice(self, items):
        return items[self.below(len(items))]

    def sample(self, items, count: int) -> list:
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(count)]

    def some(self, items) -> list:
        """One of them at least, if there are any."""
        return self.sample(items, 1 + self.below(len(items))) if items else []


class Rank:
    """One connector: model, ranks, its pools, and those of them that it refused."""

    def __init__(self, world: "World", model: str, tp: int, pp: int) -> None:
        self.world, self.model, self.tp, self.pp = world, model, tp, pp
        shape = {"is_large": world.large, "page": world.page, "pages": N_PAGE}
        self.anchor = world.make_anchor(**shape)
        self.pools = {n: KINDS[n].make(**shape) for n in world.names}
        self.attach()

    def attach(self) -> None:
        world = self.world
        options = {"pp_rank": self.pp, "pp_size": world.pp_size}
        options |= {"mla": world.mla, "model": self.model, "backends": world.backends}
        options |= {"namespace": world.models[self.model], **ENGINES[world.engine]}
        tp = (self.tp, world.tp_size)
        self.store = world.site.attach(self.anchor, self.pools, tp=tp, **options)
        self.refused: set[str] = set()

    def engines(self) -> list[str]:
        pools = self.store.connector.pools
        return [
            pools.get(n).store.config.get("posix_io_engine", "psync")
            for n in self.pools
        ]

    @property
    def sources(self) -> dict:
        """Every pool with pages of its own, the primary KV among them."""
        kv = {} if self.world.logical else {"kv": self.anchor}
        return kv | self.pools

    def identity(self, name: str, key: str) -> tuple:
        shared = self.world.mla and (name == "kv" or KINDS[name].shared)
        return self.model, name, "all" if shared else self.tp, self.pp, key

    def holds(self, name: str, keys: list[str]) -> list[bool]:
        """What a lookup has to answer."""
        there = name in self.pools and name not in self.refused or name == "kv"
        return [there and self.identity(name, k) in self.world.stored for k in keys]


class World:
    """Several ranks of one or two models on one root, and the dictionary."""

    def __init__(self, dice: Dice, folder: Path) -> None:
        self.dice = dice
        self.site = kit.Site(folder)
        self.anchor_kind = dice.choice(list(ANCHORS))
        self.make_anchor, self.mla = ANCHORS[self.anchor_kind]
        self.logical = "logical" in self.anchor_kind
        self.page, self.backends = dice.choice([1, 2, 4, 16]), dice.choice([1, 2])
        self.engine, self.large = dice.choice(FORMS)
        self.share = dice.choice(list(SHARES))
        self.models = SHARES[self.share]
        self.tp_size, self.pp_size = dice.choice([1, 2, 4]), dice.choice([1, 1, 2])
        self.names = dice.sample(KINDS, dice.below(6))
        self.keys, self.stored, self.count = keys_of(N_KEY, folder.name), {}, 0
        self.damaged: set[tuple] = set()  # files of another size
        self.cleared = 0  # pages
        self.calls: list[str] = []
        models = [*self.models] * (CONNECTORS // len(self.models))
        ranks = [(m, dice.below(self.tp_size)) for m in models]
        self.ranks = [Rank(self, m, t, dice.below(self.pp_size)) for m, t in ranks]

    def __str__(self) -> str:
        return (
            f"{self.anchor_kind}, pools {self.names}, tp {self.tp_size}, {self.engine}, "
            f"{'large' if self.large else 'small'} pages, {self.share}"
        )

    def step(self) -> str:
        """One call; its name. Raises Wrong."""
        number, call = self.dice.below(len(self.ranks)), self.dice.choice(TURNS)
        self.calls.append(f"{call.__name__} of {number}")
        call(self, self.ranks[number])
        return call.__name__


def same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Wrong(f"{what}: found {found}, the oracle says {wanted}")


def _moved(world: World, rank: Rank) -> list[tuple[str, object, list[str], list[int]]]:
    """(pool's name, pool, keys, pages) of a transfer over some pools."""
    rows = []
    for name in world.dice.some(list(rank.sources)):
        keys = world.dice.some(world.keys)
        pages = world.dice.sample(range(N_PAGE), len(keys))
        rows.append((name, rank.sources[name], keys, pages))
        numbers = [world.keys.index(key) for key in keys]
        world.calls[-1] += f", {name} keys {numbers} pages {pages}"
    return rows


def _transfer(rank: Rank, op: str, rows: list) -> dict[str, list[bool]]:
    """One v2 call for all sidecars, one v1 call for the primary KV."""
    sidecars = [kit.transfer(*row) for row in _named(rows)]
    found = dict(getattr(rank.store, f"batch_{op}_v2")(sidecars))
    for name, pool, keys, pages in rows:
        if name == "kv":
            call = getattr(rank.store, f"batch_{op}_v1")
            found["kv"] = call(keys, kit.slots(pool, pages))
    return found


def _named(rows: list) -> list:
    return [row for row in rows if row[0] != "kv"]


def set_pages(world: World, rank: Rank) -> None:
    rows = _moved(world, rank)
    new: dict[tuple, bytes] = {}
    for name, pool, keys, pages in rows:
        for key, page in zip(keys, pages, strict=True):
            world.count += 1
            data = known_bytes(kit.page_bytes(pool), world.count)
            kit.write(pool, page, torch.from_numpy(data.copy()))
            new[rank.identity(name, key)] = data.tobytes()
    wanted = {n: [n not in rank.refused] * len(k) for n, _, k, _ in rows}
    same("set", _transfer(rank, "set", rows), wanted)
    for identity, data in new.items():
        if identity[1] not in rank.refused:
            world.stored.setdefault(identity, data)  # what is there stays
            world.damaged.discard(identity)


def get_pages(world: World, rank: Rank) -> None:
    rows = _moved(world, rank)
    for _, pool, _, _ in rows:
        kit.poison(pool, range(N_PAGE), POISON)
    found = _transfer(rank, "get", rows)
    same("get", found, {n: rank.holds(n, keys) for n, _, keys, _ in rows})
    for name, pool, keys, pages in rows:
        for page in range(N_PAGE):
            data = kit.read(pool, page).numpy()
            if page not in pages:
                same(f"{name}, page {page} beside", bool((data == POISON).all()), True)
                continue
            at = pages.index(page)
            if found[name][at]:
                wanted = world.stored[rank.identity(name, keys[at])]
                same(f"{name} {keys[at]} bytes", data.tobytes() == wanted, True)


def leading(present: list[bool]) -> int:
    return present.index(False) if False in present else len(present)


def anchor_pages(world: World, rank: Rank, keys: list[str]) -> int:
    """What batch_exists has to answer."""
    if not world.logical:
        return leading(rank.holds("kv", keys))
    followers = [n for n in rank.pools if KINDS[n].follows_kv]
    return min((leading(rank.holds(n, keys)) for n in followers), default=0)


def exists(world: World, rank: Rank) -> None:
    keys = world.dice.some(world.keys)
    same("batch_exists", rank.store.batch_exists(keys), anchor_pages(world, rank, keys))
    one = keys[:1]
    same("exists", rank.store.exists(one[0]), anchor_pages(world, rank, one) == 1)


def exists_v2(world: World, rank: Rank) -> None:
    """Straight from the definition of a restorable prefix."""
    keys, asked = world.dice.some(world.keys), world.dice.some(
        [*rank.pools, "stranger"]
    )
    if not world.dice.below(5):
        asked = []
    pages = len(keys) if world.logical else leading(rank.holds("kv", keys))
    ends, transfers = {}, []
    for name in asked:
        window = world.dice.choice([None, 0, 1, 2, 4, 50])
        policy = world.dice.choice([kit.ALL, kit.TRAILING])
        present, wide = rank.holds(name, keys), max(1, window or 0)
        first = (
            (lambda p: 0) if policy == kit.ALL else (lambda p, w=wide: max(0, p - w))
        )
        ends[name] = [p for p in range(1, pages + 1) if all(present[first(p) : p])]
        transfers.append(kit.query(name, policy, window))
    both = [p for p in range(1, pages + 1) if all(p in e for e in ends.values())]
    if world.logical and not asked:
        both = []
    own = {name: max(e, default=0) for name, e in ends.items()}
    own |= {} if world.logical else {"kv": pages}
    hit = rank.store.batch_exists_v2(keys, transfers)
    found = hit.kv_hit_pages, hit.restorable_prefix_pages, hit.extra_pool_hit_pages
    same("batch_exists_v2", found, (both[-1] if both else 0, both, own))


def _file(world: World, rank: Rank) -> tuple[tuple, Path] | None:
    """A block that this rank finds, at random."""
    mine = [(n, k) for n in rank.sources for k in world.keys if rank.holds(n, [k])[0]]
    if not mine:
        return None
    name, key = world.dice.choice(mine)
    return rank.identity(name, key), kit.block_of(world.site, rank.store, name, key)


def remove(world: World, rank: Rank) -> None:
    """As a clean-up does."""
    chosen = _file(world, rank)
    if chosen:
        del world.stored[chosen[0]]
        chosen[1].unlink()


def damage(world: World, rank: Rank) -> None:
    """A file of another size is no block."""
    chosen = _file(world, rank)
    if chosen:
        del world.stored[chosen[0]]
        world.damaged.add(chosen[0])
        size = chosen[1].stat().st_size
        os.truncate(chosen[1], world.dice.choice([0, size - 1, size + 1, size // 2]))


def reattach(world: World, rank: Rank) -> None:
    """After close() every call is a miss; then a new connector finds what was there."""
    rank.store.close()
    keys = world.keys
    rows = [(n, p, keys, range(len(keys))) for n, p in rank.pools.items()]
    same(
        "closed", _transfer(rank, "get", rows), {n: [False] * N_KEY for n in rank.pools}
    )
    same("closed", rank.store.batch_exists(keys), 0)
    world.site._attached.remove(rank.store)
    rank.attach()


def register(world: World, rank: Rank) -> None:
    """A pool that cannot be served is refused and misses; the real one comes back."""
    if not rank.pools:
        return
    name = world.dice.choice(list(rank.pools))
    rank.store.on_host_pools_registered()
    if name in rank.refused or world.dice.below(2):
        rank.store.register_mem_host_pool_v2(rank.pools[name], name)
        rank.refused.discard(name)
    elif name != "mamba":
        rank.store.register_mem_host_pool_v2(kit.asymmetric_mha(), name)
        rank.refused.add(name)


def clear(world: World, rank: Rank) -> None:
    """It empties this connector's pools, whoever of its model filled them, or removes nothing."""
    mine = [n for n in rank.sources if n not in rank.refused]
    same("clear", rank.store.clear(), may_clear(world, mine))
    if may_clear(world, mine):
        left = {i: d for i, d in world.stored.items() if not _among(i, rank, mine)}
        world.cleared += len(world.stored) - len(left)
        world.stored = left
        world.damaged = {i for i in world.damaged if not _among(i, rank, mine)}


def _among(identity: tuple, rank: Rank, names: list[str]) -> bool:
    return identity[0] == rank.model and identity[1] in names


def may_clear(world: World, names: list[str]) -> bool:
    """No other model marked these folders; without a namespace no block's size is strange."""
    namespaces = list(world.models.values())
    if len(set(namespaces)) < len(namespaces):
        return not names
    return namespaces != [None] or not any(i[1] in names for i in world.damaged)


CALLS = {
    **{set_pages: 30, get_pages: 30, exists: 10, exists_v2: 20},
    **{remove: 4, damage: 2, reattach: 1, register: 2, clear: 1},
}
TURNS = [call for call, weight in CALLS.items() for _ in range(weight)]


def one_world(data: st.DataObject, folder: Path, made: Counter) -> None:
    """Counts what was done in `made`. Raises Wrong with the calls."""
    world = World(Dice(data), folder)
    made["worlds"] += 1
    try:
        for rank in world.ranks:
            made.update(rank.engines())
        for _ in range(OPERATIONS):
            made[world.step()] += 1
    except Exception as e:
        calls = "\n".join(world.calls)
        raise Wrong(f"{e}\n{world}; the calls were\n{calls}") from e
    finally:
        made["pages cleared"] += world.cleared
        world.site.close()
        shutil.rmtree(folder, ignore_errors=True)


def one_batch(seed: str, folder: Path, made: Counter) -> None:
    """Some worlds. Raises Wrong with the shortest sequence of calls found in SHRINK_S."""
    failures: list[Wrong] = []
    end = math.inf

    @seeded(seed)
    @settings(
        max_examples=WORLDS,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def batch(data):
        nonlocal end
        if time.monotonic() > end:
            return
        try:
            one_world(data, folder, made)
        except Wrong as e:
            end = min(end, time.monotonic() + SHRINK_S)
            failures.append(e)
            raise

    try:
        batch()
    except Exception as e:
        shortest = min(failures, key=lambda wrong: len(str(wrong)), default=e)
        raise Wrong(f"seed {seed}: {shortest}") from e


def run(operations: int, seed: int, folder: Path, first: int = 0) -> dict:
    """Raises Wrong. The figures: see docs/reliability.md."""
    gc.freeze()  # a collection when a world ends looks at that world only
    made, number = Counter(), first
    while sum(made[call.__name__] for call in CALLS) < operations:
        try:
            one_batch(f"{seed}, batch {number}", folder / str(number), made)
        except Wrong as e:
            again = f"""SIZE='{{"operations": 1, "first": {number}}}'"""
            raise Wrong(f"{e}\n{again} runs this batch alone") from e
        number += 1
    if number - first > 1 and not made["pages cleared"]:
        raise Wrong(f"seed {seed}: clear() removed no page")
    engines = {f"stores with {name}": made[name] for name in ("psync", "aio")}
    if number - first > 1 and not all(engines.values()):
        raise Wrong(f"seed {seed}: not every engine was used: {engines}")
    done = {call.__name__: made[call.__name__] for call in CALLS}
    return {
        "operations": sum(done.values()),
        "deployments": made["worlds"] * CONNECTORS,
        **engines,
        **{f"of them {name}": n for name, n in sorted(done.items())},
        "pages cleared": made["pages cleared"],
        "differences": 0,
    }
