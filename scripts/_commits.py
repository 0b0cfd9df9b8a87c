"""Between files and commits: the series becomes commits, commits become the series."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _git import GitError, git, git_bytes, lines
from _report import Refusal
from _series import OVERLAY, PATCHES, Entry, read_header, slug

AM = (
    "am --quiet --no-3way --keep-non-patch --keep-cr --empty=keep "
    "--committer-date-is-author-date --no-signoff --no-gpg-sign"
).split()
FORMAT = (
    "format-patch --stdout -k --zero-commit --full-index --no-signature --no-stat "
    "--always --no-renames --no-attach --no-thread --unified=3"
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


def commit_entry(tree: Path, entry: Entry, am: list[str] = AM) -> str:
    """Apply one entry in a worktree: the patch, then its overlay files, as one commit."""
    git(tree, *am, str(entry.path))
    add_overlay(tree, entry)
    return git(tree, "rev-parse", "HEAD")


def add_overlay(tree: Path, entry: Entry) -> None:
    """Put the entry's overlay files into the commit that its patch just made."""
    for path in entry.overlay:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(OVERLAY / path, tree / path)
    if entry.overlay:
        git(tree, "add", "--force", "--", *entry.overlay)
        when = git(tree, "show", "-s", "--format=%aI")
        git(
            tree,
            *("commit", "--quiet", "--amend", "--no-edit", "--no-verify"),
            when=when,
        )


def commit_series(repo: Path, start: str, entries: list[Entry]) -> str:
    """Apply the series on `start` in a temporary worktree; return the tip's id.

    The same series on the same start gives the same id. Raises Refusal for the first
    entry that does not apply; `repo` then has at most unreachable objects more.
    """
    with worktree(repo, start) as tree:
        for number, entry in enumerate(entries, 1):
            try:
                tip = commit_entry(tree, entry)
            except GitError as error:
                raise Refusal(
                    f"{entry.patch} does not apply ({number} of {len(entries)})",
                    expected="every patch applies without fuzz",
                    found=error.text,
                    next=f"make rebase UCM={repo} TO=HEAD",
                ) from error
    return tip


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
    owned, owner = _owners(repo, commits, tip)
    exported, folded, parent = [], [], base
    for commit in commits:
        paths = [path for path, who in owner.items() if who == commit]
        stripped = _without(repo, commit, parent, owned)
        if not paths and git(repo, "rev-parse", f"{stripped}^{{tree}}") == git(
            repo, "rev-parse", f"{parent}^{{tree}}"
        ):
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
    repo: Path, commits: list[str], tip: str
) -> tuple[list[str], dict[str, str]]:
    """Every path some commit adds, and the first adder of each one that `tip` still has."""
    owner: dict[str, str] = {}
    for commit in commits:
        added = ("diff-tree", "-r", "-z", "--no-commit-id", "--name-only")
        for path in lines(repo, *added, "--diff-filter=A", commit):
            owner.setdefault(path, commit)
    there = set(lines(repo, "ls-tree", "-r", "-z", "--name-only", tip))
    return list(owner), {path: who for path, who in owner.items() if path in there}


def _without(repo: Path, commit: str, parent: str, paths: list[str]) -> str:
    """`commit` again on `parent`, message and author kept, with `paths` left out."""
    name, mail, when = git(
        repo, "show", "-s", "--format=%an%n%ae%n%aI", commit
    ).splitlines()
    with tempfile.TemporaryDirectory() as scratch:
        index = {"INDEX_FILE": str(Path(scratch) / "index")}
        git(repo, "read-tree", commit, **index)
        gone = "".join(f"{path}\0" for path in paths).encode()
        git(
            repo, "update-index", "--force-remove", "-z", "--stdin", stdin=gone, **index
        )
        tree = git(repo, "write-tree", **index)
    message = git_bytes(repo, "show", "-s", "--format=%B", commit).rstrip() + b"\n"
    author = {"AUTHOR_NAME": name, "AUTHOR_EMAIL": mail}
    return git(
        repo, "commit-tree", tree, "-p", parent, stdin=message, when=when, **author
    )


def touched(entries: list[Entry]) -> list[str]:
    """Upstream files that some patch of the series changes, as git reads the patches."""
    paths = set()
    for entry in entries:
        stat = git_bytes(
            PATCHES, "apply", "--numstat", "-z", "--allow-empty", entry.patch
        )
        rows = stat.decode("utf-8").split("\0")
        paths |= {row.split("\t", 2)[2] for row in rows if row}
    return sorted(paths)
