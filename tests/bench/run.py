"""Run the comparisons: `make bench`, `make bench SHORT=1`. Nothing here judges a time.

Raw numbers, tables and charts go to out/bench; to docs/ only with --publish.
UCM_TREE names the built tree that is measured (build/tree).
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import machine
import report
from benches import BENCHES, Settings

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

from _report import Refusal, run  # noqa: E402

GIB = 2**30


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--short", action="store_true", help="small and few; for CI")
    parser.add_argument(
        "--only", action="append", choices=BENCHES, help="this part; may be repeated"
    )
    parser.add_argument("--rounds", type=int, help="rounds (15, short: 2)")
    parser.add_argument("--threads", type=int, default=8, help="of each contestant (8)")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a tmpfs")
    parser.add_argument(
        "--disk", type=Path, default=ROOT / "build" / "bench", help="on the disk"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "out" / "bench", help="results"
    )
    parser.add_argument(
        "--publish", action="store_true", help="write docs/ from this run"
    )
    args = parser.parse_args(arguments)
    args.rounds = args.rounds or (2 if args.short else 15)
    args.tree = Path(os.environ.get("UCM_TREE", ROOT / "build" / "tree")).resolve()
    args.base = ROOT / "build" / "base" / "tree"
    return args


def check(args: argparse.Namespace) -> None:
    """Refuse before anything is written."""
    for tree, make in ((args.tree, "make build"), (args.base, "make build/base/tree")):
        if not (tree / "ucm").is_dir():
            raise Refusal(
                "a tree that is compared is not built",
                expected="a folder with ucm/ in it",
                found=f"nothing at {tree}",
                next=make,
                code=2,
            )
    if args.publish and (args.short or args.only):
        raise Refusal(
            "only a whole run is published",
            expected="--publish without --short and --only",
            found="a part of the comparisons",
            next="make bench PUBLISH=1",
            code=2,
        )
    _check_room(args)


def _check_room(args: argparse.Namespace) -> None:
    needed = GIB if args.short else 4 * GIB
    args.disk.mkdir(parents=True, exist_ok=True)
    rooms = {
        f"bytes free in {args.memory}": shutil.disk_usage(args.memory).free,
        f"bytes free in {args.disk}": shutil.disk_usage(args.disk).free,
        "bytes, half of the memory available": machine.available() // 2,
    }
    short = {what: room for what, room in rooms.items() if room < needed}
    if short:
        raise Refusal(
            "the files and host pools of the comparisons do not fit",
            expected=f"{needed} bytes on either place, twice that of memory",
            found="\n".join(f"{room:>14} {what}" for what, room in short.items()),
            next="make bench SHORT=1, or other places with --memory and --disk",
            code=2,
        )


def collect(args: argparse.Namespace, memory: Path, disk: Path) -> dict:
    """memory, disk: scratch folders, whose files go when the run ends."""
    started = time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - started:6.0f} s] {text}", flush=True)

    settings = Settings(
        **{"tree": args.tree, "base": args.base, "memory": memory},
        **{"disk": disk, "build": ROOT / "build" / "bench", "tell": tell},
        **{"rounds": args.rounds, "threads": args.threads, "short": args.short},
    )
    result = {
        "machine": machine.describe(args.memory, args.disk),
        "rounds": args.rounds,
        "threads": args.threads,
        "short": args.short,
        "comparisons": [],
    }
    for name in args.only or BENCHES:
        for comparison in BENCHES[name](settings):
            result["comparisons"].append(comparison.record())
    result["machine"]["load at end"] = round(machine.load(), 2)
    result["seconds"] = round(time.monotonic() - started)
    return result


def main() -> int:
    args = parse()
    check(args)
    # What was written is removed also when someone ends the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (
        tempfile.TemporaryDirectory(prefix="ucm-bench-", dir=args.memory) as memory,
        tempfile.TemporaryDirectory(prefix="ucm-bench-", dir=args.disk) as disk,
    ):
        result = collect(args, Path(memory), Path(disk))
    args.out.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    raw = args.out / f"{stamp}.json"
    raw.write_text(json.dumps(result, indent=1) + "\n")
    report.write(result, args.out)
    if args.publish:
        report.publish(result, ROOT / "docs")
    print(report.targets_text(result))
    print(f"machine  {machine.line(result['machine'])}")
    print(f"raw      {raw}\ntables   {args.out / 'results.md'}")
    print("next: docs/performance.md says how to read them")
    return 0


if __name__ == "__main__":
    run("bench", main)
