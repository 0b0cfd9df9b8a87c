"""Turn the calls that a run wrote down into a trace that tests/hicache/test_gpu_traces.py replays.

    traces.py OUT CALLS [CALLS ...]     one file a rank, in the order of ranks

What the run did to the disk between calls is not among the calls; it shows in lookups that found
less than had been stored. There a line "erase" goes in, so that a replay meets the same disk.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="traces", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("calls", type=Path, nargs="+")
    parser.add_argument("--release", default="0.5.16", help="of the SGLang that called")
    parser.add_argument("--limit", type=int, default=10**9, help="lookups to keep")
    return parser.parse_args()


def numbers(runs: list[list[int]]) -> list[int]:
    return [n for first, count in runs for n in range(first, first + count)]


def runs(numbers: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for n in numbers:
        if found and n == sum(found[-1]):
            found[-1][1] += 1
        else:
            found.append([n, 1])
    return found


def leading(row: dict) -> int:
    """Pages from the first on that the lookup found in the pools that need them all."""
    whole = [t["pool"] for t in row["transfers"] if t["policy"] == "all_pages"]
    return min(row["pools"].get(pool, 10**9) for pool in ["kv", *whole])


def segments(path: Path, rank: int) -> list[list[dict]]:
    """The calls before the first lookup, then one list for each lookup and what follows."""
    found: list[list[dict]] = [[]]
    for line in path.read_text().splitlines():
        row = {"rank": rank, **json.loads(line)}
        row.pop("model_name", None)
        if row["call"].startswith("batch_exists"):
            found.append([])
        found[-1].append(row)
    return found


def merged(paths: list[Path], limit: int) -> Iterator[dict]:
    """All ranks look up before any of them reads or writes what that lookup led to."""
    ranks = [segments(path, rank) for rank, path in enumerate(paths)]
    for together in list(zip(*ranks, strict=False))[: limit + 1]:
        lookups = [s[0] for s in together if s and s[0]["call"].startswith("batch_e")]
        yield from lookups
        for segment in together:
            yield from segment[1:] if lookups else segment


def with_erasures(rows: Iterator[dict]) -> Iterator[dict]:
    stored: set[int] = set()
    for row in rows:
        if row["call"].startswith("batch_exists"):
            keys = numbers(row["keys"])
            run = next((i for i, k in enumerate(keys) if k not in stored), len(keys))
            found = leading(row)
            if found < run:
                lost = set(keys[found:]) if found else stored
                yield {"call": "erase", "keys": runs(sorted(lost))}
                stored -= lost
        elif row["call"] == "batch_set_v1":
            stored |= set(numbers(row["keys"]))
        yield row


def main() -> None:
    args = parse()
    head = {"call": "release", "release": [int(n) for n in args.release.split(".")]}
    lines = [head, *with_erasures(merged(args.calls, args.limit))]
    args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{args.out}: {len(lines)} calls")


if __name__ == "__main__":
    main()
