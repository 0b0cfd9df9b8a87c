"""Page metadata, flat pages, slots, keys and block IDs that are malformed: refused or False.

Never a crash. Of a sidecar (SWA), of the primary KV by the v1 calls, and of MAMBA.
"""

import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import hicache_kit as kit
import numpy as np
import torch
from deployments import Wrong, picks

OPS = ["register", "get", "set", "slots of a get", "slots of a set", "ids"]
ENOUGH = 300  # tries, of which each operation of each kind has its share
PAGES = 4
MINE, BESIDE = range(PAGES), range(PAGES, 2 * PAGES)
NUMBERS = [0, 1, 7, 2**31, 2**40, 2**62, 2**63, 2**64 - 1, 2**64, 2**100, -1]
ODD = [None, 1.5, float("nan"), "96", b"96", [], {}, True, object(), torch.zeros(2)]
IDS = [*(b"x" * n for n in (0, 1, 15, 17, 300)), "x" * 16, None, 7, [], object()]

# Bends that a registration may take, and why; all others it must refuse.
TAKEN = {
    "as it is": "it is right",
    "nested": "one list a page, which is a form of SGLang's pools",
    "an exception": "such a pool's pages are copied whole, as MAMBA's",
    "a size of zero": "a component without bytes is left out",
    "small sizes": "nothing but the pool tells how long its pages are",
    "a pointer nowhere": "nobody but the kernel could tell, which a transfer asks",
}


# The same of flat pages.
TAKEN_PAGES = {
    "as it is": "it is right",
    "two dimensions": "the same bytes",
    "strided": "the same bytes",
    "other numbers": "the same bytes",
    "on no device": "only its length is looked at: every transfer asks for the page again",
}


# The same of slots: SGLang 0.5.18 and before hand out more of them than pages need.
TAKEN_SLOTS = {
    "one more": "the head is meant",
    "a page more": "the head is meant",
    "all twice": "the head is meant",
    "narrow numbers": "the same slots",
}


