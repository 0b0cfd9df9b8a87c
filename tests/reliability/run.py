"""Try to break it: `make soak`, `make soak SHORT=1`, `make soak ONLY=crash`.

A wrong byte or answer ends the run with the seed and the key. Figures go to out/soak; to docs/
only with --publish. UCM_TREE names the built tree under test (build/tree).
"""

import argparse
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import _where  # noqa: F401  (first: it says where the others are)
import concurrency
import crash
import figures
import long_run
import machine
import metadata
import oracle
import suites
import torch
import trials
from _report import Refusal
from _report import run as run_main
from _where import ROOT, TREE
from deployments import Wrong, alone

MEMORY, DISK = Path("/dev/shm"), ROOT / "build" / "soak"


@dataclass(frozen=True)
class Part:
    """run(seed=, folder=, **size) gives the figures, or raises Wrong.

    short: None for what --short leaves out, as it has stages of its own in .ci/run.
    """

    run: Callable[..., dict]
    short: dict | None
    long: dict
    place: Path = DISK


PARTS = {
    "crash": Part(crash.run, {"rounds": 6}, {"rounds": 100}),
    # In memory: while a disk holds a thread for a second the store has another one.
    "concurrency": Part(
        concurrency.run, {"seconds": 20}, {"seconds": 60}, place=MEMORY
    ),
    "faults": Part(trials.run, {}, {}),
    "oracle": Part(
        oracle.run, {"operations": 5_000}, {"operations": 100_000}, place=MEMORY
    ),
    "metadata": Part(metadata.run, {"tries": 300}, {"tries": 5_000}, place=MEMORY),
    "gtests": Part(suites.gtests, {}, {}),
    "security": Part(suites.security, {}, {}),
    "sanitizers": Part(suites.sanitizers, None, {}),
    "long run": Part(long_run.run, {"seconds": 120}, {"seconds": 3600}),
}
LIMIT_S = 2 * 3600


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--short", action="store_true", help="few and small; for CI")
    parser.add_argument("--only", help="these parts, with commas: " + ", ".join(PARTS))
    parser.add_argument("--seed", type=int, default=1, help="of all random choices (1)")
    parser.add_argument("--size", type=json.loads, default={}, help="JSON, of --only's")
    parser.add_argument(
        "--skip", default="", help="faults, with semicolons, that may be"
    )
    parser.add_argument("--publish", action="store_true", help="write docs/")
    args = parser.parse_args(arguments)
    short = [name for name, part in PARTS.items() if part.short is not None]
    possible = short if args.short else list(PARTS)
    args.only = args.only.split(",") if args.only else possible
    args.skip = args.skip.split(";") if args.skip else []
    wrong = [f"part {name!r}" for name in args.only if name not in possible]
    wrong += [f"fault {name!r}" for name in args.skip if name not in trials.CASES]
    wrong += ["--publish with another size"] * bool(
        args.publish and (args.short or args.size)
    )
    if wrong:
        raise Refusal(
            "this cannot be run",
            expected="parts and faults that exist; what is published has the long form's size",
            found=", ".join(wrong),
            next="tests/reliability/run.py --help",
            code=2,
        )
    if not (TREE / "ucm").is_dir():
        raise Refusal(
            "the tree under test is not built",
            expected="a folder with ucm/ in it",
            found=f"nothing at {TREE}",
            next="make build",
            code=2,
        )
    return args


def one(name: str, args: argparse.Namespace) -> dict:
    """Run a part in a process of its own."""
    part, begin = PARTS[name], time.monotonic()
    size = (part.short if args.short else part.long) | args.size
    if name == "faults" and args.skip:
        size |= {"may_skip": args.skip}
    part.place.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(prefix="soak-", dir=part.place))
    print(f"{name} {json.dumps(size)}", flush=True)
    try:
        found = alone(lambda: part.run(seed=args.seed, folder=folder, **size), LIMIT_S)
    except Wrong as e:
        sys.exit(f"soak: {name} FAILED\n{e}\nnext: {_again(name, size, args)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = round(time.monotonic() - begin)
    for what, value in found.items():
        print(f"    {value!s:>12}  {what}")
    print(f"    {seconds:>12}  seconds", flush=True)
    return {"figures": found, "seconds": seconds, "seed": args.seed, "size": size}


def _again(name: str, size: dict, args: argparse.Namespace) -> str:
    return (
        f"build/venv/bin/python tests/reliability/run.py --only '{name}' "
        f"--seed {args.seed} --size '{json.dumps(size)}'"
    )


def main() -> int:
    args = parse()
    logging.getLogger().addHandler(logging.NullHandler())
    torch.set_num_threads(1)  # parts fork
    result = {}
    for name in args.only:
        described = machine.describe(MEMORY, ROOT)
        result[name] = one(name, args)
        described["load at end"] = round(machine.load(), 2)
        result[name]["machine"] = machine.line(described)
    out = ROOT / "out" / "soak"
    out.mkdir(parents=True, exist_ok=True)
    raw = out / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    raw.write_text(json.dumps(result, indent=1) + "\n")
    if args.publish:
        figures.publish(result, ROOT / "docs")
    print(
        f"raw      {raw}\nsoak: nothing torn, nothing lost\nnext: docs/reliability.md"
    )
    return 0


if __name__ == "__main__":
    run_main("soak", main)
