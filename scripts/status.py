"""Show what a UCM checkout has of the series: each patch, each overlay file. Read-only."""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import _checkout as checkout
from _commits import ids_of, patch_ids
from _git import git, git_ok
from _pin import read_pin
from _report import run
from _series import OVERLAY, Entry, read_header, read_series


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    options = parser.parse_args()
    repo = checkout.find_checkout(options.ucm)
    entries, marks = read_series(complete=False), checkout.applied(repo)
    base = marks[0] if marks else checkout.edited(repo)
    start = base or git(repo, "rev-parse", "HEAD")
    print(f"pinned    {checkout.describe_base()}")
    print(f"checkout  {repo} at {git(repo, 'rev-parse', '--short=12', 'HEAD')}")
    print(f"series    {'applied on ' + start[:12] if base else 'not applied'}")
    if checkout.edited(repo) or marks and marks[1] != git(repo, "rev-parse", "HEAD"):
        print("edits     the branch was edited since make apply: make refresh")
    if open_files := git(repo, "diff", "--name-only", "HEAD", as_user=True):
        print("edits     not committed:", ", ".join(open_files.splitlines()))
    if start != read_pin().commit:
        print("base      the checkout is not the pinned sdist; blobs decide, see apply")
    ours = patch_ids(repo, f"{start}..HEAD")
    subjects = set(git(repo, "log", "--format=%s", f"{start}..HEAD").splitlines())
    theirs, seen = patch_ids(repo, f"-200 {start}"), Counter()
    for entry in entries:
        state = patch_state(repo, start, entry, ours, theirs, subjects)
        seen[f"patches {state}"] += 1
        print(f"  {state:<17}{entry.patch}")
        for path in entry.overlay:
            state = overlay_state(repo, start, path)
            seen[f"overlay files {state}"] += 1
            print(f"    {state:<17}{path}")
    print("together ", ", ".join(f"{n} {what}" for what, n in seen.items()))
    return 0


def patch_state(
    repo: Path,
    start: str,
    entry: Entry,
    ours: set[str],
    theirs: set[str],
    subjects: set[str],
) -> str:
    """What the checkout makes of one patch; `edited`: its commit is there, and differs."""
    if not entry.path.is_file():
        return "no such patch"
    data = entry.path.read_bytes()
    ids = ids_of(OVERLAY.parent, data)
    if not ids:
        return "new files only"
    if ids <= ours:
        return "applied"
    if read_header(data).subject in subjects:
        return "edited"
    if ids <= theirs or undone(repo, start, entry.path):
        return "already upstream"
    return "missing"


def undone(repo: Path, start: str, patch: Path) -> bool:
    """True when the patch could be taken off `start`: whatever commit brought it."""
    with tempfile.TemporaryDirectory() as scratch:
        index = {"INDEX_FILE": f"{scratch}/index"}
        git(repo, "read-tree", start, **index)
        back = ("apply", "--cached", "--check", "--reverse", str(patch))
        return git_ok(repo, *back, **index)


def overlay_state(repo: Path, start: str, path: str) -> str:
    """One overlay file in the checkout; line ends as git would commit them."""
    if checkout.blobs(repo, start, [path]):
        return "upstream has it"
    if not (OVERLAY / path).is_file():
        return "not in overlay"
    if not (repo / path).is_file():
        return "missing"
    found = git(repo, "hash-object", "--", path, as_user=True)
    wanted = git(repo, "hash-object", "--no-filters", "--", str(OVERLAY / path))
    return "same" if found == wanted else "edited"


if __name__ == "__main__":
    run("status", main)
