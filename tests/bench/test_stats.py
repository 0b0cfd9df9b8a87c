"""Ratios, intervals and targets on numbers whose answer is known."""

import math
import random

import pytest
import report
from stats import MissingNumbers, Samples, growth, order, ratio
from targets import ratio_text, seconds, targets

FLAT = Samples.of([2.0] * 5)


def test_a_ratio_is_top_over_bottom():
    found = ratio(Samples.of([6, 6, 6]), Samples.of([2, 2, 2]))
    assert (found.value, found.top, found.bottom) == (3, 6, 2)
    assert (found.low, found.high) == (3, 3)


def test_the_quotient_of_the_printed_medians_is_the_ratio():
    found = ratio(Samples.of([9, 1, 5]), Samples.of([2, 4, 100]))
    assert found.value == found.top / found.bottom == 5 / 4


def test_rounds_are_drawn_whole_so_that_a_common_drift_cancels():
    drift = [1, 3, 2, 8, 5, 13, 4]
    found = ratio(Samples.of([2 * d for d in drift]), Samples.of(drift))
    assert (found.low, found.value, found.high) == (2, 2, 2)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    draw, covered, experiments = random.Random(7), 0, 150
    for number in range(experiments):
        top = [2 * draw.lognormvariate(0, 0.2) for _ in range(15)]
        bottom = [draw.lognormvariate(0, 0.2) for _ in range(15)]
        found = ratio(Samples.of(top), Samples.of(bottom), seed=number)
        covered += found.low <= 2 <= found.high
    assert 0.88 <= covered / experiments <= 1.0


def test_the_interval_is_wide_where_rounds_differ_and_narrow_where_not():
    draw = random.Random(3)
    widths = []
    for noise in (0.01, 0.3):
        sides = [[math.exp(draw.gauss(0, noise)) for _ in range(15)] for _ in "ab"]
        found = ratio(*map(Samples.of, sides))
        widths.append(found.high - found.low)
    assert widths[0] < 0.05 < 0.1 < widths[1]


def test_more_rounds_make_a_narrower_interval():
    draw = random.Random(5)
    widths = []
    for rounds in (7, 301):
        sides = [[math.exp(draw.gauss(0, 0.2)) for _ in range(rounds)] for _ in "ab"]
        found = ratio(*map(Samples.of, sides))
        widths.append(found.high - found.low)
    assert widths[1] < widths[0] / 2


@pytest.mark.parametrize(
    "missing", [[], [1.0] * 4, [1, 1, 1, 1, 0], [1, 1, math.nan, 1, 1], [-1] * 5]
)
@pytest.mark.parametrize("side", ["top", "bottom"])
def test_no_ratio_without_both_raw_numbers(side, missing):
    sides = [FLAT, Samples.of(missing)]
    with pytest.raises(MissingNumbers):
        ratio(*(sides if side == "bottom" else reversed(sides)))


def test_a_printed_ratio_carries_both_raw_numbers():
    text = ratio_text(ratio(Samples.of([6e-3] * 5), Samples.of([2e-3] * 5)))
    assert text == "3.00 [3.00, 3.00] = 6.00 ms / 2.00 ms"


def test_few_rounds_have_no_interval():
    text = ratio_text(ratio(Samples.of([6e-3] * 4), Samples.of([2e-3] * 4)))
    assert text == "3.00 [of 4] = 6.00 ms / 2.00 ms"


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.5, "2.50 s"), (0.0123, "12.3 ms"), (4.56e-4, "456 us"), (3e-9, "0.00 us")],
)
def test_seconds_have_three_digits_and_a_unit(value, text):
    assert seconds(value) == text


def test_quartiles_and_median():
    found = Samples.of([5, 1, 3, 2, 4])
    assert (found.median, found.quartiles) == (3, (2, 4))
    assert Samples.of([7]).quartiles == (7, 7)


def test_growth_is_the_exponent_between_neighbours():
    assert growth([1, 2, 8], [5, 10, 160]) == pytest.approx([1, 2])
    assert growth([1, 4], [3, 3]) == [0]


def test_every_contestant_is_first_in_its_turn():
    turns = [order("abc", number) for number in range(4)]
    assert turns == [list("abc"), list("bca"), list("cab"), list("abc")]


# ---- targets and tables, on results made up here ----


