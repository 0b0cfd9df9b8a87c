"""The comparisons: who runs what, where, in which order. Every contestant runs in every round."""

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from children import Child, ChildFailed, together
from stats import order
from workloads import (
    ANCHOR,
    LOOKUPS,
    MAMBA,
    MANY,
    MHA,
    PLACES,
    SMALL,
    V4,
    Place,
    Site,
    Workload,
)

SERIES, AIO, STORE, BASE = "series", "series aio", "store", "base store"
FILE, BARE = "HiCacheFile", "C"
FILE_ALONE = "HiCacheFile, 1 torch thread"
NO_DIRECT = "has no O_DIRECT"
ONE_SIZE = "one store call moves components of one size; MAMBA has two"
NO_AIO = "no page size here is a multiple of 4096 bytes: the connector uses psync"
NO_SPARSE = "answers lookups of a prefix only: wrong for sparse keys"


_transfers_so_far = itertools.count()


@dataclass
class Case:
    """One row group of a table: samples per contestant, in the comparison's unit.

    at: the position on a curve. bytes: moved per transfer. absent: who cannot, and why.
    facts: what else was seen of a contestant: threads added, the part of its files that was
    in the page cache, CPU seconds a transfer.
    """

    label: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    facts: dict[str, dict[str, float]] = field(default_factory=dict)
    bytes: int = 0
    at: float | None = None

    def add(self, contestant: str, value: float) -> None:
        self.samples.setdefault(contestant, []).append(value)

    def drop(self, contestant: str, reason: str) -> None:
        """Only whole rounds count, so a contestant that failed once has no samples at all."""
        self.samples.pop(contestant, None)
        self.absent[contestant] = " ".join(reason.split())[-300:]


