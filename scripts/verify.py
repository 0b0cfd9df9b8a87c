"""Check the series: grammar, headers, orphans, duplicates, and that it is an exact export."""

import argparse
import re
import tempfile
from collections import Counter
from pathlib import Path

import _checkout as checkout
import refresh
from _commits import commit_series, export
from _git import GitError, git
from _pin import base_repository
from _report import Refusal, run
from _series import (
    OVERLAY,
    PATCHES,
    SERIES,
    Entry,
    header_faults,
    read_header,
    read_series,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    entries = read_series(complete=False)
    patches, overlay = contents(PATCHES), contents(OVERLAY)
    files = [path for entry in entries for path in entry.overlay]
    faults = list_faults([entry.patch for entry in entries], {*patches} - {SERIES.name})
    faults += [*list_faults(files, {*overlay}), *overlay_faults(overlay)]
    for entry in entries:
        if entry.path.is_file():
            faults += [f"{entry.patch}: {text}" for text in patch_faults(entry)]
    if not faults:
        faults = export_faults(entries)
    for fault in faults:
        print(f"FAIL {fault}")
    word = "FAILED" if faults else "ok"
    counts = f"{len(entries)} patches, {len(overlay)} overlay files"
    print(f"{word}  {counts}, {len(faults)} findings")
    if faults:
        print("next: mend the commits on the patched branch, then make refresh")
    return 1 if faults else 0


def contents(folder: Path) -> dict[str, bytes]:
    """Relative path -> bytes of every file below, caches left out."""
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: data for name, data in found.items() if "__pycache__" not in name}


def list_faults(listed: list[str], there: set[str]) -> list[str]:
    """Each file is in the series once."""
    faults = [
        f"{n}: {c} times in the series" for n, c in Counter(listed).items() if c > 1
    ]
    faults += [
        f"{name}: in the series, not there" for name in sorted({*listed} - there)
    ]
    return faults + [f"{n}: not in the series" for n in sorted(there - {*listed})]


def overlay_faults(files: dict[str, bytes]) -> list[str]:
    """No overlay file is upstream's; each has a licence and ends its lines as git does."""
    taken = checkout.blobs(base_repository(), "HEAD", sorted(files))
    faults = [f"{path}: upstream has this file, patch it" for path in taken]
    for path, text in files.items():
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
            found = getattr(error, "found", "")
            return [f"does not apply to the base: {error}\n{found}"]
        exported, folded = export(repo, start, tip)
        git(repo, "update-ref", "HEAD", tip)
        refresh.write(repo, exported, Path(scratch))
        faults = [f"folds away on export: {commit}" for commit in folded]
        for here in (PATCHES, OVERLAY):
            old, new = contents(here), contents(Path(scratch) / here.name)
            names = sorted(n for n in {*old, *new} if old.get(n) != new.get(n))
            faults += [f"{here.name}/{n}: differs from a fresh export" for n in names]
    return faults


if __name__ == "__main__":
    run("verify", main)
