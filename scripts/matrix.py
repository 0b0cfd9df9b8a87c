"""Run the connector's tests on pinned SGLang releases; one table at the end.

Rows share build/venv (torch and the like); each adds its own SGLang, and packages where it
needs others. The releases and what each can do are in ci/matrix/releases.toml.
"""

import argparse
import dataclasses
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import _interface
import _releases
from _pin import BUILD, ROOT
from _releases import Release
from _report import Refusal, run

INTERFACE = _releases.DATA.parent / "interface.txt"
SUPPORT, TESTS = ROOT / "docs" / "support.md", ROOT / "tests" / "matrix"
LIMIT_S = 1200  # for the tests of a row; the longest takes a minute or two
ROWS_AT_ONCE = min(os.cpu_count() or 1, 4)  # a row keeps about one core busy


@dataclass
class Row:
    """What one release gave. `failures`: the first difference first; empty for a green row."""

    release: Release
    news: list[str] = field(default_factory=list)
    passed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    cells: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="matrix", description=__doc__)
    parser.add_argument(
        "--sglang", default="", help="releases to run; default all pinned"
    )
    parser.add_argument(
        "--tests", default="", help="only these, as contract,controller"
    )
    parser.add_argument("--canary", action="store_true", help="the newest on the index")
    parser.add_argument(
        "--probe", action="store_true", help="read interfaces, run no test"
    )
    parser.add_argument(
        "--record", action="store_true", help="write ci/matrix/interface.txt anew"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the versions as JSON"
    )
    return parser.parse_args()


def chosen(args: argparse.Namespace, pinned: list[Release]) -> list[Release]:
    if args.canary:
        newest = pinned[-1]
        version = _releases.newest()
        if version in [release.version for release in pinned]:
            print(f"no SGLang newer than {newest.version} is out")
            return []
        return [dataclasses.replace(newest, version=version, sha256="", tier="canary")]
    if not args.sglang:
        return pinned
    return _releases.select(pinned, args.sglang)


def before(release: Release, pinned: list[Release]) -> Release | None:
    """The release pinned before it, which the oldest lacks."""
    number = _releases.numbers(release.version)
    older = [r for r in pinned if _releases.numbers(r.version) < number]
    return older[-1] if older else None


def news(release: Release, pinned: list[Release]) -> list[str]:
    """What is new in its sources against the release pinned before it."""
    previous = before(release, pinned)
    if not previous:
        return []
    old, new = (_interface.read(r.source) for r in (previous, release))
    return _interface.difference(old, new)


def check_record(pinned: list[Release], record: bool) -> None:
    """interface.txt must be that of the newest pinned release, or a canary means nothing."""
    newest = pinned[-1]
    _releases.fetch(newest)
    lines = _interface.read(newest.source)
    if record:
        INTERFACE.write_text("\n".join(lines) + "\n")
    known = INTERFACE.read_text().splitlines() if INTERFACE.is_file() else []
    if known != lines:
        found = _interface.difference(known, lines)[:5]
        raise Refusal(
            f"ci/matrix/interface.txt is not the interface of SGLang {newest.version}",
            expected="what its sources say",
            found="\n".join(found) or "another order of lines",
            next="make matrix RECORD=1, and look at the difference",
        )


def check_tests(releases: list[Release], wanted: str) -> None:
    """Every name must be a file's: pytest without a file would run the whole repository."""
    known = sorted(path.stem[5:] for path in TESTS.glob("test_*.py"))
    asked = [("TESTS=", wanted.split(",") if wanted else known)]
    asked += [
        (f"tests of {r.version} in ci/matrix/releases.toml", r.tests) for r in releases
    ]
    for place, names in asked:
        unknown = sorted(set(names) - set(known))
        if unknown or not names:
            raise Refusal(
                f"{place}: not the names of tests",
                expected=f"some of {', '.join(known)}",
                found=", ".join(unknown) or "none",
                next="edit ci/matrix/releases.toml, or correct TESTS=",
                code=2,
            )


def test(row: Row, wanted: str) -> None:
    """Run the row's tests in a Python of its own and read what pytest wrote down."""
    names = [n for n in row.release.tests if not wanted or n in wanted.split(",")]
    if not names:
        row.failures.append(f"has none of these tests: {wanted}")
        return
    report = _releases.CACHE / "results" / f"{row.release.version}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", "-W", "ignore", "--tb=short"]
    command += [f"--basetemp={_releases.CACHE / f'tmp-{row.release.version}'}"]
    command += [str(TESTS / f"test_{name}.py") for name in names]
    where = {"env": _releases.environment(row.release), "cwd": ROOT}
    log = report.with_suffix(".txt")
    with open(log, "w") as file:
        try:
            done = subprocess.run(
                command, stdout=file, stderr=file, timeout=LIMIT_S, **where
            )
            ended = f"ended with {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            ended = f"was stopped after {LIMIT_S} s"
    if report.is_file():
        for case in ET.parse(report).iter("testcase"):
            _count(row, case)
    # A crash at the very end, or no test at all, leaves no failing case behind.
    if not row.failures and (ended or not row.passed):
        what = f"pytest {ended}" if ended else "no test ran"
        row.failures.append(f"{what}, see {log.relative_to(ROOT)}")