@dataclass
class Comparison:
    """Samples are seconds. references: who the others are compared with."""

    id: str
    title: str
    note: str
    references: list[str]
    cases: list[Case] = field(default_factory=list)
    curve: str = ""

    def record(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Settings:
    tree: Path
    base: Path
    memory: Path
    disk: Path
    build: Path
    rounds: int
    threads: int
    short: bool
    tell: Callable[[str], None]

    @contextmanager
    def site(self, place: Place, rank: int = 0, ranks: int = 1) -> Iterator[Site]:
        """Empty files stay behind until the run ends, in folders that nobody uses again."""
        root = tempfile.mkdtemp(dir=self.memory if place.memory else self.disk)
        try:
            yield Site(root, rank, ranks)
        finally:
            for folder, _, names in os.walk(root):
                for name in names:
                    os.truncate(os.path.join(folder, name), 0)

    def few(self, rounds: int) -> int:
        return min(self.rounds, rounds)


MEMORY, DISK, COLD, DIRECT = PLACES


def absent(name: str, workload: Workload, place: Place) -> str:
    """Why a contestant cannot take part; empty when it can."""
    mamba = any(len(set(pool.components)) > 1 for pool in workload.pools)
    if place.direct and name in (FILE, FILE_ALONE):
        return NO_DIRECT
    if mamba and name in (STORE, BASE):
        return ONE_SIZE
    if name == AIO and not any(pool.aligned for pool in workload.pools):
        return NO_AIO
    return ""


class Field:
    """The contestants of one workload at one place, each in a child of its own tree.

    With several ranks every rank has its own children, and a transfer starts in all of them
    at one moment: its time ends with the last rank.
    """

    def __init__(self, settings: Settings, site: Site, ranks: int = 1) -> None:
        self.settings = settings
        self.sites = [Site(site.root, rank, ranks) for rank in range(ranks)]
        self.children: dict[str, list[Child]] = {}
        self._all: list[Child] = []

    def open(
        self,
        workload: Workload,
        place: Place,
        names: Sequence[str],
        threads: int | None = None,
    ) -> dict[str, dict]:
        """Facts of each contestant; those that cannot take part have "absent"."""
        facts = {name: {"absent": absent(name, workload, place)} for name in names}
        able = [name for name in names if not facts[name]["absent"]]
        groups = [(self.settings.tree, [n for n in able if n != BASE])]
        if BASE in able:
            groups.append((self.settings.base, [BASE]))
        for tree, members in groups:
            children = [Child("Transfers", tree) for _ in self.sites]
            self._all += children
            given = [
                {
                    "workload": workload,
                    "site": site,
                    "names": members,
                    "threads_each": threads or self.settings.threads,
                    "direct": place.direct,
                    "build": self.settings.build,
                }
                for site in self.sites
            ]
            found = together(children, "open", given)
            if BASE not in members:
                together(children, "write_reference", [{}] * len(children))
            for name in members:
                facts[name] = found[0][name]
                if not facts[name].get("absent"):
                    self.children[name] = children
        return facts

    def transfer(self, name: str, **what) -> dict:
        """seconds from the first start to the last end; CPU seconds; cached; grown threads."""
        children = self.children[name]
        prepared = together(children, "prepare", [{"name": name, **what}] * self.ranks)
        at = time.monotonic() + 0.02 if self.ranks > 1 else None
        runs = together(children, "go", [{"at": at}] * self.ranks)
        together(children, "finish", [{}] * self.ranks)
        return {
            "seconds": max(r["end"] for r in runs) - min(r["start"] for r in runs),
            "cpu": sum(r["cpu"] for r in runs),
            "grown": runs[0]["grown"],
            "cached": prepared[0]["resident"],
        }

    @property
    def ranks(self) -> int:
        return len(self.sites)

    def close(self) -> None:
        for child in self._all:
            child.close()


def measure(
    settings: Settings,
    opened: Field,
    case: Case,
    facts: dict[str, dict],
    op: str,
    pages: int,
    cold: bool = False,
) -> None:
    """A warm-up round, then settings.rounds rounds, each contestant once a round."""
    for name, fact in facts.items():
        if fact.get("absent"):
            case.drop(name, fact["absent"])
    cpu: dict[str, list[float]] = {}
    for number in range(-1, settings.rounds):
        for name in order(list(opened.children), max(number, 0)):
            if name in case.absent:
                continue
            # Never one of an earlier case: those files are still there, and empty.
            tag = f"{op} {next(_transfers_so_far)}"
            what = {"op": op, "tag": tag, "pages": pages, "cold": cold}
            try:
                took = opened.transfer(name, **what)
            except ChildFailed as e:
                if name != BASE:
                    raise
                case.drop(name, f"fails: {e}")
                continue
            facts[name]["threads"] += took["grown"]
            if number >= 0:
                case.add(name, took["seconds"])
                cpu.setdefault(name, []).append(took["cpu"])
            if took["cached"] is not None:
                case.facts.setdefault(name, {})["cached"] = took["cached"]
    for name, spent in cpu.items():
        more = {"threads": facts[name]["threads"], "CPU": sum(spent) / len(spent)}
        case.facts[name] = case.facts.get(name, {}) | more


def transfers(settings: Settings) -> Iterator[Comparison]:
    """Sets and gets of five workloads at four places."""
    everyone = [SERIES, AIO, STORE, BASE, FILE, FILE_ALONE, BARE]
    short = {"v4": 2, "mha": 16, "kv": 16, "small": 128, "mamba": 2}
    for full in (V4, MHA, ANCHOR, SMALL, MAMBA):
        workload = full.of(short[full.name]) if settings.short else full
        comparison = Comparison(
            workload.name,
            f"{workload.title}, {workload.pages} pages each",
            f"{workload.bytes / 1e6:.1f} MB a transfer, {settings.threads} transfer "
            "threads each; every set has new keys, every get finds poisoned pages",
            [BARE, FILE_ALONE],
        )
        for place in places_for(settings, workload):
            with settings.site(place) as site, ExitStack() as stack:
                opened = Field(settings, site)
                stack.callback(opened.close)
                facts = opened.open(workload, place, everyone)
                for op in ("get",) if place.cold else ("set", "get"):
                    case = Case(f"{op}, {place.name}", bytes=workload.bytes)
                    settings.tell(f"{comparison.title}: {case.label}")
                    where = (opened, case, facts, op, workload.pages)
                    measure(settings, *where, place.cold or place.direct)
                    comparison.cases.append(case)
        yield comparison


def places_for(settings: Settings, workload: Workload) -> list[Place]:
    if settings.short:
        return [MEMORY] if workload.name in ("small", "mamba") else [DISK]
    direct = workload.aligned and direct_io_works(settings.disk)
    return [place for place in PLACES if direct or not place.direct]


def direct_io_works(folder: Path) -> bool:
    """Whether files here can be opened with O_DIRECT."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            os.close(os.open(file.name, os.O_RDONLY | os.O_DIRECT))
        except OSError:
            return False
    return True


def exists(settings: Settings) -> Iterator[Comparison]:
    """batch_exists_v2 over many keys and six pools: whole, and its two parts."""
    count = 256 if settings.short else 2048
    pools = len(LOOKUPS.pools)
    comparison = Comparison(
        "exists",
        f"batch_exists_v2, {count} keys x {pools} pools",
        f"KV included: {count * pools} block ids; {settings.threads} lookup threads",
        [BARE, FILE],
    )
    for place in (DISK,) if settings.short else (MEMORY, DISK):
        with (
            settings.site(place) as site,
            Child("Lookups", settings.tree) as ours,
            Child("Lookups", settings.base) as base,
        ):
            given = {"site": site, "count": count, "threads_each": settings.threads}
            together([ours, base], "open", [{**given, "build": settings.build}] * 2)
            ours.call("write")
            ours.call("attach", series=True)
            base.call("attach", series=False)
            for case in _exists_cases(settings, place, ours, base):
                comparison.cases.append(case)
    yield comparison


def _exists_cases(settings, place: Place, ours: Child, base: Child) -> Iterator[Case]:
    both = {SERIES: ours, FILE: ours}
    three = {SERIES: ours, BASE: base, BARE: ours}
    for what in ("all present", "none present", "sparse trailing"):
        yield rounds_of(
            settings, f"whole call, {what}, {place.name}", both, "whole", what
        )
    if place is DISK:
        hashed = {SERIES: ours, "Python hashlib": ours}
        label = "key derivation alone"
        yield rounds_of(settings, label, hashed, "derive", "all present")
    for what in ("all present", "none present", "sparse trailing"):
        label = f"lookup alone, {what}, {place.name}"
        sparse = {BASE: NO_SPARSE} if what.startswith("sparse") else {}
        yield rounds_of(settings, label, three, "lookup", what, sparse)


def rounds_of(
    settings: Settings,
    label: str,
    children: dict[str, Child],
    method: str,
    what: str,
    absent: dict[str, str] | None = None,
) -> Case:
    settings.tell(label)
    case = Case(label, absent=dict(absent or {}))
    for number in range(-1, settings.rounds):
        for name in order(list(children), max(number, 0)):
            if name in case.absent:
                continue
            try:
                took = children[name].call(method, contestant=name, case=what)
            except ChildFailed as e:
                if name != BASE:
                    raise
                case.drop(name, f"fails: {e}")
                continue
            if number >= 0:
                case.add(name, took)
    return case


def small_calls(settings: Settings) -> Iterator[Comparison]:
    """A lookup of 1 and of 128 keys, a load of one block; with 1 and with 20 stores open."""
    many = 4 if settings.short else 20
    comparison = Comparison(
        "small-calls",
        "small calls, blocks of 16 KiB",
        "seconds of one call from Python, mean of a series of calls; C runs on the calling "
        "thread, without Python",
        [BARE],
    )
    for place in (MEMORY,) if settings.short else (MEMORY, DISK):
        with settings.site(place) as site, ExitStack() as stack:
            children = {}
            for tree, kind in ((settings.tree, STORE), (settings.base, BASE)):
                for stores in (1, many):
                    child = stack.enter_context(Child("SmallCalls", tree))
                    given = {"threads_each": settings.threads, "build": settings.build}
                    child.call("open", site=site, stores=stores, **given)
                    children[f"{kind}, {stores} open"] = child
            stored = dict(children)
            children[BARE] = children[f"{STORE}, 1 open"]
            children[BARE].call("write")
            for call in (("lookup", 1, 200), ("lookup", 128, 20), ("get", 1, 100)):
                case = _small_case(settings, place, children, *call)
                case.facts = {n: c.call("counts") for n, c in stored.items()}
                comparison.cases.append(case)
    yield comparison


def _small_case(settings, place, children, what: str, count: int, loops: int) -> Case:
    title = f"load of {count} block" if what == "get" else f"lookup of {count}"
    case = Case(f"{title}, {place.name}")
    settings.tell(f"small calls: {case.label}")
    for number in range(-1, settings.rounds):
        for name in order(list(children), max(number, 0)):
            given = {"what": what, "count": count, "loops": loops}
            try:
                took = children[name].call("call", contestant=name, **given)
            except ChildFailed as e:
                if not name.startswith(BASE):
                    raise
                case.drop(name, f"fails: {e}")
                continue
            if number >= 0 and name not in case.absent:
                case.add(name, took)
    return case


def registration(settings: Settings) -> Iterator[Comparison]:
    """Seven pools with default settings, each time in a fresh process and a fresh folder."""
    comparison = Comparison(
        "registration",
        "seven pools: registered, first set, first get, destroyed",
        "default settings; the primary KV and DeepSeek V4 Flash's six pools, one page each; "
        "fresh process and folder every time",
        [BASE],
    )
    steps = ("register", "first set", "first get", "destroy")
    for place in (MEMORY,) if settings.short else (MEMORY, DISK):
        cases = {step: Case(f"{step}, {place.name}") for step in ("all three", *steps)}
        cases["all three"].label = f"register + first set + first get, {place.name}"
        for number in range(settings.few(1 if settings.short else 5)):
            for name in order([SERIES, BASE], number):
                settings.tell(f"registration: {name}, {place.name}")
                tree = settings.base if name == BASE else settings.tree
                with settings.site(place) as site, Child("Registration", tree) as child:
                    found = child.call("measure", contestant=name, site=site)
                for step in steps:
                    cases[step].add(name, found[step])
                cases["all three"].add(name, sum(found[s] for s in steps[:3]))
                counts = {k: found[k] for k in ("threads", "fds", "folders")}
                cases["all three"].facts[name] = counts
        comparison.cases += cases.values()
    yield comparison


def python_share(settings: Settings) -> Iterator[Comparison]:
    """The part of one batch_get_v2 that is spent outside the native stores."""
    workload = V4.of(8 if settings.short else 128)
    comparison = Comparison(
        "python-share",
        f"Python's part of one batch_get_v2, {workload.pages} pages x 6 pools",
        "whole call, and whole call less the time inside calls into the native stores: "
        "keys, pointers, results. Reads that run meanwhile are not taken off, so this is "
        "an upper bound",
        ["whole call"],
    )
    with settings.site(MEMORY) as site, Child("Transfers", settings.tree) as child:
        given = {"workload": workload, "site": site, "names": [SERIES], "direct": False}
        given |= {"threads_each": settings.threads, "build": settings.build}
        found = child.call("open", **given)
        if found[SERIES].get("absent"):
            raise ChildFailed(found[SERIES]["absent"], wrong=False)
        child.call("write_reference")
        case = Case(f"get, {MEMORY.name}", bytes=workload.bytes)
        settings.tell(comparison.title)
        for number in range(-1, settings.rounds):
            took = child.call("python_share", pages=workload.pages)
            if number >= 0:
                case.add("whole call", took["whole"])
                case.add("outside the stores", took["whole"] - took["native"])
        comparison.cases.append(case)
    yield comparison


def ranks_at_once(settings: Settings) -> Iterator[Comparison]:
    """Eight ranks on one machine, one process each, started at one moment."""
    ranks, workload = (2, V4.of(1)) if settings.short else (8, V4.of(4))
    comparison = Comparison(
        "ranks",
        f"{ranks} ranks at once, {workload.title}, {workload.pages} pages each",
        f"one process a rank, each with {settings.threads} transfer threads; the time ends "
        "with the last rank",
        [BARE, FILE_ALONE],
    )
    everyone = [SERIES, BASE, FILE_ALONE, BARE]
    for place in (MEMORY,) if settings.short else (MEMORY, DISK):
        comparison.cases += _at_once(settings, workload, place, ranks, everyone)
    yield comparison


def _at_once(settings, workload, place, ranks, names, label="") -> list[Case]:
    cases = []
    with settings.site(place) as site, ExitStack() as stack:
        opened = Field(settings, site, ranks)
        stack.callback(opened.close)
        facts = opened.open(workload, place, names)
        for op in ("set", "get"):
            case = Case(f"{label}{op}, {place.name}", bytes=ranks * workload.bytes)
            settings.tell(f"{ranks} ranks: {case.label}")
            measure(settings, opened, case, facts, op, workload.pages)
            cases.append(case)
    return cases


def curves(settings: Settings) -> Iterator[Comparison]:
    """Time against pages, pools, ranks and threads."""
    yield from _page_curve(settings)
    yield from _pool_curve(settings)
    yield from _rank_curve(settings)
    yield from _thread_curve(settings)


def _curve(name: str, title: str, note: str) -> Comparison:
    return Comparison(f"curve-{name}", title, note, [BARE], curve=name)


def _point(case: Case, at: float) -> Case:
    case.at = at
    return case


def _page_curve(settings: Settings) -> Iterator[Comparison]:
    points = [64, 256] if settings.short else [2**n for n in range(6, 14)]
    comparison = _curve(
        "pages", "time against pages", f"16 KiB pages, one pool, {MEMORY.name}"
    )
    with settings.site(MEMORY) as site, ExitStack() as stack:
        opened = Field(settings, site)
        stack.callback(opened.close)
        facts = opened.open(SMALL.of(points[-1]), MEMORY, [SERIES, FILE_ALONE, BARE])
        for pages in points:
            for op in ("set", "get"):
                case = Case(op, bytes=SMALL.of(pages).bytes)
                settings.tell(f"{op} of {pages} pages")
                measure(settings, opened, case, facts, f"{op}", pages)
                comparison.cases.append(_point(case, pages))
    yield comparison


def _pool_curve(settings: Settings) -> Iterator[Comparison]:
    points = [1, 4] if settings.short else [1, 2, 4, 8, 14, 20]
    comparison = _curve(
        "pools", "time against pools", f"64 pages of 16 KiB a pool, {MEMORY.name}"
    )
    for pools in points:
        found = _at_once(
            settings, MANY.of(64, pools), MEMORY, 1, [SERIES, FILE_ALONE, BARE]
        )
        for op, case in zip(("set", "get"), found, strict=True):
            case.label = op
            comparison.cases.append(_point(case, pools))
    yield comparison


def _rank_curve(settings: Settings) -> Iterator[Comparison]:
    points = [1, 2] if settings.short else [1, 2, 4, 8]
    workload = V4.of(1 if settings.short else 4)
    comparison = _curve(
        "ranks",
        "time against ranks at once",
        f"{workload.pages} pages of each of DeepSeek V4 Flash's pools a rank, {MEMORY.name}",
    )
    for ranks in points:
        found = _at_once(settings, workload, MEMORY, ranks, [SERIES, FILE_ALONE, BARE])
        for op, case in zip(("set", "get"), found, strict=True):
            case.label = op
            comparison.cases.append(_point(case, ranks))
    yield comparison


def _thread_curve(settings: Settings) -> Iterator[Comparison]:
    points = [1, 4] if settings.short else [1, 2, 4, 8, 16, 32]
    workload = V4.of(1 if settings.short else 16)
    comparison = _curve(
        "threads",
        "time against transfer threads",
        f"{workload.pages} pages of each of DeepSeek V4 Flash's pools, {MEMORY.name}; the "
        "work stays the same",
    )
    for threads in points:
        with settings.site(MEMORY) as site, ExitStack() as stack:
            opened = Field(settings, site)
            stack.callback(opened.close)
            facts = opened.open(workload, MEMORY, [SERIES, BARE], threads)
            for op in ("set", "get"):
                case = Case(op, bytes=workload.bytes)
                settings.tell(f"{op} with {threads} threads")
                measure(settings, opened, case, facts, op, workload.pages)
                comparison.cases.append(_point(case, threads))
    yield comparison


BENCHES: dict[str, Callable[[Settings], Iterator[Comparison]]] = {
    "transfers": transfers,
    "exists": exists,
    "small": small_calls,
    "registration": registration,
    "python": python_share,
    "ranks": ranks_at_once,
    "curves": curves,
}
