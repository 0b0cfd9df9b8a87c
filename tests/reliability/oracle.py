"""Random sequences of calls on random deployments, against a dictionary."""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hicache_kit as kit
import torch
from deployments import POISON, Wrong, keys_of, known_bytes, picks

N_KEY, N_PAGE, OPERATIONS = 10, 12, 250
MODELS = ("org/a", "org/b")


@dataclass(frozen=True)
class Kind:
    """What the rules of docs/design.md say of a pool."""

    make: Callable  # (tokens a page, pages)
    shared: bool = False  # the same bytes on every TP rank of an MLA model
    follows_kv: bool = False


def _paged(row: int):
    return lambda page, pages: kit.paged("p", row=row, page=page, pages=pages)


KINDS = {
    "swa": Kind(_paged(64), shared=True),
    "indexer": Kind(_paged(40), shared=True, follows_kv=True),
    "deepseek_v4_c4": Kind(_paged(24), shared=True, follows_kv=True),
    "deepseek_v4_c128": Kind(_paged(8), shared=True, follows_kv=True),
    "deepseek_v4_c4_state": Kind(
        lambda page, pages: kit.state("p", page=page, pages=pages), shared=True
    ),
    "draft": Kind(lambda page, pages: kit.mha(page=page, pages=pages)),
    "mamba": Kind(lambda page, pages: kit.mamba(pages=pages)),
    "new": Kind(lambda page, pages: kit.mha(heads=1, page=page, pages=pages)),
}
ANCHORS = {
    "mha": (kit.mha, False),
    "mla": (kit.mla, True),
    "logical": (kit.logical, True),
    "logical, not MLA": (kit.logical, False),
}


class Rank:
    """One connector: model, ranks, its pools, and those of them that it refused."""

    def __init__(self, world: "World", model: str, tp: int, pp: int) -> None:
        self.world, self.model, self.tp, self.pp = world, model, tp, pp
        self.anchor = world.make_anchor(page=world.page, pages=N_PAGE)
        self.pools = {n: KINDS[n].make(world.page, N_PAGE) for n in world.names}
        self.attach()

    def attach(self) -> None:
        world = self.world
        options = {"pp_rank": self.pp, "pp_size": world.pp_size}
        options |= {"mla": world.mla, "model": self.model, "backends": world.backends}
        options["namespace"] = world.namespace
        tp = (self.tp, world.tp_size)
        self.store = world.site.attach(self.anchor, self.pools, tp=tp, **options)
        self.refused: set[str] = set()

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
    """Several ranks of two models on one root, and the dictionary."""

    def __init__(self, seed: object, folder: Path) -> None:
        self.dice = dice = picks(seed)
        self.site = kit.Site(folder)
        self.anchor_kind = dice.choice(list(ANCHORS))
        self.make_anchor, self.mla = ANCHORS[self.anchor_kind]
        self.logical = self.make_anchor is kit.logical
        self.page, self.backends = dice.choice([1, 2, 4, 16]), dice.choice([1, 2])
        self.namespace = dice.choice([None, "n"])  # with one, clear() does its work
        self.tp_size, self.pp_size = dice.choice([1, 2, 4]), dice.choice([1, 1, 2])
        self.names = dice.sample(list(KINDS), dice.randint(0, 5))
        self.keys, self.stored, self.count = keys_of(N_KEY, seed), {}, 0
        ranks = [(m, dice.randrange(self.tp_size)) for m in MODELS for _ in range(2)]
        self.ranks = [Rank(self, m, t, dice.randrange(self.pp_size)) for m, t in ranks]

    def step(self) -> str:
        """One call; its name. Raises Wrong."""
        rank = self.dice.choice(self.ranks)
        calls, weights = zip(*CALLS.items(), strict=True)
        (call,) = self.dice.choices(calls, weights)
        call(self, rank)
        return call.__name__

    def some(self, items: list) -> list:
        return (
            self.dice.sample(items, self.dice.randint(1, len(items))) if items else []
        )


def same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Wrong(f"{what}: found {found}, the oracle says {wanted}")


def _moved(world: World, rank: Rank) -> list[tuple[str, object, list[str], list[int]]]:
    """(pool's name, pool, keys, pages) of a transfer over some pools."""
    rows = []
    for name in world.some(list(rank.sources)):
        keys = world.some(world.keys)
        rows.append(
            (
                name,
                rank.sources[name],
                keys,
                world.dice.sample(range(N_PAGE), len(keys)),
            )
        )
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
    keys = world.some(world.keys)
    same("batch_exists", rank.store.batch_exists(keys), anchor_pages(world, rank, keys))
    one = keys[:1]
    same("exists", rank.store.exists(one[0]), anchor_pages(world, rank, one) == 1)


def exists_v2(world: World, rank: Rank) -> None:
    """Straight from the definition of a restorable prefix."""
    keys, asked = world.some(world.keys), world.some([*rank.pools, "stranger"])
    if world.dice.random() < 0.2:
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
    if name in rank.refused or world.dice.random() < 0.5:
        rank.store.register_mem_host_pool_v2(rank.pools[name], name)
        rank.refused.discard(name)
    elif name != "mamba":
        rank.store.register_mem_host_pool_v2(kit.asymmetric_mha(), name)
        rank.refused.add(name)


def clear(world: World, rank: Rank) -> None:
    """Where clear() works it empties this connector's pools, whoever filled them."""
    if rank.store.clear():
        mine = [n for n in rank.sources if n not in rank.refused]
        world.stored = {i: d for i, d in world.stored.items() if i[1] not in mine}


CALLS = {
    **{set_pages: 30, get_pages: 30, exists: 10, exists_v2: 20},
    **{remove: 4, damage: 2, reattach: 1, register: 2, clear: 1},
}


def one_world(seed: object, folder: Path, operations: int) -> Counter:
    world, made = World(seed, folder), Counter()
    try:
        for number in range(operations):
            try:
                made[world.step()] += 1
            except Exception as e:
                what = f"{world.anchor_kind}, {world.names}, tp {world.tp_size}"
                raise Wrong(f"seed {seed}, operation {number} ({what}): {e}") from e
    finally:
        world.site.close()
        shutil.rmtree(folder, ignore_errors=True)
    return made


def run(operations: int, seed: int, folder: Path) -> dict:
    """Raises Wrong. The figures: see docs/reliability.md."""
    made, worlds = Counter(), 0
    while made.total() < operations:
        rest = min(OPERATIONS, operations - made.total())
        made += one_world(f"{seed}.{worlds}", folder / str(worlds), rest)
        worlds += 1
    return {
        "operations": made.total(),
        "deployments": worlds * 4,
        **{f"of them {name}": n for name, n in sorted(made.items())},
        "differences": 0,
    }
