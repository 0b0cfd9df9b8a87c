"""Judge the recorded steps and print them as tables; exit code 1 when a check fails."""

import argparse
import gzip
import json
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from models import MODELS, Model


@dataclass(frozen=True)
class Distance:
    """Two answers apart: the first token that differs; the largest difference of the logprobs
    before it; the mean difference over the likeliest candidates for the first token.
    """

    token: int | None
    answer: float
    first: float

    @property
    def zero(self) -> bool:
        return self.token is None and self.answer == 0 and self.first == 0


@dataclass(frozen=True)
class Check:
    model: str
    what: str
    ok: bool
    seen: str


def distance(a: dict, b: dict) -> Distance:
    pairs = list(zip(a["ids"], b["ids"], strict=False))
    token = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
    alike = len(pairs) if token is None else token
    logs = zip(a["logprobs"][:alike], b["logprobs"][:alike], strict=True)
    shared = a["first"].keys() & b["first"].keys()
    apart = [abs(a["first"][t] - b["first"][t]) for t in shared]
    # Where not even a quarter of the candidates is common there is no mean to take.
    first = sum(apart) / len(apart) if 4 * len(apart) >= len(a["first"]) else FAR
    answer = max((abs(x - y) for x, y in logs), default=0.0)
    return Distance(token, answer, first)


FAR = 9.0


def spread(distances: list[Distance]) -> str:
    if all(d.zero for d in distances):
        return "bit-equal"
    tokens = [d.token for d in distances if d.token is not None]
    same = len(distances) - len(tokens)
    text = f"{same}/{len(distances)} same tokens"
    text += f", first differs at {min(tokens)}" if tokens else ""
    apart = [d.first for d in distances]
    return (
        f"{text}, first token's candidates {min(apart):.4f} to {max(apart):.4f} apart"
    )


def equal(
    model: Model, xs: list[dict], ys: list[dict], noise: list[Distance]
) -> tuple[bool, str]:
    """Whether ys equal xs: in every bit, or no further apart than equal requests are."""
    across = [distance(x, y) for x, y in product(xs, ys)]
    if not across:
        return False, "not run"
    if not model.noisy:
        return all(d.zero for d in across), spread(across)
    # The noise is a sample; twice its largest value leaves room for a rarer one.
    limit = 2 * max((d.first for d in noise), default=0.0)
    return max(d.first for d in across) <= limit, spread(across)


class Steps:
    """One case's recorded steps by name."""

    def __init__(self, rows: list[dict]):
        self.rows = {row["step"]: row for row in rows if "ids" in row}
        self.notes = [row for row in rows if "ids" not in row]
        first = next((row for row in rows if "model" in row), None)
        self.model = MODELS[first["model"]] if first else None

    def all(self, prefix: str) -> list[dict]:
        names = [
            n for n in self.rows if n == prefix or n[len(prefix) :].strip().isdigit()
        ]
        return [self.rows[n] for n in names if n.startswith(prefix)]

    def noise(self) -> list[Distance]:
        """Equal requests with equal cached lengths: how far apart they are without any storage."""
        groups = [self.all(name) for name in ("cold", "device", "long device")]
        pairs = (pair for rows in groups for pair in combinations(rows, 2))
        return [distance(x, y) for x, y in pairs]

    def spoilt(self, fault: str, pool: str) -> bool:
        """Whether a fault that waits for a lookup has struck; the others always do."""
        late = [n["spoilt"] for n in self.notes if n["step"] == f"spoilt {pool}"]
        return fault != "late delete" or late == [True]


def source(row: dict, kind: str) -> int:
    return (row.get("details") or {}).get(kind, 0) or 0