def _count(row: Row, case: ET.Element) -> None:
    name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    bad = (
        case.find("failure") if case.find("failure") is not None else case.find("error")
    )
    verdicts = {p.get("name"): p.get("value") for p in case.iter("property")}
    if bad is not None:
        words = (bad.get("message") or "").splitlines() or [""]
        row.failures.append(f"{name}: {words[0][:120]}")
    elif case.find("skipped") is not None:
        row.skipped += 1
    else:
        row.passed += 1
    if "mix" in verdicts:
        failed = f"FAILED {name}" if bad is not None else ""
        row.cells[verdicts["mix"]] = failed or verdicts.get("verdict", "")


def table(rows: list[Row]) -> str:
    """One line a release; a red one ends with the name of its first difference."""
    lines = [
        f"{'release':<14}{'tier':<11}{'new':>5}{'passed':>8}{'skipped':>9}{'s':>6}  result"
    ]
    for row in rows:
        said = row.failures[0] if row.failures else "ok"
        more = f" (+{len(row.failures) - 1})" if len(row.failures) > 1 else ""
        lines.append(
            f"{row.release.version:<14}{row.release.tier:<11}{len(row.news):>5}"
            f"{row.passed:>8}{row.skipped:>9}{row.seconds:>6.0f}  {said}{more}"
        )
    return "\n".join(lines)


def cells_of(name: str, cells: Iterable[str]) -> str:
    """A line of docs/support.md."""
    return f"| {' | '.join([name, *cells])} |"


def write_support(rows: list[Row]) -> None:
    """A full run writes the table anew; the words above it stay."""
    columns = sorted({mix for row in rows for mix in row.cells})
    lines = [cells_of("SGLang", columns), cells_of("---", ["---"] * len(columns))]
    for row in reversed(rows):
        cells = (row.cells.get(mix, "") for mix in columns)
        lines.append(cells_of(row.release.version, cells))
    text = SUPPORT.read_text() if SUPPORT.is_file() else ""
    SUPPORT.write_text(text.partition("| SGLang |")[0] + "\n".join(lines) + "\n")


def check_support(row: Row) -> list[str]:
    """A run of one row must agree with the table that is there."""
    if not SUPPORT.is_file():
        return []
    found = re.findall(
        rf"^\| {re.escape(row.release.version)} \|.*", SUPPORT.read_text(), re.M
    )
    wanted = cells_of(
        row.release.version, (row.cells[mix] for mix in sorted(row.cells))
    )
    return [] if found == [wanted] else [f"docs/support.md is not: {wanted}"]


def run_row(release: Release, pinned: list[Release], args: argparse.Namespace) -> Row:
    row, started = Row(release), time.monotonic()
    row.news = news(release, pinned)
    if release.tier == "canary":
        row.failures += [f"interface: {line}" for line in row.news[:1]]
    if not args.probe:
        try:
            _releases.check_import(release)
            test(row, args.tests)
        except Refusal as refusal:
            row.failures.append(f"{refusal}; {refusal.next}: {refusal.found}")
        if args.sglang and not args.tests:
            row.failures += check_support(row)
    row.seconds = time.monotonic() - started
    return row


def tell(row: Row) -> None:
    new = f"{len(row.news)} new in its interface"
    print(f"== SGLang {row.release.version}: {new}", flush=True)
    for line in row.news:
        print(f"   {line}")


def main() -> int:
    args, pinned = parse(), _releases.read()
    if args.list:
        versions = ", ".join(f'"{release.version}"' for release in pinned)
        print(f"[{versions}]")
        return 0
    releases = chosen(args, pinned)
    if not (BUILD / "tree" / "ucm").is_dir() and not args.probe:
        raise Refusal(
            "there is no built UCM to test",
            expected="build/tree and build/venv",
            found=f"no {BUILD / 'tree'}",
            next="make build",
        )
    check_tests(releases, args.tests)
    check_record(pinned, args.record)
    for release in releases:  # whatever is refused is refused before any test runs
        for needed in filter(None, (release, before(release, pinned))):
            _releases.fetch(needed)
    rows = []
    with ThreadPoolExecutor(ROWS_AT_ONCE) as pool:
        for row in pool.map(lambda release: run_row(release, pinned, args), releases):
            tell(row)
            rows.append(row)
    red = [row for row in rows if row.failures]
    if len(rows) == len(pinned) and not (red or args.tests or args.probe):
        write_support(rows)
    if rows:
        print(table(rows))
    if red:
        log = Path("build/matrix/results") / f"{red[0].release.version}.txt"
        print(f"next: read {log}, then docs/matrix.md")
    return 1 if red else 0


if __name__ == "__main__":
    run("matrix", main)
