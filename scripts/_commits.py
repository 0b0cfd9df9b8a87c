"""Between files and commits: the series becomes commits, commits become the series."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _git import GitError, git, git_bytes, lines
from _pin import ROOT, base_repository, read_pin
from _report import Refusal
from _series import OVERLAY, PATCHES, Entry, read_header, slug

AM = (
    "am --quiet --no-3way --keep-non-patch --keep-cr --empty=keep "
    "--committer-date-is-author-date --no-signoff --no-gpg-sign"
).split()
FORMAT = (
    "format-patch --stdout -k --zero-commit --full-index --no-signature --no-stat "
    "--always --no-renames --no-attach --no-thread --unified=3 --no-add-header --no-to "
    "--no-cc --no-from --no-notes --no-cover-letter --no-base --no-numbered --no-color "
    "--no-ext-diff --src-prefix=a/ --dst-prefix=b/"
).split()


@contextmanager
def worktree(repo: Path, commit: str) -> Iterator[Path]:
    """A temporary detached worktree of `repo`; it and git's record of it are removed."""
    with tempfile.TemporaryDirectory(prefix="ucm-series-") as scratch:
        tree = Path(scratch) / "tree"
        git(repo, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git(repo, "worktree", "remove", "--force", str(tree))


def commit_entry(tree: Path, entry: Entry, root: Path) -> str:
    """Apply one entry in a worktree: the patch, then its overlay files, as one commit."""
    git(tree, *AM, str(root / PATCHES.name / entry.patch))
    for path in entry.overlay:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / OVERLAY.name / path, tree / path)
    if entry.overlay:
        git(tree, "add", "--force", "--", *entry.overlay)
        when = git(tree, "show", "-s", "--format=%aI")
        git(tree, "commit", "--quiet", "--amend", "--no-edit", when=when)
    return git(tree, "rev-parse", "HEAD")


def commit_series(
    repo: Path, start: str, entries: list[Entry], root: Path = ROOT
) -> str:
    """Apply the series of `root` on `start` in a temporary worktree; return the tip's id.

    The same series on the same start gives the same id. Raises Refusal for the first
    entry that does not apply; `repo` then has at most unreachable objects more.
    """
    with worktree(repo, start) as tree:
        for number, entry in enumerate(entries, 1):
            try:
                tip = commit_entry(tree, entry, root)
            except (GitError, OSError) as error:
                raise Refusal(
                    f"{entry.patch} does not apply ({number} of {len(entries)})",
                    expected="every patch applies without fuzz",
                    found=_without_hints(error),
                    next=f"make rebase UCM={repo} TO=HEAD",
                ) from error
    return tip