def pages(row: dict) -> dict[str, dict[str, int]]:
    """Rank -> pool -> pages that came from the store."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for name, amount in row["moved"].items():
        rank, pool, op, unit = name.split(" ")
        if (op, unit) == ("get", "pages"):
            found[rank][pool] = amount
    return dict(sorted(found.items()))


def hit(model: Model, row: dict, stored: int | None = None) -> bool:
    """Every rank read every pool: each page of those that follow the KV, any of the others.

    stored: tokens that storage gave, where a part was cached before; else all that was cached.
    """
    cached, read = row["cached"] or 0, pages(row)
    wanted = cached if stored is None else stored
    ranks = 2 if row["case"].endswith("-tp2") else 1
    every = wanted // model.arguments()["page_size"]
    whole = all(
        one.get(pool, 0) >= (every if follows_kv(pool) else 1)
        for one in read.values()
        for pool in model.pools
    )
    return 0 < wanted == source(row, "storage") and whole and len(read) == ranks


def follows_kv(pool: str) -> bool:
    c = pool.startswith("deepseek_v4_c") and not pool.endswith("_state")
    return pool in ("kv", "indexer") or c


def told(row: dict) -> str:
    read = pages(row)
    each = {
        ", ".join(f"{p} {n}" for p, n in sorted(one.items())) for one in read.values()
    }
    who = f"each of {len(read)} ranks read" if len(read) > 1 else "read"
    text = f"{row['cached']} cached, {source(row, 'storage')} from storage"
    return f"{text}; {who} {' | '.join(sorted(each)) or 'nothing'}"


def judge(steps: Steps) -> list[Check]:
    model, checks = steps.model, []

    def check(what: str, ok: bool, seen: str) -> None:
        checks.append(Check(model.name, what, ok, seen))

    def same(what: str, xs, ys) -> None:
        check(what, *equal(model, xs, ys, noise))

    noise = steps.noise()
    cold, device, storage = steps.all("cold"), steps.all("device"), steps.all("storage")
    if not (cold and device and storage):
        check("hits", False, "not run")
        return checks
    check("cold run", not any(r["cached"] for r in cold), f"{cold[0]['cached']} cached")
    lengths = {r["cached"] for r in device + storage}
    check("device and storage hit alike long", len(lengths) == 1, f"{sorted(lengths)}")
    check("storage hit", all(hit(model, r) for r in storage), told(storage[0]))
    repeated = model.noisy or all(d.zero for d in noise)
    check("repeats of one request", repeated, spread(noise))
    same("storage hit = device hit", device, storage)
    for note in steps.notes:
        if note["step"] == "disk":
            folders = ", ".join(
                f"{f['folder']} ({f['blocks']})" for f in note["folders"]
            )
            ok = bool(note["folders"]) and all(f["as_named"] for f in note["folders"])
            check("folders and block sizes", ok, folders)
    for name in ("prefix", "longer", "long"):
        ours = steps.all(f"{name} storage")
        theirs = steps.all(f"{name} device")
        if ours:
            check(
                f"{name}: storage hit", all(hit(model, r) for r in ours), told(ours[0])
            )
            same(f"{name}: storage = device", theirs, ours)
    again = steps.all("restart")
    if again:
        check("restart: storage hit", all(hit(model, r) for r in again), told(again[0]))
        same("restart: storage = device before", device, again)
    for name in ("longer", "long"):
        row = steps.rows.get(f"restart {name}")
        if row:
            stored = source(row, "storage")
            check(f"restart: {name} hit", hit(model, row, stored), told(row))
            same(f"restart: {name} prompt", steps.all(f"{name} device"), [row])
    for pool in model.pools:
        judge_pool(steps, pool, check, noise)
    return checks


def judge_pool(steps: Steps, pool: str, check, noise: list[Distance]) -> None:
    """Controls and faults of one pool."""
    model, device, cold = steps.model, steps.all("device"), steps.all("cold")
    row = steps.rows.get(f"zero {pool}")
    if row:
        alike, seen = equal(model, device, [row], noise)
        ok = hit(model, row) and not alike
        check(f"zeroed {pool} is seen", ok, f"{row['cached']} cached; {seen}")
    for fault in ("delete", "truncate", "late delete"):
        row = steps.rows.get(f"{fault} {pool}")
        if row:
            alike, seen = equal(model, cold, [row], noise)
            ok = alike and not row["cached"] and steps.spoilt(fault, pool)
            check(f"{fault} {pool}: recomputed", ok, f"{row['cached']} cached; {seen}")
    row = steps.rows.get(f"healed {pool}")
    if row:
        alike, seen = equal(model, device, [row], noise)
        check(f"healed {pool}", alike and hit(model, row), f"{told(row)}; {seen}")


def clock(rows: list[dict]) -> list[dict]:
    """Medians of the timed steps: one record for each way and length."""
    times: dict = defaultdict(list)
    rates: dict = defaultdict(list)
    for row in rows:
        words = row.get("step", "").split()
        if "ids" not in row or len(words) < 3 or int(words[-1]) < 0:
            continue
        way, length = f"{row['case']}: {' '.join(words[:-2])}", int(words[-2])
        times[way, length].append(row)
        for name, seconds in row["moved"].items():
            rank, pool, op, unit = name.split(" ")
            size = row["moved"].get(f"{rank} {pool} {op} bytes", 0)
            if op == "get" and unit == "seconds" and seconds > 0 and size:
                rates[way, length, pool].append(size / seconds / 1e9)
    return [
        {
            "way": way,
            "tokens": length,
            "seconds": statistics.median(r["seconds"] for r in found),
            "lowest": min(r["seconds"] for r in found),
            "highest": max(r["seconds"] for r in found),
            "repeats": len(found),
            "cached": sorted({r["cached"] for r in found}),
            "gb_per_s": {
                pool: round(statistics.median(values), 2)
                for (w, n, pool), values in rates.items()
                if (w, n) == (way, length)
            },
        }
        for (way, length), found in sorted(
            times.items(), key=lambda item: item[0][::-1]
        )
    ]


def read(path: Path) -> tuple[dict, dict[str, list[dict]], list[dict]]:
    """The machine, the rows of each case, and how each scenario ended."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    cases: dict[str, list[dict]] = defaultdict(list)
    for row in rows:
        if "case" in row and row.get("step") != "end":
            cases[row["case"]].append(row)
    ends = [row for row in rows if row.get("step") == "end"]
    return rows[0].get("machine", {}), cases, ends


