"""Run the GPU checks from a package folder: unpack, compile UCM, start engines, print one table."""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "scripts")]

import native  # noqa: E402
import report  # noqa: E402
import scenarios  # noqa: E402
from _report import Refusal, run  # noqa: E402
from lab import Lab  # noqa: E402
from models import EXACT, TINY  # noqa: E402

TWO_RANKS = ("swa", "gdn", "mamba2", "dsa-exact", "dsv4-exact")
PLANS = {
    "all": [(scenarios.everything, name) for name in TINY],
    "two-ranks": [(scenarios.two_ranks, name) for name in TWO_RANKS],
    "exact": [(scenarios.everything, f"{name}-exact") for name in EXACT],
    "clock": [(scenarios.clock,)],
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-e2e", description=__doc__)
    parser.add_argument("--sglang", required=True, help="a release that was packed")
    package = HERE.parents[1] / "build/gpu/package"
    parser.add_argument("--package", type=Path, default=package, help="see pack.py")
    parser.add_argument("--plan", choices=PLANS, default="all")
    parser.add_argument("--only", nargs="*", default=[], metavar="MODEL")
    parser.add_argument("--work", type=Path, default=Path("/tmp/ucm-gpu-e2e"))
    parser.add_argument("--out", type=Path, help="where results go (default: --work)")
    parser.add_argument("--limit", type=float, default=1500, help="seconds in all")
    parser.add_argument("--side-by-side", type=int, default=5, metavar="ENGINES")
    parser.add_argument(
        "--tree", type=Path, help="a compiled UCM, instead of the packed"
    )
    parser.add_argument("--prepare-only", action="store_true")
    return parser.parse_args()


def check_machine(args: argparse.Namespace) -> None:
    listing = args.package / f"{args.sglang}.json"
    if not listing.is_file():
        raise Refusal(
            f"SGLang {args.sglang} is not packed",
            expected=str(listing),
            found=", ".join(p.name for p in args.package.glob("*.json")) or "nothing",
            next=f"python3 ci/gpu/pack.py --sglang {args.sglang}",
            code=2,
        )
    if sys.version_info[:2] != (3, 12) or not importlib.util.find_spec("torch"):
        raise Refusal(
            "this interpreter cannot run the packed SGLang",
            expected="CPython 3.12 with what ci/gpu/base.txt lists",
            found=f"{sys.executable}, Python {sys.version.split()[0]}",
            next="make gpu-e2e PYTHON=/path/to/python3.12",
            code=2,
        )


def check_gpu() -> str:
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True)
        found = "; ".join(done.stdout.strip().splitlines())
    except FileNotFoundError:
        found = ""
    if not found:
        raise Refusal(
            "there is no NVIDIA GPU here",
            expected="nvidia-smi lists one",
            found="none",
            next="carry the package and this checkout to a machine that has one",
            code=2,
        )
    return found


def unpack(package: Path, release: str, work: Path) -> tuple[Path, Path]:
    """SGLang's and UCM's folders, unpacked once."""
    site, ucm = work / f"site-{release}", work / "ucm"
    done = site / ".unpacked"
    if not done.is_file():
        names = json.loads((package / f"{release}.json").read_text())["archives"]
        for name in names:
            target = ucm if name.startswith("ucm.") else site
            with tarfile.open(package / name) as archive:
                archive.extractall(target, filter="data")
        for stub in (HERE / "stubs").iterdir():
            if (
                not importlib.util.find_spec(stub.name)
                and not (site / stub.name).exists()
            ):
                shutil.copytree(stub, site / stub.name)
        done.touch()
    return site, ucm


def prepare(args: argparse.Namespace) -> tuple[str, ...]:
    """The folders for PYTHONPATH."""
    args.work.mkdir(parents=True, exist_ok=True)
    site, ucm = unpack(args.package, args.sglang, args.work)
    tree = args.tree or ucm / "tree"
    if not native.importable(sys.executable, tree):
        tree = native.compile_tree(ucm)
        if not native.importable(sys.executable, tree):
            raise RuntimeError(f"{tree} does not import; see {ucm}/compile.txt")
    paths = (str(site), str(tree), str(HERE))
    begun = time.monotonic()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    env["SGLANG_IS_FLASHINFER_AVAILABLE"] = "0"
    code = "from sglang.srt.entrypoints.engine import Engine; import counting_store"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=env, cwd=args.work
    )
    if done.returncode:
        raise RuntimeError("SGLang cannot be imported; the lines above say why")
    print(f"prepared: SGLang imported in {time.monotonic() - begun:.0f} s", flush=True)
    return paths


def machine(gpu: str, args: argparse.Namespace) -> dict:
    import torch

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "gpu": gpu,
        "cpus": os.cpu_count(),
        "memory_gib": round(memory),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "sglang": args.sglang,
        "plan": args.plan,
        "date": time.strftime("%Y-%m-%d"),
    }


def share_logs(lab: Lab, out: Path) -> None:
    """The engines' logs and calls as one archive; replaced whole, for a limit may cut the run."""
    fresh = out / "logs.new"
    with tarfile.open(fresh, "w:gz", compresslevel=3) as archive:
        for path in sorted(lab.work.glob("*.log")) + sorted(lab.work.glob("*-stats/*")):
            archive.add(path, arcname=str(path.relative_to(lab.work)))
    fresh.replace(out / "logs.tar.gz")


def keep_sharing(lab: Lab, out: Path, over: threading.Event) -> None:
    while not over.wait(20):
        try:
            share_logs(lab, out)
        except OSError as error:
            print(f"logs: {error}", flush=True)


def main() -> int:
    args = parse()
    began = time.monotonic()
    check_machine(args)
    gpu = check_gpu() if not args.prepare_only else ""
    paths = prepare(args)
    if args.prepare_only:
        return 0
    out = args.out or args.work
    out.mkdir(parents=True, exist_ok=True)
    cases = args.work / f"cases-{args.sglang}-{args.plan}"
    shutil.rmtree(cases, ignore_errors=True)
    cases.mkdir()
    results = out / f"{args.plan}-{args.sglang}.jsonl"
    results.write_text(json.dumps({"machine": machine(gpu, args)}) + "\n")
    lab = Lab(sys.executable, paths, cases, results, began + args.limit)
    chosen = [job for job in PLANS[args.plan] if not args.only or job[1] in args.only]
    over = threading.Event()
    threading.Thread(target=keep_sharing, args=(lab, out, over), daemon=True).start()
    with ThreadPoolExecutor(args.side_by_side) as pool:
        for done in [pool.submit(scenarios.timed, lab, *job) for job in chosen]:
            print(done.result(), flush=True)
    over.set()
    share_logs(lab, out)
    return report.show(results)


if __name__ == "__main__":
    run("gpu-e2e", main)