def series_on_base(repo: Path, entries: list[Entry]) -> tuple[str, str]:
    """The series as commits `root..tip` on the pinned base's files, as objects of `repo`.

    The root has no history, so that it neither needs nor changes what a shallow clone knows.
    """
    base = base_repository()
    root = git(base, "commit-tree", "HEAD^{tree}", "-m", f"{read_pin()}")
    git(repo, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", str(base), root)
    return root, commit_series(repo, root, entries)


def _without_hints(error: GitError | OSError) -> str:
    """git's reasons; its advice is about a worktree that is gone already."""
    rows = getattr(error, "text", str(error)).splitlines()
    advice = ("hint:", "When you have", "If you prefer", "To restore")
    return "\n".join(row for row in rows if not row.startswith(advice))


@dataclass
class Exported:
    """A commit as files: its entry, the patch's bytes, and its topic."""

    entry: Entry
    patch: bytes
    topic: str


def export(repo: Path, base: str, tip: str) -> tuple[list[Exported], list[str]]:
    """Turn `base..tip` into series entries; also return the commits folded away.

    A file that a commit adds is overlay and belongs to that commit, with the bytes it
    has at `tip`: later edits fold into the owner. A commit with nothing else is dropped.
    """
    commits = git(repo, "rev-list", "--reverse", f"{base}..{tip}").split()
    owned, owner = _owners(repo, commits, base, tip)
    exported, folded, parent = [], [], base
    for commit in commits:
        paths = [path for path, who in owner.items() if who == commit]
        stripped = _without(repo, commit, parent, owned)
        trees = git(repo, "rev-parse", f"{stripped}^{{tree}}", f"{parent}^{{tree}}")
        if not paths and len(set(trees.split())) == 1:
            folded.append(git(repo, "show", "-s", "--format=%h %s", commit))
            continue
        patch = git_bytes(repo, *FORMAT, f"{parent}..{stripped}")
        header = read_header(patch)
        name = f"{len(exported) + 1:04d}-{slug(header.subject)}.patch"
        topic = header.trailers.get("Topic", ["?"])[0]
        exported.append(Exported(Entry(name, sorted(paths)), patch, topic))
        parent = stripped
    return exported, folded


def _owners(
    repo: Path, commits: list[str], base: str, tip: str
) -> tuple[list[str], dict[str, str]]:
    """Every path beyond `base` that a commit adds; the first adder of those `tip` has."""
    owner: dict[str, str] = {}
    names = ("-r", "-z", "--name-only")
    upstream, there = (set(lines(repo, "ls-tree", *names, c)) for c in (base, tip))
    for commit in commits:
        added = ("diff-tree", *names, "--no-commit-id", "--diff-filter=A", commit)
        for path in lines(repo, *added):
            if path not in upstream:
                owner.setdefault(path, commit)
    return list(owner), {path: who for path, who in owner.items() if path in there}


def _without(repo: Path, commit: str, parent: str, paths: list[str]) -> str:
    """`commit` again on `parent`, message and author kept, with `paths` left out."""
    told = git(repo, "show", "-s", "--format=%an%n%ae%n%aI%n%B", commit)
    name, mail, when, message = told.split("\n", 3)
    with tempfile.TemporaryDirectory() as scratch:
        index = {"INDEX_FILE": str(Path(scratch) / "index")}
        git(repo, "read-tree", commit, **index)
        gone = os.fsencode("".join(f"{path}\0" for path in paths))
        git(
            repo, "update-index", "--force-remove", "-z", "--stdin", stdin=gone, **index
        )
        tree = git(repo, "write-tree", **index)
    stdin = os.fsencode(message.rstrip() + "\n")
    author = {"AUTHOR_NAME": name, "AUTHOR_EMAIL": mail}
    make = ("commit-tree", tree, "-p", parent)
    return git(repo, *make, stdin=stdin, when=when, **author)


def touched(entries: list[Entry]) -> list[str]:
    """Upstream files that some patch of the series changes, as git reads the patches."""
    paths = set()
    for entry in entries:
        # In a subfolder of a repository git apply would skip every path, silently.
        alone = {"CEILING_DIRECTORIES": str(ROOT)}
        ask = ("apply", "--numstat", "-z", "--allow-empty", entry.patch)
        try:
            rows = git(PATCHES, *ask, **alone).split("\0")
        except GitError as error:
            raise Refusal(
                f"{entry.patch} is not a patch",
                expected="an export of make refresh",
                found=error.text,
                next="git checkout -- patches; make verify names every fault",
            ) from error
        paths |= {row.split("\t", 2)[2] for row in rows if row}
    return sorted(paths)


REVERSED = ("-R", "--src-prefix=b/", "--dst-prefix=a/")


def patch_ids(
    repo: Path, revisions: str, *how: str, new_files: bool = False
) -> set[str]:
    """Stable patch ids of the commits in a range, new files left out unless asked for.

    With REVERSED as `how`: those of the commits that would take them back.
    """
    log = ["log", "-p", "--full-index", "--no-renames", "--no-color", *how]
    if not new_files:
        log.append(f"--diff-filter={'d' if '-R' in how else 'a'}")
    return ids_of(repo, git_bytes(repo, *log, *revisions.split()))


def ids_of(repo: Path, text: bytes) -> set[str]:
    found = git(repo, "patch-id", "--stable", stdin=text)
    return {row.split()[0] for row in found.splitlines()}
