"""Put the series onto another UCM commit with 3-way merges, in a worktree of its own.

The checkout's own branch and files stay as they are; the result is the branch hicache-v2.
The worktree is the only state: --continue goes on in it, --abort removes it.
"""

import argparse
from pathlib import Path

import _checkout as checkout
from _commits import AM, add_overlay, commit_entry
from _git import GitError, git, git_ok
from _pin import BUILD, base_repository
from _report import Refusal, run
from _series import Entry, read_series

TREE = BUILD / "rebase"
BRANCH = "hicache-v2"
# Not with the marks of apply: those are per worktree, and this one is read in TREE.
START_REF = "refs/ucm-hicache/rebase-start"
THREE_WAY = [word.replace("--no-3way", "--3way") for word in AM]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    parser.add_argument("--to", metavar="REF", default="HEAD", help="default: HEAD")
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--continue", dest="go_on", action="store_true")
    step.add_argument("--abort", action="store_true")
    options = parser.parse_args()
    repo = checkout.find_checkout(options.ucm)
    entries = read_series()
    if options.abort:
        remove_tree(repo)
        print(f"removed {TREE}\nnext: make rebase UCM={repo} TO=REF")
        return 0
    if options.go_on:
        conclude_entry(repo, entries)
    else:
        begin(repo, options.to)
    return apply_rest(repo, entries)


def begin(repo: Path, to: str) -> None:
    """Make the worktree at `to`; the base's objects let git merge 3-way in any clone."""
    if TREE.exists():
        raise Refusal(
            "a rebase is in progress",
            expected="no worktree left from an earlier one",
            found=str(TREE),
            next=f"make rebase-continue UCM={repo}, or make rebase-abort UCM={repo}",
            code=3,
        )
    start = checkout.ref(repo, to)
    if not start:
        raise Refusal(
            f"there is no commit {to} in {repo}",
            expected="a branch, tag or commit of UCM",
            found=to,
            next="git fetch there, then make rebase again",
            code=2,
        )
    git(repo, "fetch", "--quiet", "--no-tags", str(base_repository()), "HEAD")
    git(repo, "worktree", "prune")
    git(repo, "worktree", "add", "--quiet", "--detach", str(TREE), start)
    git(repo, "update-ref", START_REF, start)


def conclude_entry(repo: Path, entries: list[Entry]) -> None:
    """After the conflict was solved: commit the patch, add its overlay files."""
    if not TREE.exists():
        raise Refusal(
            "no rebase is in progress",
            expected=f"a worktree at {TREE}",
            found="none",
            next=f"make rebase UCM={repo} TO=REF",
            code=2,
        )
    conflicts = git(TREE, "diff", "--name-only", "--diff-filter=U").splitlines()
    unsolved = [p for p in conflicts if b"\n<<<<<<< " in (TREE / p).read_bytes()]
    if unsolved:
        raise Refusal(
            "conflict markers are left",
            expected="every conflict solved",
            found="\n".join(unsolved),
            next=f"edit the files in {TREE}, then make rebase-continue UCM={repo}",
            code=3,
        )
    if (TREE / git(TREE, "rev-parse", "--git-path", "rebase-apply")).exists():
        git(TREE, "add", "--update")
        git(TREE, "am", "--quiet", "--continue")
    add_overlay(TREE, entries[done(repo) - 1])


def done(repo: Path) -> int:
    """How many entries are commits in the worktree already."""
    return int(git(TREE, "rev-list", "--count", f"{START_REF}..HEAD"))


def apply_rest(repo: Path, entries: list[Entry]) -> int:
    for number in range(done(repo), len(entries)):
        entry = entries[number]
        if git_ok(TREE, "apply", "--check", "--allow-empty", str(entry.path)):
            how = "clean"
        else:
            how = "merged"
        try:
            commit_entry(TREE, entry, THREE_WAY)
        except GitError as error:
            report_conflict(repo, entry, f"{number + 1} of {len(entries)}", error)
            return 3
        print(f"  {how:<8}{entry.patch}")
    tip = git(TREE, "rev-parse", "HEAD")
    git(repo, "branch", "--force", BRANCH, tip)
    remove_tree(repo)
    print(f"tip       {tip[:12]} on the branch {BRANCH} of {repo}")
    print(f"next: git -C {repo} checkout {BRANCH}, then make build test UCM={repo}")
    return 0


def report_conflict(repo: Path, entry: Entry, place: str, error: GitError) -> None:
    files = git(TREE, "diff", "--name-only", "--diff-filter=U").split()
    print(f"rebase: CONFLICT  {entry.patch}  ({place})\n  worktree  {TREE}")
    for path in files:
        last = git(TREE, "log", "-1", "--format=%h %s", START_REF, "--", path)
        print(f"  conflict  {path}\n            last changed by {last}")
    if not files:
        print(f"  git says  {error.text}")
    print(f"Nothing was changed in {repo}.")
    print(f"next: edit the files there, then make rebase-continue UCM={repo}")
    print(f"  or: make rebase-abort UCM={repo}")


def remove_tree(repo: Path) -> None:
    if TREE.exists():
        git(repo, "worktree", "remove", "--force", str(TREE))
    git(repo, "update-ref", "-d", START_REF)


if __name__ == "__main__":
    run("rebase", main)