def slot_bends() -> dict:
    """name -> what becomes of the slots: TAKEN_SLOTS or not."""
    return {
        "one more": lambda s: torch.cat([s, s[-1:] + 1]),
        "a page more": lambda s: torch.cat([s, s[: len(s) // PAGES]]),
        "all twice": lambda s: torch.cat([s, s]),
        "narrow numbers": lambda s: s.to(torch.int32),
        "None": lambda s: None,
        "none": lambda s: s[:0],
        "one": lambda s: s[:1],
        "one less": lambda s: s[:-1],
        "a page less": lambda s: s[: -(len(s) // PAGES)],
        "a row a page": lambda s: s.reshape(1, PAGES, -1),
        "fractions": lambda s: s.to(torch.float64),
        "no list": lambda s: s[0],
    }


def bends(dice) -> dict:
    """name -> what becomes of (pointers, sizes): TAKEN or not, for a page of two components."""
    number, odd, at = dice.choice(NUMBERS), dice.choice(ODD), dice.randrange(8)

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
        "an odd size": lambda m: (m[0], put(m[1], odd)),
        "an odd pointer": lambda m: (put(m[0], odd), m[1]),
        "a pointer nowhere": lambda m: (
            put(m[0], dice.choice([8, 2**47, 2**63])),
            m[1],
        ),
        "tensors": lambda m: (torch.tensor(m[0]), torch.tensor(m[1])),
        "nested": lambda m: ([[x] for x in m[0]], m[1]),
        "an exception": lambda m: 1 // 0,
    }


def page_bends(dice) -> dict:
    """name -> what becomes of a flat page: TAKEN_PAGES or not."""
    odd = dice.choice(ODD)
    return {
        "as it is": lambda p: p,
        "two dimensions": lambda p: p.reshape(2, -1),
        "strided": lambda p: torch.stack([p, p], 1)[:, 0],
        "other numbers": lambda p: p.view(torch.int8),
        "on no device": lambda p: p.to("meta"),
        "wide numbers": lambda p: p.to(torch.float64),
        "a number less": lambda p: p[:-1],
        "a number more": lambda p: torch.cat([p, p[:1]]),
        "no numbers": lambda p: p[:0],
        "a list": lambda p: p.tolist(),
        "an array": lambda p: p.numpy(),
        "None": lambda p: None,
        "odd answer": lambda p: odd,
        "an exception": lambda p: 1 // 0,
    }


@dataclass(frozen=True)
class Kind:
    """What is tried. calls: those of the pool that are bent, at register, get and set."""

    name: str
    make: Callable = kit.mha
    bends: Callable = bends
    taken: tuple = tuple(TAKEN)
    calls: tuple = (["get_page_buffer_meta"],) * 3

    def attach(self, site: kit.Site, pool):
        """The pool registered, beside another one."""
        others, anchor = {"c4": kit.paged("c4")}, kit.logical()
        if self.name == "kv":
            return site.attach(pool, others)
        return site.attach(anchor, others | {self.name: pool})

    def move(self, store, op: str, pool, keys: list, slots) -> list[bool]:
        if self.name == "kv":
            return getattr(store, f"batch_{op}_v1")(keys, slots)
        moved = kit.transfer(self.name, pool, keys, MINE)
        moved.host_indices = slots
        return getattr(store, f"batch_{op}_v2")([moved])[self.name]

    def opened(self, store):
        """The pool's store, as the connector made it."""
        connector = store.connector
        return (
            connector._anchor if self.name == "kv" else connector.pools.get(self.name)
        )


FLAT = (
    ["get_data_page", "get_dummy_flat_data_page"],
    ["set_from_flat_data_page"],
    ["get_data_page"],
)
KINDS = [
    Kind("swa"),
    Kind("kv"),
    Kind("mamba", kit.mamba, page_bends, tuple(TAKEN_PAGES), FLAT),
]


@contextmanager
def bent(pool, call: str, bend: Callable):
    """The pool's answers to a call go through a function."""
    real = getattr(pool, call)
    setattr(pool, call, lambda *args, **more: bend(real(*args, **more)))
    yield
    delattr(pool, call)


def one_try(site: kit.Site, seed: object) -> str:
    """Register with one malformation, or break a registered pool's transfers; how it ended."""
    dice = picks(seed)
    kind, what = dice.choice(KINDS), dice.choice(OPS)
    made = slot_bends() if what.startswith("slots") else kind.bends(dice)
    name = dice.choice(list(made))
    try:
        if what == "register":
            how = _register(kind, site, made[name], name, dice)
        elif what == "ids":
            name, how = "ids", _ids(kind, site, dice)
        elif what.startswith("slots"):
            how = _slots(kind, site, what.removeprefix("slots of a "), made[name], name)
        else:
            how = _transfer(kind, site, what, made[name], dice)
    except Exception as e:
        raise Wrong(f"seed {seed}: {kind.name}, {name}: {type(e).__name__}: {e}") from e
    finally:
        while site._attached:
            site._attached.pop().close()
        shutil.rmtree(site.backends[0])
        site.backends[0].mkdir()
    return f"{kind.name}, {what}, {how}"


def _register(kind: Kind, site: kit.Site, bend: Callable, name: str, dice) -> str:
    """Taken where it may be, or a ValueError that names the pool and leaves nothing behind."""
    pool, call = kind.make(), dice.choice(kind.calls[0])
    try:
        with bent(pool, call, bend):
            kind.attach(site, pool)
    except ValueError as e:
        if kind.name not in str(e):
            raise Wrong(f"the refusal does not name the pool: {e}") from e
        if list(site.backends[0].rglob(f"{kind.name}_*")) or site.files():
            raise Wrong("a refusal left files behind") from e
        if name == "as it is":
            raise
        return "refused"
    if name not in kind.taken:
        raise Wrong("taken")
    return "taken"


def _stored(kind: Kind, site: kit.Site) -> tuple:
    """A pool with pages on disk; its store, and all its bytes."""
    pool = kind.make()
    store = kind.attach(site, pool)
    data = kit.fill(pool, range(2 * PAGES))
    slots, keys = kit.slots(pool, MINE), kit.keys(PAGES, "old")
    if not all(kind.move(store, "set", pool, keys, slots)):
        raise Wrong("not stored")
    return pool, store, data


def _transfer(kind: Kind, site: kit.Site, op: str, bend: Callable, dice) -> str:
    """A load of stored pages or a store of new ones, with bent answers; then real ones."""
    stored = _stored(kind, site)
    keys = _bent_keys(_keys(op), dice)
    (call,) = kind.calls[1 if op == "get" else 2]
    found = _moved(kind, site, op, stored, keys, bent(stored[0], call, bend))
    return "some True" if any(found) else "all False"


def _keys(op: str) -> list[str]:
    """A load is of stored pages, a store of new ones."""
    return kit.keys(PAGES, "old" if op == "get" else "new")


def _slots(kind: Kind, site: kit.Site, op: str, bend: Callable, name: str) -> str:
    """The same with bent slots: all pages where they may be taken, none otherwise."""
    found = _moved(kind, site, op, _stored(kind, site), _keys(op), bend_slots=bend)
    if found != [name in TAKEN_SLOTS] * PAGES:
        raise Wrong(f"{op}: {found}")
    return "taken" if found[0] else "refused"


def _moved(
    kind: Kind,
    site: kit.Site,
    op: str,
    stored: tuple,
    keys: list,
    around: AbstractContextManager | None = None,
    bend_slots: Callable = lambda slots: slots,
) -> list[bool]:
    """The answers; nothing else has changed, and the pool works afterwards."""
    pool, store, data = stored
    old, held = kit.keys(PAGES, "old"), _held(site)
    if op == "get":
        kit.poison(pool, MINE)
    slots = bend_slots(kit.slots(pool, MINE))
    with around or nullcontext():
        found = kind.move(store, op, pool, keys, slots)
    if [type(x) for x in found] != [bool] * PAGES:
        raise Wrong(f"{op} answered {found}")
    if not kit.contents(pool, BESIDE).equal(data[PAGES:]):
        raise Wrong(f"{op}: a page beside changed")
    stored = found.count(True) if op == "set" else 0
    now = _held(site)
    if len(now) - len(held) != stored or not held.items() <= now.items():
        raise Wrong(f"{op}: {found}, and {len(held)} blocks became {len(now)}")
    if op == "set":
        _same(kind, store, pool, keys, found, data)
    elif not kit.contents(pool, MINE)[found].equal(data[:PAGES][found]):
        raise Wrong(f"get: {found}, and wrong bytes")
    _same(kind, store, pool, old, [True] * PAGES, data)
    return found


def _ids(kind: Kind, site: kit.Site, dice) -> str:
    """A call of the native store with each ID that is not 16 bytes, among good ones."""
    pool, store, data = _stored(kind, site)
    opened, held = kind.opened(store), _held(site)
    layout, good = opened.layout, opened.ids(kit.keys(PAGES, "old"))
    call = dice.choice(["lookup", "lookup_on_prefix", "load_data", "dump_data"])
    memory = np.zeros((PAGES, layout.component_count, layout.component_size), np.uint8)
    addresses = [[part.ctypes.data for part in page] for page in memory]
    more = ([0] * PAGES, addresses) if call.endswith("data") else ()
    for odd in IDS:
        ids = list(good)
        ids[dice.randrange(PAGES)] = odd
        _refused(lambda ids=ids: getattr(opened.store, call)(ids, *more), odd, call)
    if memory.any() or _held(site) != held:
        raise Wrong(f"{call} moved something")
    _same(kind, store, pool, kit.keys(PAGES, "old"), [True] * PAGES, data)
    return "refused"


def _refused(refused: Callable, odd: object, call: str) -> None:
    """With the length, or the type of what is no bytes."""
    is_bytes = isinstance(odd, bytes)
    word = f"{len(odd)} bytes" if is_bytes else type(odd).__name__
    try:
        refused()
    except (ValueError, TypeError) as e:
        if re.search(rf"\b{word}\b", str(e)):
            return
        raise Wrong(f"{call}: does not tell {word!r} of {odd!r}: {e}") from e
    raise Wrong(f"{call} took {odd!r}")


def _same(kind: Kind, store, pool, keys: list, wanted: list[bool], data) -> None:
    """These pages load, the others do not."""
    kit.poison(pool, MINE)
    found = kind.move(store, "get", pool, keys, kit.slots(pool, MINE))
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
    tried = {how.rpartition(", ")[0] for how in ended}
    missing = {f"{kind.name}, {what}" for kind in KINDS for what in OPS} - tried
    if tries >= ENOUGH and missing:
        raise Wrong(f"{tries} tries, none of {sorted(missing)}")
    return {"tries": tries, **dict(sorted(ended.items())), "crashes": 0}
