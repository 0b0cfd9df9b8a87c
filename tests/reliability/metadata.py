"""Page metadata, slots and keys that are malformed: refused or False, never a crash."""

import logging
import shutil
from collections import Counter
from pathlib import Path

import hicache_kit as kit
import torch
from deployments import Wrong, picks

NAME, PAGES = "swa", 4
MINE, BESIDE = range(PAGES), range(PAGES, 2 * PAGES)
NUMBERS = [0, 1, 7, 2**31, 2**40, 2**62, 2**63, 2**64 - 1, 2**64, 2**100, -1]
ODD = [None, 1.5, float("nan"), "96", b"96", [], {}, True, object(), torch.zeros(2)]

# Bends that a registration may take, and why; all others it must refuse.
TAKEN = {
    "as it is": "it is right",
    "nested": "one list a page, which is a form of SGLang's pools",
    "an exception": "such a pool's pages are copied whole, as MAMBA's",
    "an odd size, a list first": "looks like one list a page, and fails: then as above",
    "an odd pointer, a list first": "the same",
    "a size of zero": "a component without bytes is left out",
    "small sizes": "nothing but the pool tells how long its pages are",
    "an odd pointer": "only null is looked for: every transfer asks for pointers again",
    "a pointer nowhere": "the same",
}


class Bent:
    """A real pool whose page metadata goes through a function."""

    def __init__(self, pool, bend) -> None:
        self._pool, self._bend = pool, bend

    def __getattr__(self, name: str):
        return getattr(self._pool, name)

    def get_page_buffer_meta(self, indices):
        return self._bend(self._pool.get_page_buffer_meta(indices))


def bends(dice) -> dict:
    """name -> what becomes of (pointers, sizes): TAKEN or not, for a page of two components."""
    number, odd, at = dice.choice(NUMBERS), dice.choice(ODD), dice.randrange(8)
    first = ", a list first" if isinstance(odd, list) and at % 2 == 0 else ""
    null = (
        ", null" if odd is None or isinstance(odd, (list, dict, torch.Tensor)) else ""
    )

    def put(values, value):
        values = list(values)
        values[at % len(values)] = value
        return values

    return {
        "as it is": lambda m: m,
        "None": lambda m: None,
        "two Nones": lambda m: (None, None),
        "odd answer": lambda m: odd,
        "one list": lambda m: m[:1],
        "three lists": lambda m: (*m, m[0]),
        "pointers missing": lambda m: (m[0][:-1], m[1]),
        "sizes missing": lambda m: (m[0], m[1][:-1]),
        "a page missing": lambda m: (m[0][:-2], m[1][:-2]),
        "nothing": lambda m: ([], []),
        "null pointer": lambda m: (put(m[0], 0), m[1]),
        "null pointers": lambda m: ([0] * len(m[0]), m[1]),
        "zero sizes": lambda m: (m[0], [0] * len(m[1])),
        "a size of zero" if number == 0 else "a size": lambda m: (
            m[0],
            put(m[1], number),
        ),
        "small sizes" if number in (1, 7) else "all sizes": lambda m: (
            m[0],
            [number] * len(m[1]),
        ),
        "an odd size" + first: lambda m: (m[0], put(m[1], odd)),
        "an odd pointer" + (first or null): lambda m: (put(m[0], odd), m[1]),
        "a pointer nowhere": lambda m: (
            put(m[0], dice.choice([8, 2**47, 2**63])),
            m[1],
        ),
        "tensors": lambda m: (torch.tensor(m[0]), torch.tensor(m[1])),
        "nested": lambda m: ([[x] for x in m[0]], m[1]),
        "an exception": lambda m: 1 // 0,
    }


def one_try(site: kit.Site, seed: object) -> str:
    """Register with one malformation, or break a registered pool's transfers; how it ended."""
    dice = picks(seed)
    store = site.attach(kit.logical(), {"c4": kit.paged("c4")})
    made = bends(dice)
    name = dice.choice(list(made))
    pool = kit.mha()
    try:
        if dice.random() < 0.5:
            return f"register, {_register(store, site, Bent(pool, made[name]), name)}"
        store.register_mem_host_pool_v2(pool, NAME)
        return f"transfer, {_transfer(store, site, pool, made[name], name, dice)}"
    except Exception as e:
        raise Wrong(f"seed {seed}: {name}: {type(e).__name__}: {e}") from e
    finally:
        store.close()
        site._attached.remove(store)
        shutil.rmtree(site.backends[0] / "sglang_v2")