def tables(path: Path) -> tuple[str, bool]:
    """Markdown, and whether every check holds."""
    machine, cases, ends = read(path)
    lines = ["; ".join(f"{name} {value}" for name, value in machine.items()), ""]
    passed = True
    for end in ends:
        passed &= end["end"] == "done"
        lines.append(
            f"- {end['case'].strip()}: {end['end'][:300]} ({end['seconds']:.0f} s)"
        )
    lines.append("")
    for name, rows in sorted(cases.items()):
        if rows[0]["model"] == "wide" or len(rows) < 2:
            continue
        lines += [f"### {name}", "", "| check | | seen |", "|---|---|---|"]
        for found in judge(Steps(rows)):
            passed &= found.ok
            word = "ok" if found.ok else "**no**"
            lines.append(f"| {found.what} | {word} | {found.seen} |")
        lines.append("")
    lines += clock_table([r for n in cases for r in cases[n] if n.startswith("wide")])
    return "\n".join(lines).rstrip() + "\n", passed


def clock_table(rows: list[dict]) -> list[str]:
    if not rows:
        return []
    lines = ["| way | tokens | s, median | from | to | n | cached | GB/s |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for r in clock(rows):
        rates = ", ".join(f"{pool} {rate}" for pool, rate in r["gb_per_s"].items())
        lines.append(
            f"| {r['way']} | {r['tokens']} | {r['seconds']:.3f} | {r['lowest']:.3f} "
            f"| {r['highest']:.3f} | {r['repeats']} | {r['cached'][0]} | {rates} |"
        )
    return lines


def show(path: Path) -> int:
    text, passed = tables(path)
    print(text)
    print(f"results: {path}")
    return 0 if passed else 1


GROUPS = {
    "storage hit = device hit": ("storage hit",),
    "the same after a restart": ("restart",),
    "shared prefix, longer prompt": ("prefix", "longer"),
    "12,000-token prompt": ("long:",),
    "zeroed pages are seen": ("zeroed",),
    "deleted, cut, lost late: recomputed": ("delete", "truncate", "late"),
    "stored again after a fault": ("healed",),
}


def summary(paths: list[Path]) -> str:
    """One row for each kind of check, one column for each case; "5/6" is five of six that hold."""
    columns: dict[str, list[Check]] = {}
    for path in paths:
        machine, cases, _ = read(path)
        for name, rows in cases.items():
            if rows[0]["model"] != "wide" and len(rows) > 2:
                columns[f"{name}, {machine['sglang']}"] = judge(Steps(rows))
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for label, starts in GROUPS.items():
        cells = []
        for checks in columns.values():
            found = [c for c in checks if c.what.startswith(starts)]
            cells.append(cell(found))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(found: list[Check]) -> str:
    if not found:
        return "not run"
    return f"{sum(c.ok for c in found)}/{len(found)}"


def whole(paths: list[Path]) -> str:
    """The page that docs/gpu-tables.md is."""
    parts = [
        "# GPU runs: every check",
        "",
        "Made by `make gpu-tables` from `docs/data/gpu`.",
        "",
    ]
    for path in paths:
        parts += [f"## {path.name.removesuffix('.gz').removesuffix('.jsonl')}", ""]
        parts.append(tables(path)[0])
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="report", description=__doc__)
    what = "a .jsonl of run.py, as it is or gzipped"
    parser.add_argument("results", type=Path, nargs="+", help=what)
    parser.add_argument("--page", type=Path, help="write all tables there")
    parser.add_argument("--summary", action="store_true", help="one table for all")
    args = parser.parse_args()
    if args.page:
        args.page.write_text(whole(args.results))
        return 0
    if args.summary:
        print(summary(args.results))
        return 0
    return max(show(path) for path in args.results)


if __name__ == "__main__":
    sys.exit(main())
