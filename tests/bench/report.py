"""Tables and charts of one run. `report.py FILE.json` makes them again from the raw numbers.

--publish-as NAME puts them into docs/ beside the published page: another machine's run.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import machine
from stats import MissingNumbers, Samples, growth, ratio
from targets import ratio_text, samples, seconds, targets

HEAD = "# Results on {cores} cores\n\nWritten by `make bench`; [performance.md](performance.md) says how to read it.\n"
ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "bench" / "site"
COLORS = {
    "series": "#1f77b4",
    "series aio": "#17becf",
    "store": "#9467bd",
    "base store": "#ff7f0e",
    "HiCacheFile": "#d62728",
    "HiCacheFile, 1 torch thread": "#e377c2",
    "C": "#2ca02c",
    "Python hashlib": "#7f7f7f",
}


def row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def grid(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    return [row(head), row(["---"] * len(head)), *(row(cells) for cells in rows)]


def against(case: dict, name: str, reference: str) -> str:
    """How many times as fast as the reference; only with both raw numbers."""
    if name == reference:
        return ""
    try:
        top = samples(case, reference) or Samples(())
        return ratio_text(ratio(top, samples(case, name) or Samples(())))
    except MissingNumbers:
        return "-"


def measured(case: dict, name: str, facts: Sequence[str]) -> list[str]:
    """Median, quartiles, bytes a second where bytes move, and these facts."""
    found = samples(case, name)
    low, high = found.quartiles
    speed = f"{case['bytes'] / found.median / 1e9:.2f} GB/s" if case["bytes"] else ""
    cells = [seconds(found.median), f"{seconds(low)} - {seconds(high)}", speed]
    seen = case["facts"].get(name, {})
    return cells + [fact(one, seen.get(one)) for one in facts]


def table(comparison: dict) -> list[str]:
    references = comparison["references"]
    extra = fact_names(comparison)
    head = ["case", "contestant", "median", "quartiles", "speed", *extra]
    head += [f"times as fast as {name}" for name in references]
    rows = []
    for case in comparison["cases"]:
        for name in case["samples"]:
            cells = [case["label"], name, *measured(case, name, extra)]
            rows.append(cells + [against(case, name, r) for r in references])
    return grid(head, rows)


def curve_table(comparison: dict) -> list[str]:
    """Growth: the exponent from the point before; 1 is linear, less is better."""
    (reference,) = comparison["references"]
    unit = comparison["curve"]
    extra = fact_names(comparison)
    head = ["op", unit, "contestant", "median", "quartiles", "speed", *extra]
    head += ["growth", f"times as fast as {reference}"]
    rows = []
    for op, name, points in lines(comparison):
        medians = [samples(c, name).median for c in points]
        steps = ["", *(f"{g:.2f}" for g in growth([c["at"] for c in points], medians))]
        for case, step in zip(points, steps, strict=True):
            cells = [op, case["at"], name, *measured(case, name, extra), step]
            rows.append([*cells, against(case, name, reference)])
    return grid(head, rows)


def lines(comparison: dict):
    """(operation, contestant, its points) of a curve."""
    cases = comparison["cases"]
    for op in dict.fromkeys(case["label"] for case in cases):
        points = [case for case in cases if case["label"] == op]
        for name in dict.fromkeys(n for case in points for n in case["samples"]):
            yield op, name, [case for case in points if name in case["samples"]]


def missing(comparison: dict) -> list[str]:
    """Who was absent, and why."""
    found = []
    for case in comparison["cases"]:
        where = case["label"] + (f" at {case['at']}" if case["at"] else "")
        for name, why in case["absent"].items():
            found.append(f"- {where}: {name} is absent, {why}")
    return found


def fact(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == "CPU":
        return seconds(value)
    return f"{value:.0%}" if name == "cached" else str(value)


def fact_names(comparison: dict) -> list[str]:
    found = [f for case in comparison["cases"] for f in case["facts"].values()]
    return list(dict.fromkeys(name for one in found for name in one))


def text(result: dict, figures: str) -> str:
    """The whole page; figures: the folder of the charts, seen from the page."""
    rounds = f"{result['rounds']} rounds, {result['threads']} threads each, "
    out = [
        HEAD.format(cores=result["machine"]["cores"]),
        f"{machine.line(result['machine'])}; {rounds}{result['seconds']} s.",
        "",
    ]
    out += ["## Targets", "", *target_table(result), ""]
    for comparison in result["comparisons"]:
        made = curve_table if comparison["curve"] else table
        out += [f"## {comparison['title']}", "", comparison["note"] + ".", ""]
        out += [f"![{comparison['title']}]({figures}/{comparison['id']}.png)", ""]
        out += [*made(comparison), ""]
        notes = missing(comparison)
        out += [*notes, ""] if notes else []
    return "\n".join(out)


def target_table(result: dict) -> list[str]:
    rows = [(t.what, t.wanted, t.measured, t.met) for t in targets(result)]
    return grid(["target", "wanted", "measured", "met?"], rows)


def targets_text(result: dict) -> str:
    found = targets(result)
    wide = max((len(t.what) for t in found), default=0)
    rows = [f"{t.what:<{wide}}  {t.wanted:>9}  {t.met:<12} {t.measured}" for t in found]
    head = "target -> measured -> met?"
    if result["short"]:
        head += "  (short run, small inputs: it shows that all of it runs, no more)"
    return "\n".join([head, *rows])


def chart(comparison: dict, path: Path) -> None:
    """One picture: bars of speed or time, lines for a curve."""
    if SITE.is_dir() and str(SITE) not in sys.path:
        sys.path.append(str(SITE))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    if comparison["curve"]:
        _draw_lines(comparison, axes)
    else:
        _draw_bars(comparison, axes)
    axes.set_title(comparison["title"])
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_lines(comparison: dict, axes) -> None:
    for op, name, points in lines(comparison):
        values = [samples(case, name).median for case in points]
        at, style = [case["at"] for case in points], "-" if op == "get" else "--"
        color = COLORS.get(name)
        axes.plot(at, values, style, marker="o", color=color, label=f"{op}, {name}")
    axes.set(xscale="log", yscale="log", xlabel=comparison["curve"], ylabel="seconds")


def _draw_bars(comparison: dict, axes) -> None:
    """The median; whiskers span the quartiles."""
    cases = comparison["cases"]
    names = list(dict.fromkeys(n for case in cases for n in case["samples"]))
    speed = all(case["bytes"] for case in cases) and len(names) > 2
    width = 0.8 / max(1, len(names))
    for number, name in enumerate(names):
        at, heights, spread = [], [], []
        for place, case in enumerate(cases):
            found = samples(case, name)
            if found is None:
                continue
            low, high = found.quartiles
            value, ends = found.median, (low, high)
            if speed:
                scale = case["bytes"] / 1e9
                value, ends = scale / value, (scale / high, scale / low)
            at.append(place + (number - (len(names) - 1) / 2) * width)
            heights.append(value)
            spread.append((value - ends[0], ends[1] - value))
        error = list(zip(*spread, strict=True))
        color = COLORS.get(name)
        axes.bar(at, heights, width, yerr=error, label=name, color=color, capsize=2)
    labels = [case["label"].replace(", ", ",\n") for case in cases]
    axes.set_xticks(range(len(cases)), labels, fontsize="x-small")
    axes.set_ylabel("GB/s" if speed else "seconds")
    if not speed:
        axes.set_yscale("log")


def write(result: dict, out: Path) -> None:
    """results.md and the charts beside it."""
    (out / "results.md").write_text(text(result, "."))
    for comparison in result["comparisons"]:
        chart(comparison, out / f"{comparison['id']}.png")


def publish(result: dict, docs: Path, name: str = "") -> None:
    """docs/performance-results.md, docs/performance/*.png, and the raw numbers of both.

    With a name each is called after it: performance-NAME.
    """
    title = f"performance-{name}" if name else "performance"
    page = f"performance-results-{name}.md" if name else "performance-results.md"
    figures = docs / title
    figures.mkdir(exist_ok=True)
    for old in figures.glob("*.png"):
        old.unlink()
    (docs / page).write_text(text(result, figures.name))
    for comparison in result["comparisons"]:
        chart(comparison, figures / f"{comparison['id']}.png")
    raw = docs / "data" / f"{title}.json"
    raw.parent.mkdir(exist_ok=True)
    raw.write_text(json.dumps(result, separators=(",", ":")) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="report", description=__doc__)
    parser.add_argument("raw", type=Path, help="a run's JSON file")
    parser.add_argument("--publish-as", metavar="NAME", help="write docs/ instead")
    args = parser.parse_args()
    result = json.loads(args.raw.read_text())
    if args.publish_as:
        publish(result, ROOT / "docs", args.publish_as)
        return 0
    write(result, args.raw.parent)
    print(targets_text(result))
    print(f"tables   {args.raw.parent / 'results.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
