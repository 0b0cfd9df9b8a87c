"""Build a UCM checkout for the CPU and make it importable: native code and virtual environment."""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from _git import lines
from _pin import BUILD, DEFAULT_UCM, ROOT
from _report import Refusal, run

VENV, HEADERS = BUILD / "venv", BUILD / "headers"
PYTHON = VENV / "bin" / "python"
PINS, SHIMS = ROOT / "ci" / "requirements", ROOT / "ci" / "vendor"
SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}
TARGETS = ["posixstore", "ucmpipelinestore", "ucmlogger", "ucmmetrics"]
GTEST, SHARED_GTEST = "ucmstore.test", "ucmshared.test"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="build", description=__doc__)
    parser.add_argument("--ucm", type=Path, default=DEFAULT_UCM, help="UCM checkout")
    parser.add_argument("--out", type=Path, default=BUILD, help="folder to build in")
    variants = ["release", "debug", *SANITIZERS]
    parser.add_argument("--variant", choices=variants, default="release")
    gtests = f"build {GTEST} and {SHARED_GTEST} as well"
    parser.add_argument("--gtest", action="store_true", help=gtests)
    parser.add_argument("--only", choices=["native", "venv"], help="do one half of it")
    args = parser.parse_args()
    args.ucm, args.out = args.ucm.resolve(), args.out.resolve()
    suffix = "" if args.variant == "release" else f"-{args.variant}"
    args.tree, args.cmake = args.out / f"tree{suffix}", args.out / f"cmake{suffix}"
    return args


def check(args: argparse.Namespace) -> None:
    """Refuse when a tool is missing or the checkout is not UCM."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    missing = {
        "python3.11": sys.version_info < (3, 11),  # SGLang's floor
        "python3-dev": not header.exists(),
        "g++": not shutil.which("c++"),
        "cmake": not shutil.which("cmake"),
        "make": not shutil.which("make"),
        "zlib1g-dev": not Path("/usr/include/zlib.h").exists(),
        "googletest": args.gtest and not Path("/usr/src/googletest").exists(),
    }
    packages = " ".join(name for name, absent in missing.items() if absent)
    if packages:
        raise Refusal(
            "something that the build needs is missing",
            expected="the packages that ci/install-debian.sh lists, or their like",
            found=f"not there: {packages}",
            next=f"apt-get install -y {packages}",
            code=2,
        )
    if args.only != "venv" and not (args.ucm / "ucm" / "store" / "posix").is_dir():
        raise Refusal(
            "there is no UCM checkout to build",
            expected="a folder with ucm/store/posix in it",
            found=str(args.ucm),
            next="make apply",
        )


def call(problem: str, command: list[object], log: Path, **where) -> None:
    """Run one step. Its output goes to `log`, or to the terminal with V=1."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as file:
        show = os.environ.get("V") == "1"
        out = {} if show else {"stdout": file, "stderr": subprocess.STDOUT}
        words = [str(word) for word in command]
        done = subprocess.run(words, check=False, **out, **where)
    if done.returncode:
        text = log.read_text(errors="replace").splitlines()
        errors = [line for line in text if re.search(r"(?i)error\b(?! \d)", line)]
        raise Refusal(
            problem,
            expected=f"success of `{Path(str(command[0])).name}`",
            found="\n".join(errors[:10] or text[-20:]),
            next=f"read {log}, or run it again with V=1",
        )


def pip(*words: object) -> None:
    command = [PYTHON, "-m", "pip", "install", "-q", *words]
    call("pip could not install the pinned packages", command, BUILD / "log/pip.txt")


@contextmanager
def once(done: Path, *files: Path):
    """Yield whether the step stamped in `done` must run: `files` or Python changed.

    The stamp is written when the step ends well. A lock keeps other builds out meanwhile.
    """
    parts = [f"{sys.version} {done}".encode(), *(file.read_bytes() for file in files)]
    wanted = hashlib.sha256(b"\0".join(parts)).hexdigest()
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / f".lock-{done.parent.name}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stale = not done.is_file() or done.read_text() != wanted
        yield stale
        if stale:
            done.write_text(wanted)


def make_base() -> None:
    """An empty environment with pip, and the headers in a folder that no import sees."""
    with once(VENV / ".base") as stale:
        if stale:
            venv.create(VENV, clear=True, with_pip=True)
    pins = PINS / "headers.txt"
    with once(HEADERS / ".stamp", pins) as stale:
        if stale:
            shutil.rmtree(HEADERS, ignore_errors=True)
            pip("--no-deps", "--target", HEADERS, "-r", pins)


def fill_venv() -> None:
    """torch and the test tools, then SGLang with what its cache modules import."""
    names = ["test.txt", "sglang-0.5.23-imports.txt", "sglang-0.5.23.txt"]
    test, imports, sglang = (PINS / name for name in names)
    stub = PINS / "torchvision.py"
    with once(VENV / ".filled", test, imports, sglang, stub) as stale:
        if stale:
            pip("-r", test)
            pip("--no-deps", "-r", imports)
            pip("--no-deps", "--require-hashes", "-r", sglang)
            site = next(VENV.glob("lib/python3*/site-packages"))
            shutil.copy(stub, site)
            # Relative to its own folder: build/tree, which is the default build.
            (site / "ucm-tree.pth").write_text("../../../../tree\n")
            module = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller"
            command = [PYTHON, "-W", "ignore", "-c", f"import {module}"]
            call("SGLang cannot be imported", command, BUILD / "log/sglang.txt")


