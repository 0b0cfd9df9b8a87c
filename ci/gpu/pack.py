"""Fetch what a GPU machine without network needs to run SGLang with the patched UCM, as a few archives.

The result is a folder of .tar.xz files and one <release>.json that lists them; releases share archives.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from _report import Refusal, run  # noqa: E402

import build  # noqa: E402

# Not needed for serving on one Hopper GPU with the Triton attention kernels.
LEFT_OUT = (
    "sglang/multimodal_gen/",
    "sglang/srt/grpc/_core",
    "sglang/srt/multimodal/_core",
    "sglang/srt/server/_core",
    "sglang/test/",
    "sglang/benchmark/",
    "sglang/eval/",
    "sgl_kernel/flash_ops",
    "sgl_kernel/infllm_ops",
    "sgl_kernel/sm100/",
    "tools/",
)
OWN_ARCHIVE = ("sglang", "sglang_kernel", "sgl_deep_gemm")
PLATFORMS = ["manylinux2014_x86_64", "manylinux1_x86_64", "manylinux2010_x86_64"]
PLATFORMS += [f"manylinux_2_{n}_x86_64" for n in (5, 12, 17, 24, 26, 27, 28, 31, 34)]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pack", description=__doc__)
    known = sorted(path.stem for path in (HERE / "wheels").glob("*.txt"))
    parser.add_argument("--sglang", required=True, choices=known, nargs="+")
    parser.add_argument("--out", type=Path, default=build.BUILD / "gpu" / "package")
    parser.add_argument("--tree", type=Path, default=build.DEFAULT_UCM, help="patched")
    return parser.parse_args()


def download(release: str, folder: Path) -> list[Path]:
    """The wheels of one release, newest run or an earlier one's."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", "3.12"]
    command += ["--implementation", "cp", "--disable-pip-version-check"]
    for name in PLATFORMS:
        command += ["--platform", name]
    listed = HERE / "wheels" / f"{release}.txt"
    done = subprocess.run(
        [*command, "-d", folder, "-r", listed], capture_output=True, text=True
    )
    if done.returncode:
        raise Refusal(
            f"pip could not fetch the wheels of SGLang {release}",
            expected=f"what {listed.relative_to(ROOT)} lists",
            found=done.stderr.strip()[-600:],
            next="check the package index that pip uses, then try again",
        )
    return sorted(folder.glob("*.whl"))


def unpack(wheels: list[Path], folder: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = [
                name
                for name in archive.namelist()
                if not name.startswith(LEFT_OUT) and ".data/" not in name
            ]
            archive.extractall(folder, names)


def pack(name: str, source: Path, out: Path) -> str:
    """Archive a folder as `name`.tar.xz, unless it is there; its file name."""
    target = out / f"{name}.tar.xz"
    if not target.is_file():
        fresh = target.with_suffix(".new")
        with tarfile.open(fresh, "w:xz", preset=6) as archive:
            archive.add(source, arcname=".")
        fresh.replace(target)
    return target.name


def pack_wheels(wheels: list[Path], out: Path) -> list[str]:
    """One archive for each big wheel and one for all small ones, named after what is in it."""
    groups: dict[str, list[Path]] = {}
    small = [w for w in wheels if w.name.split("-")[0] not in OWN_ARCHIVE]
    digest = hashlib.sha256(" ".join(w.name for w in small).encode()).hexdigest()
    groups[f"lib-{digest[:8]}"] = small
    for wheel in wheels:
        if wheel not in small:
            groups["-".join(wheel.name.split("-")[:2])] = [wheel]
    names = []
    for name, members in groups.items():
        with tempfile.TemporaryDirectory() as scratch:
            if not (out / f"{name}.tar.xz").is_file():
                unpack(members, Path(scratch))
            names.append(pack(name, Path(scratch), out))
    return names


def pack_ucm(ucm: Path, out: Path) -> str:
    """UCM's sources with our shims, and the headers: compiled where they run."""
    headers = {}
    for name in ("pybind11", "tokenspeed_spdlog"):
        headers[name] = build.HEADERS / name
    with tempfile.TemporaryDirectory() as scratch:
        stage = Path(scratch)
        build.copy_tree(ucm, stage / "tree")
        for name in ("benchmarks", "examples", "docs"):
            shutil.rmtree(stage / "tree" / name, ignore_errors=True)
        for name, source in headers.items():
            shutil.copytree(source, stage / "headers" / name)
        shutil.copy("/usr/include/zlib.h", stage / "headers")
        shutil.copy(zconf(), stage / "headers")
        (out / "ucm.tar.xz").unlink(missing_ok=True)
        return pack("ucm", stage, out)


def zconf() -> Path:
    places = [Path("/usr/include")]
    places += [Path("/usr/include") / (sysconfig.get_config_var("MULTIARCH") or ".")]
    return next(p / "zconf.h" for p in places if (p / "zconf.h").is_file())


def main() -> None:
    args = parse()
    if (
        not (args.tree / "ucm" / "store" / "posix").is_dir()
        or not build.HEADERS.exists()
    ):
        raise Refusal(
            "there is no patched UCM to pack",
            expected=f"a patched checkout in {args.tree} and headers in {build.HEADERS}",
            found="not both of them",
            next="make build",
        )
    args.out.mkdir(parents=True, exist_ok=True)
    ucm = pack_ucm(args.tree, args.out)
    for release in args.sglang:
        wheels = download(release, args.out.parent / "wheels" / release)
        names = [*pack_wheels(wheels, args.out), ucm]
        listing = args.out / f"{release}.json"
        listing.write_text(json.dumps({"sglang": release, "archives": names}, indent=1))
        size = sum((args.out / name).stat().st_size for name in names)
        print(f"{listing}: {len(names)} archives, {size / 2**20:.1f} MiB")
    print(
        f"next: {HERE.relative_to(ROOT)}/run.py --package {args.out} --sglang {release}"
    )


if __name__ == "__main__":
    run("pack", main)
