"""What was measured and on what machine, in one line."""

import os
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

from _git import git  # noqa: E402


def commit() -> str:
    """Of this project; says so where files differ from it."""
    changed = git(ROOT, "status", "--porcelain", "--", ":!docs")
    head = git(ROOT, "rev-parse", "--short=12", "HEAD").strip()
    return f"{head} and changes" if changed.strip() else head


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def file_system(folder: Path) -> str:
    """The type of the file system that holds the folder."""
    at, found = str(folder.resolve()), ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        inside = at == point or at.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found[0]):
            found = point, kind
    return found[1]


def available() -> int:
    """Bytes of memory that can be used without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 0


def load() -> float:
    return os.getloadavg()[0]


def describe(memory: Path, disk: Path) -> dict:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "commit": commit(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "file systems": {"memory": file_system(memory), "disk": file_system(disk)},
        "python": platform.python_version(),
        "load at start": round(load(), 2),
    }


def line(machine: dict) -> str:
    places = machine["file systems"]
    loads = (
        f"{machine['load at start']} at start, {machine.get('load at end', '?')} at end"
    )
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, memory on {places['memory']}, disk on "
        f"{places['disk']}, Python {machine['python']}, load {loads}, "
        f"commit {machine['commit']}"
    )