def write(path: Path, data: bytes) -> None:
    """Write only when the bytes differ, so that make sees what changed and nothing else."""
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(data)
        fresh.replace(path)


def copy_tree(ucm: Path, tree: Path) -> None:
    """Mirror the checkout's own files, with our dependency shims among them."""
    listed = lines(ucm, "ls-files", "-z", "-co", "--exclude-standard")
    wanted = {Path(name): ucm / name for name in listed if (ucm / name).is_file()}
    for shim in SHIMS.rglob("*.*"):
        wanted["ucm/shared/vendor" / shim.relative_to(SHIMS)] = shim
    # UCM's CMake asks for this one, and its sdist lacks it.
    wanted.setdefault(Path("test/CMakeLists.txt"), Path(os.devnull))
    for name, source in wanted.items():
        write(tree / name, source.read_bytes())
    for path in tree.rglob("*"):
        kept = path.suffix in (".so", ".pyc") or path.relative_to(tree) in wanted
        if path.is_file() and not kept:
            path.unlink()


def settings(args: argparse.Namespace) -> dict[str, object]:
    """CMake's variables for this variant."""
    chosen = {
        "CMAKE_BUILD_TYPE": "Release" if args.variant == "release" else "Debug",
        # A fortified -Werror build refuses UCM's tests, which ignore system()'s result.
        "CMAKE_CXX_FLAGS_RELEASE": "-O3 -DNDEBUG -Wno-error=unused-result",
        "DOWNLOAD_DEPENDENCE": "OFF",
        "RUNTIME_ENVIRONMENT": "simu",
        "BUILD_UNIT_TESTS": "ON" if args.gtest else "OFF",
        "CMAKE_PROJECT_unified-cache-management_INCLUDE": SHIMS / "needed.cmake",
        "UCM_NEEDED": ";".join(TARGETS + [GTEST, SHARED_GTEST] * args.gtest),
        "UCM_DEP_HEADERS": HEADERS,
        "UCM_PYTHON_INCLUDE": sysconfig.get_path("include"),
        "UCM_PYTHON_SUFFIX": sysconfig.get_config_var("EXT_SUFFIX"),
    }
    if args.variant in SANITIZERS:
        kind = f"-fsanitize={SANITIZERS[args.variant]} -fno-sanitize-recover=all"
        # gcc warns about code that it instruments itself.
        extra = "-O1 -g1 -fno-omit-frame-pointer -Wno-error"
        chosen["CMAKE_CXX_FLAGS_DEBUG"] = f"{extra} {kind}"
    return chosen


def build_native(args: argparse.Namespace) -> None:
    """Compile in the copy and put the shared objects where Python looks for them."""
    copy_tree(args.ucm, args.tree)
    # UCM compiles `git rev-parse HEAD` into every file. If git found a repository around
    # the copy, each commit there would recompile everything.
    where = {"GIT_CEILING_DIRECTORIES": str(args.out)}
    where = {"cwd": args.tree, "env": {**os.environ, **where}}
    # Not Ninja: its generator refuses UCM's header-only object libraries.
    command = ["cmake", "-G", "Unix Makefiles", "-S", args.tree, "-B", args.cmake]
    command += [f"-D{name}={value}" for name, value in settings(args).items()]
    call("cmake failed", command, args.out / "log/configure.txt", **where)
    command = ["cmake", "--build", args.cmake, "-j", os.cpu_count(), "-t", "needed"]
    call("the compiler failed", command, args.out / "log/compile.txt")
    place(args)


def place(args: argparse.Namespace) -> None:
    """Put the shared objects where Python looks for them."""
    for built in args.cmake.glob("ucm/**/*.so"):
        target = args.tree / built.relative_to(args.cmake)
        if target.parent.name == "logger":  # UCM installs this one a folder further up
            target = target.parents[1] / target.name
        write(target, built.read_bytes())


def smoke(args: argparse.Namespace) -> None:
    """Import the store through the finished environment, from the tree just built."""
    code = "import ucm.store.pipeline.connector as c; print(c.__file__)"
    env = {**os.environ, "PYTHONPATH": str(args.tree)}
    kwargs = {"env": env, "capture_output": True, "text": True}
    done = subprocess.run([PYTHON, "-c", code], check=False, **kwargs)
    if done.returncode or not done.stdout.startswith(str(args.tree)):
        raise Refusal(
            "the built tree cannot be imported",
            expected=f"ucm.store.pipeline.connector from {args.tree}",
            found=done.stdout.strip() or done.stderr.strip(),
            next=f"rm -rf {args.cmake} {VENV} && make build",
        )


def main() -> None:
    args, started = parse(), time.monotonic()
    check(args)
    make_base()
    with ThreadPoolExecutor(1) as pool:  # pip downloads while the compiler runs
        filled = pool.submit(fill_venv) if args.only != "native" else None
        if args.only != "venv":
            build_native(args)
    if filled:
        filled.result()
    if not args.only and args.variant not in SANITIZERS:
        smoke(args)
    rows = {"tree": args.tree, "interpreter": PYTHON}
    if args.gtest:
        rows["gtest"] = args.cmake / "ucm" / "store" / "test" / GTEST
        rows["shared gtest"] = args.cmake / "ucm" / "shared" / "test" / SHARED_GTEST
    rows["seconds"] = f"{time.monotonic() - started:.0f}"
    for name, value in rows.items():
        print(f"{name:<13}{value}")
    print("next: make test")


if __name__ == "__main__":
    run("build", main)
