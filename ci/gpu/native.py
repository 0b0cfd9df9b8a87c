"""Compile the packed UCM with the interpreter that will import it; no network, no pip."""

import argparse
import ctypes.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import build  # noqa: E402


def shared(name: str) -> Path:
    """The system's own shared library, also where its -dev package is absent."""
    file = ctypes.util.find_library(name) or f"lib{name}.so"
    folders = ["/lib", "/usr/lib", f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"]
    return next(p for p in (Path(f) / file for f in reversed(folders)) if p.exists())


def links(folder: Path) -> Path:
    """A folder for -L: a compiler that has only libstdc++.a would link it into each library."""
    folder.mkdir(exist_ok=True)
    link = folder / "libstdc++.so"
    link.unlink(missing_ok=True)
    link.symlink_to(shared("stdc++"))
    return folder


def compile_tree(folder: Path) -> Path:
    """`folder` holds tree/ and headers/ as packed; the importable tree."""
    args = argparse.Namespace(
        variant="release", gtest=False, tree=folder / "tree", cmake=folder / "cmake"
    )
    build.HEADERS = folder / "headers"
    build.SHIMS = args.tree / "ucm/shared/vendor"
    chosen = build.settings(args)
    chosen |= {"ZLIB_LIBRARY": shared("z"), "ZLIB_INCLUDE_DIR": folder / "headers"}
    for kind in ("MODULE", "SHARED"):
        chosen[f"CMAKE_{kind}_LINKER_FLAGS"] = f"-L{links(folder / 'links')}"
    command = ["cmake", "-G", "Unix Makefiles", "-S", args.tree, "-B", args.cmake]
    command += [f"-D{name}={value}" for name, value in chosen.items()]
    where = {"env": {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder)}}
    build.call("cmake failed", command, folder / "configure.txt", **where)
    command = ["cmake", "--build", args.cmake, "-j", os.cpu_count(), "-t", "needed"]
    build.call("the compiler failed", command, folder / "compile.txt", **where)
    build.place(args)
    return args.tree


def importable(python: str, tree: Path) -> bool:
    code = "import torch, ucm.store.pipeline.connector"
    env = {**os.environ, "PYTHONPATH": str(tree)}
    return not subprocess.run(
        [python, "-c", code], env=env, cwd=tree.parent, capture_output=True
    ).returncode


if __name__ == "__main__":
    print(compile_tree(Path(sys.argv[1])))
