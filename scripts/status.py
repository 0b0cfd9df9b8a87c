"""Show what a UCM checkout has of the series: each patch, each overlay file. Read-only.

With --to also which of them that upstream has, as far as the checkout has fetched it.
"""

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import _checkout as checkout
from _commits import REVERSED, ids_of, patch_ids
from _git import GitError, git
from _pin import read_pin
from _report import run
from _series import OVERLAY, Entry, overlay_owners, read_header, read_series
from _stuck import readable

THERE, OTHERWISE = " (upstream has it)", " (upstream has it, otherwise)"


class Upstream:
    """A commit of upstream's, asked for what it has of the series."""

    def __init__(self, repo: Path, commit: str, entries: list[Entry]):
        self.repo, self.commit, self.entries = repo, commit, entries

    @cached_property
    def taken(self) -> set[str]:
        """Patch ids of its last commits that none of them reverts."""
        span = f"-200 {self.commit}"
        back = " ".join((*REVERSED, span))
        return patch_ids(self.repo, span) - patch_ids(self.repo, back)

    @cached_property
    def undone(self) -> set[str]:
        """Patches that come off its files, the last one first.

        UCM squashes: an earlier patch comes off only without those that go on from it.
        """
        found = set()
        with self.scratch() as where:
            git(self.repo, "read-tree", self.commit, **where)
            for entry in reversed(self.entries):
                if entry.path.is_file() and self.take_off(entry, where):
                    found.add(entry.patch)
        return found

    def take_off(self, entry: Entry, where: dict[str, str]) -> bool:
        try:
            back = ("apply", "--cached", "--reverse", str(entry.path))
            git(self.repo, *back, **where)
        except GitError as error:
            if "promisor" in error.text:  # a file that could not be fetched
                raise
            return False
        return True

    @contextmanager
    def scratch(self) -> Iterator[dict[str, str]]:
        """For git: an index and new objects outside the checkout, which stays as it is."""
        ask = ("rev-parse", "--path-format=absolute", "--git-path", "objects")
        with tempfile.TemporaryDirectory() as scratch:
            objects = Path(scratch) / "objects"
            (objects / "info").mkdir(parents=True)
            known = git(self.repo, *ask)
            (objects / "info" / "alternates").write_bytes(os.fsencode(f"{known}\n"))
            yield {"INDEX_FILE": f"{scratch}/index", "OBJECT_DIRECTORY": str(objects)}

    @cached_property
    def files(self) -> dict[str, str]:
        """Overlay path -> blob id, of those that it has."""
        paths = sorted(overlay_owners(self.entries))
        return checkout.blobs(self.repo, self.commit, paths)

    def has(self, entry: Entry) -> bool:
        """Whether it took the patch as a commit, or the patch could be taken off it."""
        ids = ids_in(entry)
        return bool(ids) and (ids <= self.taken or entry.patch in self.undone)

    def told(self, entry: Entry) -> str:
        """What to add to an entry; new files alone are there when all of them are."""
        if ids_in(entry) != set():
            return THERE if self.has(entry) else ""
        told = {self.told_of(path) for path in entry.overlay}
        return "" if "" in told else max(told, default="", key=len)

    def told_of(self, path: str) -> str:
        """What to add to an overlay file."""
        if path not in self.files:
            return ""
        return THERE if self.files[path] == overlay_blob(self.repo, path) else OTHERWISE


def ids_in(entry: Entry) -> set[str] | None:
    """Patch ids of its diff: none for new files alone, None where the patch is lost."""
    if not entry.path.is_file():
        return None
    return ids_of(OVERLAY.parent, entry.path.read_bytes())


def overlay_blob(repo: Path, path: str) -> str | None:
    file = OVERLAY / path
    ask = ("hash-object", "--no-filters", "--", str(file))
    return git(repo, *ask) if file.is_file() else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    parser.add_argument("--to", metavar="REF", help="which upstream to look at, too")
    options = parser.parse_args()
    repo = checkout.find_checkout(options.ucm)
    with readable(f"git -C {repo} fetch, then make status"):
        show(repo, options.to)
    return 0


def show(repo: Path, ref: str | None) -> None:
    entries, marks = read_series(complete=False), checkout.applied(repo)
    to = ref and Upstream(repo, checkout.find_commit(repo, ref), entries)
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
        print(f"upstream  {ref} at {to.commit[:12]}")
    below = Upstream(repo, start, entries)
    ours = patch_ids(repo, f"{start}..HEAD")
    subjects = set(git(repo, "log", "--format=%s", f"{start}..HEAD").splitlines())
    seen = Counter()
    for entry in entries:
        state = patch_state(below, entry, ours, subjects)
        there = to.told(entry) if to else ""
        seen[f"patches {state}{there}"] += 1
        print(f"  {state:<17}{entry.patch}{there}")
        for path in entry.overlay:
            state = overlay_state(below, path)
            there = to.told_of(path) if to else ""
            seen[f"overlay files {state}{there}"] += 1
            print(f"    {state:<17}{path}{there}")
    print("together ", ", ".join(f"{n} {what}" for what, n in seen.items()))


def patch_state(
    below: Upstream, entry: Entry, ours: set[str], subjects: set[str]
) -> str:
    """What the checkout makes of one patch; `edited`: its commit is there, and differs."""
    ids = ids_in(entry)
    if ids is None:
        return "no such patch"
    if not ids:
        return "new files only"
    if ids <= ours:
        return "applied"
    if read_header(entry.path.read_bytes()).subject in subjects:
        return "edited"
    return "already upstream" if below.has(entry) else "missing"


def overlay_state(below: Upstream, path: str) -> str:
    """One overlay file in the checkout; line ends as git would commit them."""
    repo = below.repo
    if path in below.files:
        return "upstream has it"
    wanted = overlay_blob(repo, path)
    if not wanted:
        return "not in overlay"
    if not (repo / path).is_file():
        return "missing"
    found = git(repo, "hash-object", "--", path, as_user=True)
    return "same" if found == wanted else "edited"


if __name__ == "__main__":
    run("status", main)
