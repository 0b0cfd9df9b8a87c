"""Build a UCM checkout for the CPU and make it importable: native code and virtual environment."""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from _git import lines
from _pin import BUILD, DEFAULT_UCM, ROOT
from _report import Refusal, run

VENV = BUILD / "venv"
HEADERS = BUILD / "headers"
REQUIREMENTS = ROOT / "ci" / "requirements"
SHIMS = ROOT / "ci" / "vendor"
VENDOR = Path("ucm/shared/vendor")
SGLANG = "0.5.23"
SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}
TARGETS = ["posixstore", "ucmpipelinestore", "ucmlogger", "ucmmetrics"]
GTEST = "ucmstore.test"
# A module that setup.py's install step puts elsewhere than in the folder that builds it.
MOVED = {"ucm/shared/infra/logger": "ucm/shared/infra"}

# SGLang's and transformers' image code names torchvision when it is imported, and a real
# one needs the very torch it was built with. No cache module ever calls what is named.
TORCHVISION = '''"""Stand-in written by build.py: importable, and of no other use."""
import sys
from unittest.mock import MagicMock

__path__, __version__ = [], "0"
for _name in ("io", "transforms", "transforms.functional", "transforms.v2"):
    sys.modules[f"torchvision.{_name}"] = MagicMock(name=_name)
'''


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="build", description=__doc__)
    parser.add_argument("--ucm", type=Path, default=DEFAULT_UCM, help="UCM checkout")
    parser.add_argument("--out", type=Path, default=BUILD, help="folder to build in")
    variants = ["release", "debug", *SANITIZERS]
    parser.add_argument("--variant", choices=variants, default="release")
    parser.add_argument("--gtest", action="store_true", help=f"build {GTEST} as well")
    parser.add_argument("--only", choices=["native", "venv"], help="do one half of it")
    args = parser.parse_args()
    args.ucm, args.out = args.ucm.resolve(), args.out.resolve()
    suffix = "" if args.variant == "release" else f"-{args.variant}"
    args.tree, args.cmake = args.out / f"tree{suffix}", args.out / f"cmake{suffix}"
    return args