def _register(store, site: kit.Site, pool: Bent, name: str) -> str:
    """Taken where it may be, or a ValueError that names the pool and leaves nothing behind."""
    before = site.everything()
    try:
        store.register_mem_host_pool_v2(pool, NAME)
    except ValueError as e:
        if NAME not in str(e):
            raise Wrong(f"the refusal does not name the pool: {e}") from e
        if site.everything() != before:
            raise Wrong("a refusal left files behind") from e
        if name == "as it is":
            raise
        return "refused"
    if name not in TAKEN:
        raise Wrong("taken")
    return "taken"


def _transfer(store, site: kit.Site, pool, bend, name: str, dice) -> str:
    """A load of stored pages or a store of new ones, with bent metadata; then real ones."""
    old, op = kit.keys(PAGES), dice.choice(["get", "set"])
    real = pool.get_page_buffer_meta
    kit.fill(pool, range(2 * PAGES))
    kit.put(store, NAME, pool, old, MINE)
    data, held = kit.contents(pool, range(2 * PAGES)), _held(site)
    keys = _bent_keys(old if op == "get" else kit.keys(PAGES, "new"), dice)
    if op == "get":
        kit.poison(pool, MINE)
    pool.get_page_buffer_meta = lambda indices: bend(real(indices))
    moved = kit.transfer(NAME, pool, keys, MINE)
    if name == "as it is":
        moved.host_indices = dice.choice(
            [None, moved.host_indices[:-1], torch.empty(0)]
        )
    found = getattr(store, f"batch_{op}_v2")([moved])[NAME]
    pool.get_page_buffer_meta = real
    if [type(x) for x in found] != [bool] * PAGES:
        raise Wrong(f"{op} answered {found}")
    if not kit.contents(pool, BESIDE).equal(data[PAGES:]):
        raise Wrong(f"{op}: a page beside changed")
    stored = found.count(True) if op == "set" else 0
    now = _held(site)
    if len(now) - len(held) != stored or not held.items() <= now.items():
        raise Wrong(f"{op}: {found}, and {len(held)} blocks became {len(now)}")
    if op == "set":
        _same(store, pool, keys, found, data)
    elif not kit.contents(pool, MINE)[found].equal(data[:PAGES][found]):
        raise Wrong(f"get: {found}, and wrong bytes")
    _same(store, pool, old, [True] * PAGES, data)
    return f"{op}, {'some True' if any(found) else 'all False'}"


def _same(store, pool, keys: list, wanted: list[bool], data: torch.Tensor) -> None:
    """These pages load, the others do not."""
    kit.poison(pool, MINE)
    found = store.batch_get_v2([kit.transfer(NAME, pool, keys, MINE)])[NAME]
    if found != wanted:
        raise Wrong(f"loaded afterwards: {found}, not {wanted}")
    if not kit.contents(pool, MINE)[found].equal(data[:PAGES][found]):
        raise Wrong("loaded afterwards: wrong bytes")


def _held(site: kit.Site) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in site.files()}


def _bent_keys(keys: list[str], dice) -> list:
    if dice.random() < 0.8:
        return keys
    odd = dice.choice([None, 7, "", "\0", "é" * 300, "\udcff", b"x", "../" * 30])
    return [*keys[:-1], odd]


def run(tries: int, seed: int, folder: Path) -> dict:
    """Raises Wrong; a crash ends the process. The figures: see docs/reliability.md."""
    logging.disable(logging.CRITICAL)
    site, ended = kit.Site(folder), Counter()
    for number in range(tries):
        ended[one_try(site, f"{seed}.{number}")] += 1
    return {"tries": tries, **dict(sorted(ended.items())), "crashes": 0}
