"""Where git cannot go on: files that the clone lacks, and a lock that a killed git left."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _git import GitError, git
from _report import Refusal


def cannot_read(error: GitError, next: str) -> Refusal:
    """A clone without all files asks its remote for them, which may not be there."""
    rows = error.text.splitlines()
    told = [row for row in rows if row.startswith(("fatal: ", "error: "))]
    return Refusal(
        "git cannot read or write what it needs",
        expected="every file of the commit in the clone, or a network; room on the disk",
        found="\n".join((told or rows)[:10]),  # after what it had written by then
        next=next,
    )


@contextmanager
def readable(next: str) -> Iterator[None]:
    """For git commands that fail for no other reason."""
    try:
        yield
    except GitError as error:
        raise cannot_read(error, next) from error


def refuse_locked(tree: Path, again: str) -> None:
    """A git that was killed leaves its lock, and git may be at work by the user's hand."""
    folder = Path(git(tree, "rev-parse", "--absolute-git-dir"))
    for lock in (folder / "index.lock", folder / "HEAD.lock"):
        if lock.exists():
            raise Refusal(
                "git is at work in the worktree, or was killed there",
                expected="no lock of git's",
                found=str(lock),
                next=f"when no git runs there: rm {lock}, then {again}",
            )