def check(args: argparse.Namespace) -> None:
    """Refuse when a tool is missing or the checkout is not UCM."""
    if sys.version_info < (3, 11):
        raise Refusal(
            "this Python is too old",
            expected=f"Python 3.11 or newer, as SGLang {SGLANG} asks for",
            found=sys.version.split()[0],
            next="make build PYTHON=python3.11",
            code=2,
        )
    if args.only != "venv" and not (args.ucm / "ucm" / "store" / "posix").is_dir():
        raise Refusal(
            "there is no UCM checkout to build",
            expected="a folder with ucm/store/posix in it",
            found=str(args.ucm),
            next="make apply",
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    missing = {
        "g++": not shutil.which("c++"),
        "cmake": not shutil.which("cmake"),
        "make": not shutil.which("make"),
        "zlib1g-dev": not Path("/usr/include/zlib.h").exists(),
        "python3-dev": not header.exists(),
        "googletest": args.gtest and not Path("/usr/src/googletest").exists(),
    }
    packages = " ".join(name for name, absent in missing.items() if absent)
    if packages:
        raise Refusal(
            "a tool that the build needs is missing",
            expected="Debian's or Ubuntu's package of it, or the same by other means",
            found=f"not installed: {packages}",
            next=f"apt-get install -y {packages}",
            code=2,
        )


def call(problem: str, command: list[object], log: Path, env=None) -> None:
    """Run one step. Its output goes to `log`, or to the terminal with V=1."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as file:
        show = os.environ.get("V") == "1"
        out = {} if show else {"stdout": file, "stderr": subprocess.STDOUT}
        done = subprocess.run([str(word) for word in command], env=env, **out)
    if done.returncode:
        text = log.read_text(errors="replace").splitlines()
        errors = [line for line in text if "error" in line.lower()]
        raise Refusal(
            problem,
            expected=f"success of `{command[0]}`",
            found="\n".join(errors[:10] or text[-20:]),
            next=f"read {log}, or run it again with V=1",
        )


@contextmanager
def once(done: Path, *inputs: object):
    """Yield whether the step that `done` stamps has to run: its inputs or Python changed.

    Files count by content. The stamp is written when the step ends well, and a lock
    keeps a second build out meanwhile.
    """
    digest = hashlib.sha256(f"{sys.version} {done}".encode())
    for item in inputs:
        digest.update(item.read_bytes() if isinstance(item, Path) else item.encode())
    wanted = digest.hexdigest()
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / f".lock-{done.parent.name}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stale = not done.is_file() or done.read_text() != wanted
        yield stale
        if stale:
            done.write_text(wanted)


def pip(*words: object) -> None:
    command = [VENV / "bin" / "python", "-m", "pip", "install", "-q", *words]
    call("pip could not install the pinned packages", command, BUILD / "log/pip.txt")


def make_base() -> None:
    """An empty environment with pip, and the headers in a folder that no import sees."""
    with once(VENV / ".base") as stale:
        if stale:
            venv.create(VENV, clear=True, with_pip=True)
    pinned = REQUIREMENTS / "headers.txt"
    with once(HEADERS / ".stamp", pinned) as stale:
        if stale:
            shutil.rmtree(HEADERS, ignore_errors=True)
            # They serve any Python, whatever the package says.
            options = ["--no-deps", "--ignore-requires-python", "--target", HEADERS]
            pip(*options, "-r", pinned)


def fill_venv() -> None:
    """torch and the test tools, then SGLang with what its cache modules import."""
    names = ["test", f"sglang-{SGLANG}-imports", f"sglang-{SGLANG}"]
    test, imports, sglang = (REQUIREMENTS / f"{name}.txt" for name in names)
    with once(VENV / ".filled", test, imports, sglang, TORCHVISION) as stale:
        if stale:
            pip("-r", test)
            pip("--no-deps", "-r", imports)
            pip("--no-deps", "--require-hashes", "-r", sglang)
            site = next(VENV.glob("lib/python3*/site-packages"))
            (site / "torchvision.py").write_text(TORCHVISION)
            # Relative to its own folder: the default build's tree.
            (site / "ucm-tree.pth").write_text("../../../../tree\n")


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write only when the bytes differ, so that make sees what changed and nothing else."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(data)
    fresh.chmod(mode)
    fresh.replace(path)


def copy_tree(ucm: Path, tree: Path) -> None:
    """Mirror the checkout's own files, with our dependency shims among them."""
    listed = lines(ucm, "ls-files", "-z", "-co", "--exclude-standard")
    wanted = {Path(name): ucm / name for name in listed if (ucm / name).is_file()}
    for shim in SHIMS.rglob("*.*"):
        wanted[VENDOR / shim.relative_to(SHIMS)] = shim
    blank = Path("test/CMakeLists.txt")  # UCM's CMake asks for it, its sdist lacks it
    wanted.setdefault(blank, Path(os.devnull))
    for name, source in wanted.items():
        write(tree / name, source.read_bytes(), source.stat().st_mode & 0o755)
    for path in tree.rglob("*"):
        if path.suffix not in (".so", ".pyc") and path.is_file():
            if path.relative_to(tree) not in wanted:
                path.unlink()


def settings(args: argparse.Namespace) -> dict[str, object]:
    """CMake's variables for this variant."""
    targets = TARGETS + ([GTEST] if args.gtest else [])
    chosen = {
        "CMAKE_BUILD_TYPE": "Release" if args.variant == "release" else "Debug",
        # A fortified -Werror build refuses UCM's tests, which ignore system()'s result.
        "CMAKE_CXX_FLAGS_RELEASE": "-O3 -DNDEBUG -Wno-error=unused-result",
        "DOWNLOAD_DEPENDENCE": "OFF",
        "RUNTIME_ENVIRONMENT": "simu",
        "BUILD_UNIT_TESTS": "ON" if args.gtest else "OFF",
        "CMAKE_PROJECT_unified-cache-management_INCLUDE": SHIMS / "needed.cmake",
        "UCM_NEEDED": ";".join(targets),
        "UCM_DEP_HEADERS": HEADERS,
        "UCM_PYTHON_INCLUDE": sysconfig.get_path("include"),
        "UCM_PYTHON_SUFFIX": sysconfig.get_config_var("EXT_SUFFIX"),
    }
    if args.variant in SANITIZERS:
        kind = f"-fsanitize={SANITIZERS[args.variant]} -fno-sanitize-recover=all"
        # gcc warns about code that it instruments itself.
        extra = "-O1 -g -fno-omit-frame-pointer -Wno-error"
        chosen["CMAKE_CXX_FLAGS_DEBUG"] = f"{extra} {kind}"
    return chosen


def build_native(args: argparse.Namespace) -> None:
    """Compile in the copy and put the shared objects where Python looks for them."""
    copy_tree(args.ucm, args.tree)
    log = args.out / "log"
    # UCM compiles `git rev-parse HEAD` into every file. If git found a repository around
    # the copy, each commit there would recompile everything.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(args.out)}
    # Not Ninja: its generator refuses UCM's header-only object libraries.
    command = ["cmake", "-G", "Unix Makefiles", "-S", args.tree, "-B", args.cmake]
    command += [f"-D{name}={value}" for name, value in settings(args).items()]
    call("cmake failed", command, log / "configure.txt", env)
    command = ["cmake", "--build", args.cmake, "-j", os.cpu_count(), "-t", "needed"]
    call("the compiler failed", command, log / "compile.txt")
    for built in args.cmake.glob("ucm/**/*.so"):
        folder = built.parent.relative_to(args.cmake).as_posix()
        place = args.tree / MOVED.get(folder, folder) / built.name
        write(place, built.read_bytes(), 0o755)


def preload(variant: str) -> dict[str, str]:
    """What Python needs in its environment to load code built with a sanitizer."""
    if variant not in SANITIZERS:
        return {}
    name = f"-print-file-name=lib{variant}.so"
    path = subprocess.run(["c++", name], capture_output=True, text=True).stdout.strip()
    quiet = {"asan": {"ASAN_OPTIONS": "detect_leaks=0"}, "tsan": {}}
    return {"LD_PRELOAD": path, **quiet[variant]}


def smoke(args: argparse.Namespace) -> str:
    """Import the store through the finished environment; return where it lies."""
    code = "import ucm.store.pipeline.connector as c; print(c.__file__)"
    env = {**os.environ, **preload(args.variant), "PYTHONPATH": str(args.tree)}
    command = [str(VENV / "bin" / "python"), "-c", code]
    done = subprocess.run(
        command, env=env, cwd=args.out, capture_output=True, text=True
    )
    where = done.stdout.strip()
    if done.returncode or not where.startswith(str(args.tree)):
        raise Refusal(
            "the built tree cannot be imported",
            expected=f"ucm.store.pipeline.connector from {args.tree}",
            found=where or done.stderr.strip(),
            next=f"rm -rf {args.cmake} {VENV} && make build",
        )
    return where


def main() -> int:
    args, started = parse(), time.monotonic()
    check(args)
    make_base()
    with ThreadPoolExecutor(1) as pool:  # pip downloads while the compiler runs
        filled = pool.submit(fill_venv) if args.only != "native" else Future()
        if args.only != "venv":
            build_native(args)
    rows = {"tree": args.tree, "interpreter": VENV / "bin" / "python"}
    if not args.only:
        filled.result()
        rows["imported"] = smoke(args)
    if args.gtest:
        rows["gtest"] = args.cmake / "ucm" / "store" / "test" / GTEST
    rows |= preload(args.variant)
    rows["seconds"] = f"{time.monotonic() - started:.0f}"
    for name, value in rows.items():
        print(f"{name:<13}{value}")
    print("next: make test")
    return 0


if __name__ == "__main__":
    run("build", main)
