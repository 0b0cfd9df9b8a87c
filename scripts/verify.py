"""Check the series: grammar, headers, orphans, duplicates, and that it is an exact export."""

import argparse
import re
import tempfile
from collections import Counter
from pathlib import Path

import _checkout as checkout
from _commits import commit_series, export
from _git import GitError, git, git_bytes
from _pin import base_repository
from _report import Refusal, run
from _series import (
    NAME,
    OVERLAY,
    PATCHES,
    SERIES,
    Entry,
    header_faults,
    overlay_owners,
    read_header,
    read_series,
    write_series,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    entries = read_series(complete=False)
    faults = [*list_faults(entries), *overlay_faults(entries)]
    for entry in entries:
        if entry.path.is_file():
            faults += [f"{entry.patch}: {text}" for text in patch_faults(entry)]
    if not faults:
        faults = export_faults(entries)
    for fault in faults:
        print(f"FAIL {fault}")
    files = len(overlay_owners(entries))
    print(
        f"{'FAILED' if faults else 'ok'}  {len(entries)} patches, {files} overlay files, "
        f"{len(faults)} findings"
    )
    if faults:
        print("next: mend the commits on the patched branch, then make refresh")
    return 1 if faults else 0


def list_faults(entries: list[Entry]) -> list[str]:
    """The series against the folder: each file listed once, numbered in order."""
    names = [entry.patch for entry in entries]
    on_disk = {path.name for path in PATCHES.iterdir()} - {SERIES.name}
    faults = [f"series lists {n} twice" for n, c in Counter(names).items() if c > 1]
    lost = sorted(set(names) - on_disk)
    faults += [f"{n}: listed in the series, not there" for n in lost]
    faults += [f"{n}: not listed in the series" for n in sorted(on_disk - set(names))]
    for number, name in enumerate(names, 1):
        if not NAME.match(name) or int(name[:4]) != number:
            faults.append(f"{name}: expected {number:04d}-short-phrase.patch")
    return faults


def overlay_faults(entries: list[Entry]) -> list[str]:
    """Each overlay file belongs to one entry, exists, is not upstream's, has a licence."""
    listed = Counter(path for entry in entries for path in entry.overlay)
    files = (path for path in OVERLAY.rglob("*") if "__pycache__" not in path.parts)
    on_disk = {str(path.relative_to(OVERLAY)) for path in files if path.is_file()}
    faults = [f"{p}: {c} entries own it" for p, c in listed.items() if c > 1]
    lost = sorted(set(listed) - on_disk)
    faults += [f"{p}: owned, but not in ucm_overlay/" for p in lost]
    faults += [f"{p}: no entry owns it" for p in sorted(on_disk - set(listed))]
    taken = checkout.blobs(base_repository(), "HEAD", sorted(on_disk))
    faults += [f"{path}: upstream has this file, patch it" for path in taken]
    for path in sorted(on_disk):
        text = (OVERLAY / path).read_bytes()
        if Path(path).suffix in {".py", ".cc", ".h"} and b"MIT License" not in text:
            faults.append(f"{path}: no MIT licence header")
        if b"\r" in text or (text and not text.endswith(b"\n")):
            faults.append(f"{path}: expected LF line ends and a final newline")
    return faults


def patch_faults(entry: Entry) -> list[str]:
    """One patch file: encoding, header, and no new file inside."""
    data = entry.path.read_bytes()
    if b"\r\n" in data or data.startswith(b"\xef\xbb\xbf") or not data.endswith(b"\n"):
        return ["expected LF line ends, no byte order mark and a final newline"]
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"not UTF-8: {error}"]
    faults = header_faults(read_header(data))
    if re.search(rb"^new file mode ", data, re.MULTILINE):
        faults.append("adds a file; new files live in ucm_overlay/")
    has_diff = b"\ndiff --git " in data
    if not has_diff and not entry.overlay:
        faults.append("changes nothing and owns no overlay file")
    return faults


def export_faults(entries: list[Entry]) -> list[str]:
    """Apply on the pinned base, export again, compare every byte.

    `git am` knows no fuzz; an offset shows as a differing line number in the export.
    """
    with tempfile.TemporaryDirectory(prefix="ucm-verify-") as scratch:
        repo, base = Path(scratch) / "ucm", base_repository()
        git(base, "clone", "--quiet", "--no-hardlinks", str(base), str(repo))
        start = git(repo, "rev-parse", "HEAD")
        try:
            tip = commit_series(repo, start, entries)
        except (Refusal, GitError) as error:
            return [f"does not apply to the base: {error}\n{_found(error)}"]
        exported, folded = export(repo, start, tip)
        faults = [f"folds away on export: {commit}" for commit in folded]
        faults += _differences(repo, tip, entries, exported)
    return faults


def _found(error: Exception) -> str:
    return getattr(error, "found", "")


def _differences(repo: Path, tip: str, entries: list[Entry], exported) -> list[str]:
    faults = []
    old = {entry.patch: entry for entry in entries}
    new = {item.entry.patch: item for item in exported}
    for name in sorted(old.keys() ^ new.keys()):
        faults.append(f"{name}: {'only in the export' if name in new else 'stale'}")
    for name in sorted(old.keys() & new.keys()):
        if old[name].path.read_bytes() != new[name].patch:
            faults.append(f"{name}: differs from a fresh export")
        if sorted(old[name].overlay) != new[name].entry.overlay:
            faults.append(f"{name}: owns other overlay files than its commit adds")
    text = write_series([i.entry for i in exported], [i.topic for i in exported])
    if not faults and SERIES.read_text("utf-8") != text:
        faults.append("patches/series: differs from a fresh export")
    for path in overlay_owners(entries):
        if git_bytes(repo, "show", f"{tip}:{path}") != (OVERLAY / path).read_bytes():
            faults.append(f"{path}: differs from the applied tree")
    return faults


if __name__ == "__main__":
    run("verify", main)
