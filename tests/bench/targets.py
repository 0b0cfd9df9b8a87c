"""Target, what was measured, met or not. A time is never a reason for a run to fail."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log
from statistics import linear_regression

from stats import Ratio, Samples, ratio

SERIES, BASE, FILE, BARE = "series", "base store", "HiCacheFile", "C"
FILE_ALONE = "HiCacheFile, 1 torch thread"
PLACES = ("memory (tmpfs), warm", "disk, page cache warm")
LINEAR = 1.05


@dataclass(frozen=True)
class Target:
    what: str
    wanted: str
    measured: str
    met: str


class Results:
    """A run's samples, by comparison, case and contestant."""

    def __init__(self, result: dict) -> None:
        self.comparisons = {c["id"]: c for c in result["comparisons"]}

    def cases(self, comparison: str, start: str = "") -> list[dict]:
        found = self.comparisons.get(comparison, {"cases": []})
        return [c for c in found["cases"] if c["label"].startswith(start)]

    def case(self, comparison: str, label: str) -> dict | None:
        return next((c for c in self.cases(comparison) if c["label"] == label), None)


def samples(case: dict | None, contestant: str) -> Samples | None:
    values = (case or {"samples": {}})["samples"].get(contestant)
    return Samples.of(values) if values else None


def fastest(case: dict | None, names: tuple[str, ...]) -> str:
    """The one with the least median, the first where nobody was measured."""
    found = {name: samples(case, name) for name in names}
    medians = {name: s.median for name, s in found.items() if s}
    return min(medians, key=medians.get, default=names[0])


def seconds(value: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size or unit == "us":
            scaled = value / size
            digits = 0 if scaled >= 100 else 1 if scaled >= 10 else 2
            return f"{scaled:.{digits}f} {unit}"
    raise AssertionError


def ratio_text(found: Ratio) -> str:
    """Never without its two raw numbers."""
    raw = f"{seconds(found.top)} / {seconds(found.bottom)}"
    interval = f"[{found.low:.2f}, {found.high:.2f}]"
    if not found.has_interval:
        interval = f"[of {found.rounds}]"
    return f"{found.value:.2f} {interval} = {raw}"


def _missing(what: str, wanted: str, why: str = "") -> Target:
    return Target(what, wanted, why or "-", "not measured")


def _at_least(
    what: str,
    case: dict | None,
    slow: str,
    fast: str,
    limit: float,
    interval: bool = False,
) -> Target:
    """time of `slow` over time of `fast`, at least `limit`."""
    top, bottom, wanted = samples(case, slow), samples(case, fast), f">= {limit}"
    if not top or not bottom:
        return _missing(what, wanted)
    found = ratio(top, bottom)
    met = "yes" if found.value >= limit else "no"
    if met == "no" and interval and found.has_interval and found.high >= limit:
        met = "yes (interval reaches it)"
    return Target(what, wanted, ratio_text(found), met)


def _at_most(
    what: str, case: dict | None, slow: str, fast: str, limit: float
) -> Target:
    """time of `slow` over time of `fast`, at most `limit`."""
    top, bottom, wanted = samples(case, slow), samples(case, fast), f"<= {limit}"
    if not top or not bottom:
        return _missing(what, wanted)
    found = ratio(top, bottom)
    return Target(
        what, wanted, ratio_text(found), "yes" if found.value <= limit else "no"
    )


def _time(what: str, case: dict | None, contestant: str, limit: float) -> Target:
    found, wanted = samples(case, contestant), f"<= {seconds(limit)}"
    if not found:
        return _missing(what, wanted)
    met = "yes" if found.median <= limit else "no"
    return Target(what, wanted, seconds(found.median), met)


def _transfers(results: Results) -> Iterator[Target]:
    for name, title in (("v4", "V4 mix"), ("mha", "MHA pages")):
        for op, times in (("get", 3), ("set", 2)):
            for place in PLACES:
                case = results.case(name, f"{op}, {place}")
                what = f"{op} of {title}, {place}"
                yield _at_least(f"{what}: against C", case, BARE, SERIES, 0.95, True)
                file = fastest(case, (FILE, FILE_ALONE))
                yield _at_least(f"{what}: against {file}", case, file, SERIES, times)


def _exists(results: Results) -> Iterator[Target]:
    for case in results.cases("exists", "lookup alone") or [None]:
        what = case["label"] if case else "lookup alone"
        yield _at_most(f"exists, {what}: against C", case, SERIES, BARE, 1.3)
    for case in results.cases("exists", "key derivation") or [None]:
        yield _time("exists, deriving every key", case, SERIES, 3e-3)
    for what, times in (("all present", 2), ("none present", 5)):
        for case in results.cases("exists", f"whole call, {what}") or [None]:
            label = case["label"] if case else f"whole call, {what}"
            yield _at_least(
                f"exists, {label}: against HiCacheFile", case, FILE, SERIES, times
            )


def _registration(results: Results) -> Iterator[Target]:
    for place in PLACES:
        label = f"register + first set + first get, {place}"
        case = results.case("registration", label)
        if case is None:
            yield _missing(f"registration of seven pools, {place}", "")
            continue
        counts = case["facts"].get(SERIES, {})
        for what, limit in (("threads", 32), ("folders", 63)):
            if what in counts:
                met = "yes" if counts[what] <= limit else "no"
                title = f"registration: {what} added, {place}"
                yield Target(title, f"<= {limit}", str(counts[what]), met)
        yield _at_least(f"{label}: against the base", case, BASE, SERIES, 50)
        destroy = results.case("registration", f"destroy, {place}")
        yield _time(f"seven pools destroyed, {place}", destroy, SERIES, 0.1)


def _small_calls(results: Results) -> Iterator[Target]:
    for case in results.cases("small-calls"):
        stores = [name for name in case["samples"] if name.startswith("store, ")]
        for name in stores:
            what = f"{case['label']}, {name}"
            if case["label"].startswith("lookup of 1,"):
                yield _time(what, case, name, 10e-6)
            elif case["label"].startswith("lookup"):
                yield _at_most(f"{what}: against C", case, name, BARE, 1.3)
            else:
                yield _at_most(f"{what}: against C", case, name, BARE, 3)


def _python(results: Results) -> Iterator[Target]:
    for case in results.cases("python-share") or [None]:
        what = "Python's part of one batch_get_v2"
        yield _at_most(what, case, "outside the stores", "whole call", 0.1)


def _curves(results: Results) -> Iterator[Target]:
    for comparison in results.comparisons.values():
        if not comparison["curve"] or comparison["curve"] == "threads":
            continue
        for op in ("set", "get"):
            points = [c for c in comparison["cases"] if c["label"] == op]
            found = [samples(c, SERIES) for c in points]
            if len(points) < 2 or None in found:
                continue
            at, times = [c["at"] for c in points], [f.median for f in found]
            logs = [*map(log, at)], [*map(log, times)]
            exponent = linear_regression(*logs).slope  # of the line through all points
            measured = f"{exponent:.2f}: {seconds(times[0])} at {at[0]}, "
            measured += f"{seconds(times[-1])} at {at[-1]}"
            met = "yes" if exponent <= LINEAR else "no"
            what = f"{op}, {comparison['title']}: exponent"
            yield Target(what, f"<= {LINEAR}", measured, met)


_ALL: tuple[Callable[[Results], Iterator[Target]], ...] = (
    *(_transfers, _exists, _registration, _small_calls, _python, _curves),
)


def targets(result: dict) -> list[Target]:
    results = Results(result)
    return [target for part in _ALL for target in part(results)]
