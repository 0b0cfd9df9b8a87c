"""Show where a UCM checkout stands: base, each patch, each overlay file. Read-only."""

import argparse
from pathlib import Path

import _checkout as checkout
from _commits import ids_of, patch_ids
from _git import git
from _pin import read_pin
from _report import run
from _series import OVERLAY, Entry, read_series


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    options = parser.parse_args()
    repo = checkout.find_checkout(options.ucm)
    entries, marks = read_series(complete=False), checkout.applied(repo)
    start = marks[0] if marks else git(repo, "rev-parse", "HEAD")
    print(f"pinned    {checkout.describe_base()}")
    print(f"checkout  {repo} at {git(repo, 'rev-parse', '--short=12', 'HEAD')}")
    print(f"series    {'applied on ' + start[:12] if marks else 'not applied'}")
    if checkout.edited(repo):
        print("edits     the branch was edited since make apply: make refresh")
    if start != read_pin().commit:
        print("base      the checkout is not the pinned sdist; blobs decide, see apply")
    ours = patch_ids(repo, f"{start}..HEAD") if marks else set()
    theirs = patch_ids(repo, f"-200 {start}")
    for entry in entries:
        print(f"  {patch_state(entry, ours, theirs):<17}{entry.patch}")
        for path in entry.overlay:
            print(f"    {overlay_state(repo, start, path):<17}{path}")
    return 0


def patch_state(entry: Entry, ours: set[str], theirs: set[str]) -> str:
    if not entry.path.is_file():
        return "no such patch"
    ids = ids_of(OVERLAY.parent, entry.path.read_bytes())
    if not ids:
        return "new files only"
    if ids <= theirs:
        return "already upstream"
    return "applied" if ids <= ours else "missing"


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
