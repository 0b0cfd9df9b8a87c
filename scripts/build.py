"""Build a UCM checkout for the CPU and make it importable: native code and virtual environment."""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

from _git import lines
from _pin import BUILD, DEFAULT_UCM, ROOT
from _report import Refusal, run

VENV = BUILD / "venv"
HEADERS = BUILD / "headers"
REQUIREMENTS = ROOT / "ci" / "requirements"
VENDOR = Path("ucm/shared/vendor")
SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}
TARGETS = ["posixstore", "ucmpipelinestore", "ucmlogger", "ucmmetrics"]
GTESTS = ["ucmstore.test", "ucmshared.test"]
# Where setup.py's install step puts a module that is not built in its own folder.
MOVED = {"ucm/shared/infra/logger": "ucm/shared/infra"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="build", description=__doc__)
    parser.add_argument("--ucm", type=Path, default=DEFAULT_UCM, help="UCM checkout")
    parser.add_argument("--out", type=Path, default=BUILD, help="where to build")
    variants = ["release", "debug", *SANITIZERS]
    parser.add_argument("--variant", choices=variants, default="release")
    parser.add_argument("--gtest", action="store_true", help="build the C++ tests too")
    parser.add_argument("--only", choices=["native", "venv"], help="one half of it")
    args = parser.parse_args()
    args.ucm, args.out = args.ucm.resolve(), args.out.resolve()
    suffix = "" if args.variant == "release" else f"-{args.variant}"
    args.tree, args.cmake = args.out / f"tree{suffix}", args.out / f"cmake{suffix}"
    return args


def check(args: argparse.Namespace) -> None:
    """Refuse when a tool is missing or the checkout is not UCM."""
    if not (args.ucm / "ucm" / "store" / "posix").is_dir():
        raise Refusal(
            "there is no UCM checkout to build",
            expected="a folder with ucm/store/posix",
            found=str(args.ucm),
            next="make apply",
        )
    include = Path(sysconfig.get_path("include"))
    missing = {
        "g++": not shutil.which("c++"),
        "cmake": not shutil.which("cmake"),
        "make": not shutil.which("make"),
        "zlib1g-dev": not Path("/usr/include/zlib.h").exists(),
        "python3-dev": not (include / "Python.h").exists(),
        "googletest": args.gtest and not Path("/usr/src/googletest").exists(),
    }
    packages = [name for name, absent in missing.items() if absent]
    if packages:
        raise Refusal(
            "the compiler or a library is missing",
            expected="g++, cmake, make, zlib's and Python's headers, googletest",
            found="not installed: " + " ".join(packages),
            next="apt-get install -y " + " ".join(packages),
            code=2,
        )


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
    """Mirror the checkout's own files plus our dependency shims into `tree`."""
    listed = lines(ucm, "ls-files", "-z", "-co", "--exclude-standard")
    wanted = {Path(name): ucm / name for name in listed}
    for shim in (ROOT / "ci" / "vendor").rglob("*.*"):
        wanted[VENDOR / shim.relative_to(ROOT / "ci" / "vendor")] = shim
    wanted = {name: source for name, source in wanted.items() if source.is_file()}
    for name, source in wanted.items():
        write(tree / name, source.read_bytes(), source.stat().st_mode & 0o777)
    blank = Path("test/CMakeLists.txt")  # not in the sdist, but its CMake asks for it
    if blank not in wanted:
        write(tree / blank, b"")
        wanted[blank] = tree / blank
    for path in tree.rglob("*"):
        if path.is_file() and path.relative_to(tree) not in wanted:
            if path.suffix not in (".so", ".pyc"):
                path.unlink()


def call(problem: str, command: list, log: Path, **kwargs) -> None:
    """Run a step; its output goes to `log`, or to the terminal with V=1."""
    log.parent.mkdir(parents=True, exist_ok=True)
    show = os.environ.get("V") == "1"
    with open(log, "w") as file:
        out = {} if show else {"stdout": file, "stderr": subprocess.STDOUT}
        code = subprocess.run([str(word) for word in command], **out, **kwargs)
    if code.returncode:
        text = log.read_text(errors="replace").splitlines()
        errors = [line for line in text if "error" in line.lower()][:10]
        raise Refusal(
            problem,
            expected="exit code 0",
            found="\n".join(errors or text[-20:]),
            next=f"read {log}, or run again with V=1",
        )