def case(label, bytes=0, at=None, facts=None, **samples):
    named = {name.replace("_", " "): list(v) for name, v in samples.items()}
    made = {"label": label, "samples": named, "absent": {}, "facts": facts or {}}
    return made | {"bytes": bytes, "at": at}


def result(identity, *cases, references=("C",), curve=""):
    comparison = {"id": identity, "title": identity, "note": "", "curve": curve}
    comparison |= {"references": list(references), "cases": list(cases)}
    machine = {"cpu": "x", "cores": 1, "memory_gib": 1, "kernel": "k", "python": "3"}
    machine |= {"file systems": {"memory": "tmpfs", "disk": "ext4"}}
    machine |= {"load at start": 0.0, "load at end": 0.1, "commit": "c"}
    made = {"machine": machine, "rounds": 3, "threads": 8, "seconds": 1, "short": False}
    return made | {"comparisons": [comparison]}


def verdict(found, start):
    (target,) = [t for t in targets(found) if t.what.startswith(start)]
    return target.met


@pytest.mark.parametrize(
    ("series", "against_c", "against_file"),
    [
        ([1.0] * 5, "yes", "yes"),
        ([1.1] * 5, "no", "yes"),
        ([0.9, 1.1, 1.1, 0.9, 1.1], "yes (interval reaches it)", "yes"),
        ([2.0] * 5, "no", "no"),
    ],
)
def test_targets_of_transfers(series, against_c, against_file):
    place = "memory (tmpfs), warm"
    times = {"series": series, "C": [1.0] * 5, "HiCacheFile": [9.0] * 5}
    made = case(f"get, {place}", **times)
    made["samples"]["HiCacheFile, 1 torch thread"] = [3.9] * 5
    found = result("v4", made)
    assert verdict(found, f"get of V4 mix, {place}: against C") == against_c
    assert verdict(found, f"get of V4 mix, {place}: against H") == against_file


def test_a_target_without_its_numbers_is_not_met():
    place = "memory (tmpfs), warm"
    found = result("v4", case(f"get, {place}", series=[1.0]))
    assert verdict(found, f"get of V4 mix, {place}: against C") == "not measured"


@pytest.mark.parametrize(("series", "met"), [(0.9e-3, "yes"), (1.4e-3, "no")])
def test_targets_of_lookups(series, met):
    label = "lookup alone, all present, x"
    found = result("exists", case(label, series=[series] * 3, C=[1e-3] * 3))
    assert verdict(found, "exists, lookup alone, all") == met


@pytest.mark.parametrize(
    ("threads", "folders", "base", "expected"),
    [(32, 63, 60.0, "yes yes yes"), (33, 64, 40.0, "no no no")],
)
def test_targets_of_registration(threads, folders, base, expected):
    place = "memory (tmpfs), warm"
    counts = {"series": {"threads": threads, "fds": 0, "folders": folders}}
    label = f"register + first set + first get, {place}"
    times = {"series": [1.0] * 3, "base_store": [base] * 3}
    found = result("registration", case(label, facts=counts, **times))
    starts = ("registration: threads", "registration: folders", label)
    assert " ".join(verdict(found, start) for start in starts) == expected


@pytest.mark.parametrize(
    ("times", "met"),
    [
        ([1, 2, 4, 8], "yes"),
        ([1, 3, 9, 27], "no"),
        ([1, 1, 1, 8], "yes"),
        ([8, 4, 32, 64], "no"),  # the ends alone would pass
    ],
)
def test_targets_of_curves(times, met):
    points = [case("set", at=2**i, series=[t]) for i, t in enumerate(times)]
    assert verdict(result("curve-x", *points, curve="x"), "set, curve-x") == met


def test_a_table_shows_who_is_absent_and_no_ratio_for_it():
    made = case("get", bytes=10**9, series=[0.5] * 3, store=[1.0] * 3)
    made["absent"]["C"] = "no compiler"
    (comparison,) = result("v4", made)["comparisons"]
    lines = report.table(comparison)
    assert lines[2] == "| get | series | 500 ms | 500 ms - 500 ms | 2.00 GB/s | - |"
    assert report.missing(comparison) == ["- get: C is absent, no compiler"]


def test_a_page_has_a_table_and_a_chart_for_every_comparison():
    times = {"series": [1.0] * 3, "C": [2.0] * 3}
    text = report.text(result("v4", case("get", **times)), "performance")
    assert "![v4](performance/v4.png)" in text
    assert "| 2.00 [of 3] = 2.00 s / 1.00 s |" in text
