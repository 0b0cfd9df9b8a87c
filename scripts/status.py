"""Show what a UCM checkout has of the series: each patch, each overlay file. Read-only.

With --to also which of them that upstream has, as far as the checkout has fetched it.
"""

import argparse
import tempfile
from collections import Counter
from functools import cached_property
from pathlib import Path

import _checkout as checkout
from _commits import REVERSED, ids_of, patch_ids
from _git import git, git_ok
from _pin import read_pin
from _report import run
from _series import OVERLAY, Entry, read_header, read_series

THERE = " (upstream has it)"


class Upstream:
    """A commit of upstream's, asked for what it has of the series."""

    def __init__(self, repo: Path, commit: str):
        self.repo, self.commit = repo, commit

    @cached_property
    def taken(self) -> set[str]:
        """Patch ids of its last commits that none of them reverts."""
        span = f"-200 {self.commit}"
        back = " ".join((*REVERSED, span))
        return patch_ids(self.repo, span) - patch_ids(self.repo, back)

    def has(self, entry: Entry) -> bool:
        """Whether it took the patch as a commit, or the patch could be taken off it."""
        ids = entry.path.is_file() and ids_of(OVERLAY.parent, entry.path.read_bytes())
        return bool(ids) and (ids <= self.taken or self.undone(entry.path))

    def undone(self, patch: Path) -> bool:
        with tempfile.TemporaryDirectory() as scratch:
            index = {"INDEX_FILE": f"{scratch}/index"}
            git(self.repo, "read-tree", self.commit, **index)
            back = ("apply", "--cached", "--check", "--reverse", str(patch))
            return git_ok(self.repo, *back, **index)

    def has_file(self, path: str) -> bool:
        return bool(checkout.blobs(self.repo, self.commit, [path]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    parser.add_argument("--to", metavar="REF", help="which upstream to look at, too")
    options = parser.parse_args()
    repo = checkout.find_checkout(options.ucm)
    to = options.to and Upstream(repo, checkout.find_commit(repo, options.to))
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
    if to:
        print(f"upstream  {options.to} at {to.commit[:12]}")
    below, ours = Upstream(repo, start), patch_ids(repo, f"{start}..HEAD")
    subjects = set(git(repo, "log", "--format=%s", f"{start}..HEAD").splitlines())
    seen = Counter()
    for entry in entries:
        state = patch_state(below, entry, ours, subjects)
        there = THERE if to and to.has(entry) else ""
        seen[f"patches {state}{there}"] += 1
        print(f"  {state:<17}{entry.patch}{there}")
        for path in entry.overlay:
            state = overlay_state(below, path)
            there = THERE if to and to.has_file(path) else ""
            seen[f"overlay files {state}{there}"] += 1
            print(f"    {state:<17}{path}{there}")
    print("together ", ", ".join(f"{n} {what}" for what, n in seen.items()))
    return 0


def patch_state(
    below: Upstream, entry: Entry, ours: set[str], subjects: set[str]
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
    return "already upstream" if below.has(entry) else "missing"


def overlay_state(below: Upstream, path: str) -> str:
    """One overlay file in the checkout; line ends as git would commit them."""
    repo = below.repo
    if below.has_file(path):
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