def pip(*words: object, log: Path) -> None:
    command = [VENV / "bin" / "python", "-m", "pip", "install", "-q", *words]
    call("pip could not install the pinned packages", command, log)


def stamp(files: list[Path]) -> str:
    digest = hashlib.sha256(f"{sys.version} {VENV}".encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def fetch_headers() -> None:
    """spdlog, fmt and pybind11 headers from PyPI, into a folder that no import sees."""
    wanted, done = REQUIREMENTS / "headers.txt", HEADERS / "stamp"
    if done.is_file() and done.read_text() == stamp([wanted]):
        return
    shutil.rmtree(HEADERS, ignore_errors=True)
    options = ["--no-deps", "--ignore-requires-python", "--target", HEADERS]
    pip(*options, "-r", wanted, log=BUILD / "log" / "headers.txt")
    done.write_text(stamp([wanted]))


def configure(args: argparse.Namespace) -> list[object]:
    flags = {
        "CMAKE_BUILD_TYPE": "Release" if args.variant == "release" else "Debug",
        "DOWNLOAD_DEPENDENCE": "OFF",
        "RUNTIME_ENVIRONMENT": "simu",
        "BUILD_UNIT_TESTS": "ON" if args.gtest else "OFF",
        "CMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE": "PRE_TEST",
        "UCM_DEP_HEADERS": HEADERS,
        "UCM_PYTHON_INCLUDE": sysconfig.get_path("include"),
        "UCM_PYTHON_SUFFIX": sysconfig.get_config_var("EXT_SUFFIX"),
    }
    # UCM's tests ignore what system() returns, which a fortified -Werror build refuses.
    flags["CMAKE_CXX_FLAGS_RELEASE"] = "-O3 -DNDEBUG -Wno-error=unused-result"
    if args.variant in SANITIZERS:
        kind = f"-fsanitize={SANITIZERS[args.variant]} -fno-omit-frame-pointer"
        # gcc warns about its own instrumented code, and UCM asks for -Werror.
        flags["CMAKE_CXX_FLAGS_DEBUG"] = f"-O1 -g {kind} -Wno-error"
    # Not Ninja: its generator refuses UCM's header-only object libraries.
    command = ["cmake", "-G", "Unix Makefiles", "-S", args.tree, "-B", args.cmake]
    return command + [f"-D{name}={value}" for name, value in flags.items()]


def build_native(args: argparse.Namespace) -> None:
    """Compile in the copy and put the shared objects where Python looks for them."""
    copy_tree(args.ucm, args.tree)
    log = args.out / "log"
    # UCM compiles `git rev-parse HEAD` into every file: found, each commit of ours
    # would recompile everything.
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(args.out)}
    call("cmake failed", configure(args), log / "configure.txt", env=outside)
    targets = TARGETS + (GTESTS if args.gtest else [])
    command = ["cmake", "--build", args.cmake, "-j", os.cpu_count(), "--target"]
    call("the compiler failed", command + targets, log / "compile.txt")
    for built in args.cmake.glob("ucm/**/*.so"):
        folder = str(built.parent.relative_to(args.cmake))
        place = args.tree / MOVED.get(folder, folder)
        write(place / built.name, built.read_bytes(), 0o755)


def make_venv() -> None:
    """torch, SGLang without its GPU packages, and the test tools; once per set of pins."""
    files = sorted(REQUIREMENTS.glob("*.txt"))
    done = VENV / "stamp"
    if done.is_file() and done.read_text() == stamp(files):
        return


def main() -> int:
    args = parse()
    started = time.monotonic()
    check(args)
    fetch_headers()
    build_native(args)
    print(f"tree {args.tree}  {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    run("build", main)
