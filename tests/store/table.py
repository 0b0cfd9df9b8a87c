"""Print the conformance table in Markdown from two result files of `--conformance`.

table.py BASE.json PATCHED.json > docs/store-conformance.md
"""

import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

HEAD = """# Store conformance

What `tests/store` asks of a store, and how the unpatched base and the patched tree answer: cases passed
of cases run, for each engine. A test without an engine of its own is counted under psync. Made by
`tests/store/table.py` from two runs of `pytest tests/store --conformance=FILE`, see there.
"""
ENGINES = ("psync", "aio")


def read(path: str) -> dict[str, dict]:
    return json.loads(Path(path).read_text())


def engine_of(node: str) -> str:
    words = re.split(r"[\[\]-]", node)
    return "aio" if "aio" in words else "psync"


def counts(results: dict[str, dict]) -> dict[tuple[str, str], Counter]:
    """Outcomes by (test function, engine)."""
    found = defaultdict(Counter)
    for node, result in results.items():
        found[node.split("[")[0], engine_of(node)][result["outcome"]] += 1
    return found


def cell(outcomes: Counter) -> str:
    ran = outcomes["passed"] + outcomes["failed"]
    if ran == 0:
        return "skipped" if outcomes else "-"
    mark = "" if outcomes["failed"] == 0 else "**"
    return f"{mark}{outcomes['passed']}/{ran}{mark}"


def table(base: dict[str, dict], patched: dict[str, dict]) -> list[str]:
    sides = [counts(base), counts(patched)]
    invariants = {n.split("[")[0]: r["invariant"] for n, r in (base | patched).items()}
    lines, section = [], None
    for test, invariant in invariants.items():
        file, name = test.split("::")[-2:]
        if Path(file).stem != section:
            section = Path(file).stem
            lines += [
                "",
                f"## {section}",
                "",
                "| test | what must hold | base psync | base aio ",
            ]
            lines[-1] += "| patched psync | patched aio |"
            lines.append("|---|---|---|---|---|---|")
        cells = [cell(side[test, engine]) for side in sides for engine in ENGINES]
        words = invariant.replace("|", "\\|")
        lines.append(
            f"| `{name.removeprefix('test_')}` | {words} | {' | '.join(cells)} |"
        )
    return lines


def total(name: str, results: dict[str, dict]) -> str:
    outcomes = Counter(r["outcome"] for r in results.values())
    return f"{name}: {outcomes['passed']} passed, {outcomes['failed']} failed, {outcomes['skipped']} skipped."


def main() -> None:
    base, patched = map(read, sys.argv[1:3])
    print(HEAD)
    print(total("Base", base), total("Patched", patched))
    print("\n".join(table(base, patched)))


if __name__ == "__main__":
    main()
