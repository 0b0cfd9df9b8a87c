"""The pinned SGLang releases: read ci/matrix/releases.toml, fetch by hash, give each its path."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from _pin import BUILD, ROOT
from _report import Refusal

DATA = ROOT / "ci" / "matrix" / "releases.toml"
PACKAGES, STUBS = DATA.parent / "packages", DATA.parent / "stubs"
CACHE = BUILD / "matrix"
# One wheel of a release stands for all: only its Python sources are used.
WHEEL = "--python-version 3.11 --implementation cp --platform manylinux_2_34_x86_64"
IMPORTS = [
    "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller",
    "sglang.srt.mem_cache.storage.backend_factory",
]


@dataclass(frozen=True)
class Release:
    """One row of the matrix. `sha256` is empty for a release that is not pinned: a canary."""

    version: str
    sha256: str
    tier: str
    packages: list[str]
    tests: list[str]
    registers: str
    l3: list[str]
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        return CACHE / "sglang" / self.version


def _wrong(problem: str, expected: str, found: str, file: Path = DATA) -> Refusal:
    shown = file.relative_to(ROOT)
    return Refusal(
        problem, expected=expected, found=found, next=f"edit {shown}", code=2
    )


def read() -> list[Release]:
    """Every pinned release, oldest first; a Refusal names what is wrong with the file."""
    try:
        rows = tomllib.loads(DATA.read_text())["release"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as e:
        raise _wrong("the list of releases cannot be read", "TOML", repr(e)) from e
    releases = [_row(row) for row in rows]
    versions = [release.version for release in releases]
    if versions != sorted(set(versions), key=numbers):
        expected = "each release once, oldest first"
        raise _wrong("releases are out of order", expected, " ".join(versions))
    return releases


def _row(row: dict) -> Release:
    name = row.get("version", "a release without a version")
    try:
        release = Release(**row)
    except TypeError as e:
        fields = ", ".join(Release.__dataclass_fields__)
        raise _wrong(f"SGLang {name}: fields are wrong", fields, str(e)) from e
    if not re.fullmatch(r"[0-9a-f]{64}", release.sha256):
        raise _wrong(f"SGLang {name}: no wheel hash", "64 hex digits", release.sha256)
    if release.tier not in ("supported", "canary"):
        raise _wrong(f"SGLang {name}: tier", "supported or canary", release.tier)
    _pins(release)
    return release


def _pins(release: Release) -> dict[str, str]:
    """Package: version, over all files of the row; one version each."""
    pins: dict[str, tuple[str, Path]] = {}
    for name in release.packages:
        file = PACKAGES / f"{name}.txt"
        if not file.is_file():
            expected = f"{file.relative_to(ROOT)}, or another name"
            raise _wrong(f"SGLang {release.version}: no such packages", expected, name)
        for line in file.read_text().splitlines():
            package, _, version = line.partition("#")[0].strip().partition("==")
            if package and pins.setdefault(package, (version, file))[0] != version:
                first, other = pins[package]
                raise _wrong(
                    f"SGLang {release.version}: packages conflict",
                    f"one version of {package}",
                    f"{first} in {other.name}, {version} in {file.name}",
                    file,
                )
    return {package: version for package, (version, _) in pins.items()}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version))


def select(releases: list[Release], wanted: str) -> list[Release]:
    """The rows of a list of versions, each once; 0.5.12 is 0.5.12.post1, and "newest" the last row."""
    chosen, wanted = [], wanted.replace("newest", releases[-1].version)
    for word in wanted.replace(",", " ").split():
        found = [
            r for r in releases if word in (r.version, r.version.partition(".post")[0])
        ]
        if not found:
            known = " ".join(release.version for release in releases)
            raise _wrong(f"SGLang {word} is not pinned", known, word)
        chosen += [row for row in found if row not in chosen]
    return chosen


# ---- fetching ----


def _pip(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    command += [str(word) for word in words]
    return subprocess.run(command, capture_output=True, text=True)


def fetch(release: Release) -> None:
    """Unpack the release's sources and install its packages, where not yet done."""
    for name in release.packages:
        _install(release, name)
    stamp = release.source / ".sha256"
    if stamp.is_file() and stamp.read_text() == release.sha256:
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        wheel = _download(release.version, release.sha256, Path(scratch))
        fresh = Path(scratch) / "sources"
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not name.endswith(".so")]
            archive.extractall(fresh, names)
        (fresh / ".sha256").write_text(release.sha256)
        shutil.rmtree(release.source, ignore_errors=True)
        release.source.parent.mkdir(parents=True, exist_ok=True)
        fresh.rename(release.source)


def _download(version: str, sha256: str, folder: Path) -> Path:
    """The wheel of a version, or of the newest; a canary has no hash yet."""
    wanted, pin = folder / "wanted.txt", f"=={version}" if version else ""
    wanted.write_text(f"sglang{pin}{f' --hash=sha256:{sha256}' if sha256 else ''}\n")
    words = ["--no-deps", "--only-binary=:all:", *WHEEL.split()]
    done = _pip("download", *words, "-d", folder, "-r", wanted)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip() or done.stdout.strip()
        got = re.search(r"Got\s+([0-9a-f]{64})", said)
        kind = "has another hash" if got else "cannot be fetched"
        raise _wrong(
            f"the wheel of SGLang {version or 'that is the newest'} {kind}",
            f"sha256 {sha256 or 'any'}, for Python 3.11 on x86_64",
            f"sha256 {got[1]}" if got else said[-600:],
        )
    return wheels[0]


def newest() -> str:
    """The version of the newest release on the package index: that of the wheel it gives."""
    with tempfile.TemporaryDirectory() as scratch:
        return _download("", "", Path(scratch)).name.split("-")[1]


def _folder(name: str) -> Path:
    return CACHE / "packages" / name


def _install(release: Release, name: str) -> None:
    file, folder = PACKAGES / f"{name}.txt", _folder(name)
    stamp = folder / ".pins"
    if stamp.is_file() and stamp.read_text() == file.read_text():
        return
    shutil.rmtree(folder, ignore_errors=True)
    done = _pip("install", "--no-deps", "--target", folder, "-r", file)
    if done.returncode:
        said = done.stderr.strip()[-600:]
        problem = f"packages of SGLang {release.version} cannot be installed"
        raise _wrong(problem, f"every line of {file.name}", said, file)
    stamp.write_text(file.read_text())


def environment(release: Release) -> dict[str, str]:
    """A Python that has this release, its packages, and the built UCM in front of build/venv."""
    folders = [release.source, *map(_folder, release.packages), STUBS, BUILD / "tree"]
    path = os.pathsep.join(str(folder) for folder in folders)
    return {**os.environ, "PYTHONPATH": path, "SGLANG_ROW": release.version}


def check_import(release: Release) -> None:
    """Refuse a release that does not even load: its packages are the wrong ones."""
    code = "".join(f"import {module}\n" for module in IMPORTS)
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, env=environment(release), capture_output=True, text=True
    )
    if done.returncode:
        names = " ".join(release.packages) or "build/venv"
        raise _wrong(
            f"SGLang {release.version} cannot be imported",
            f"its cache modules load with the packages of {names}",
            "\n".join(done.stderr.strip().splitlines()[-2:]),
        )
