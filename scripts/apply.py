"""Apply the series to a UCM checkout: patches and overlay become commits, all or nothing."""

import argparse
from pathlib import Path

import _checkout as checkout
from _commits import commit_series, touched
from _git import git, git_ok, lines
from _pin import base_repository
from _report import Refusal, run
from _series import Entry, overlay_owners, read_series


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ucm", metavar="DIR", help="default: the pinned base, fetched"
    )
    parser.add_argument("--dry-run", action="store_true", help="check, change nothing")
    parser.add_argument(
        "--if-needed", action="store_true", help="keep a branch that is being edited"
    )
    options = parser.parse_args()
    repo = checkout.find_checkout(options.ucm, make=True)
    entries = read_series()
    if options.if_needed and keeps(repo, entries):
        return 0
    checkout.refuse_unfinished(repo)
    if already_applied(repo, entries):
        return 0
    start = git(repo, "rev-parse", "HEAD")
    refuse_other_base(repo, start, entries)
    refuse_overlay_taken(repo, start, entries)
    checkout.refuse_dirty(repo, [*touched(entries), *overlay_owners(entries)])
    tip = commit_series(repo, start, entries)
    print(f"base      {checkout.describe_base()}, checkout at {start[:12]}")
    print(f"series    {len(entries)} patches, {len(overlay_owners(entries))} new files")
    if options.dry_run:
        print(f"would go  {tip[:12]} (dry run, nothing was changed)")
        return 0
    checkout.move_to(repo, tip)
    git(repo, "update-ref", checkout.BASE_REF, start)
    git(repo, "update-ref", checkout.TIP_REF, tip)
    print(f"tip       {tip[:12]} in {repo}\nnext: make build")
    return 0


def keeps(repo: Path, entries: list[Entry]) -> bool:
    """True when --if-needed leaves the branch alone: it is up to date, or being edited.

    A branch that sits on the tip of an older series goes back to its base first.
    """
    base = checkout.ref(repo, checkout.BASE_REF)
    tip = checkout.ref(repo, checkout.TIP_REF)
    head = git(repo, "rev-parse", "HEAD")
    if not base or head == base:
        return False
    if head != tip:
        return git_ok(repo, "merge-base", "--is-ancestor", base, head)
    if commit_series(repo, base, entries) == tip:
        return True
    checkout.move_to(repo, base)
    return False


def already_applied(repo: Path, entries: list[Entry]) -> bool:
    """True when this very series is on the branch. Raises Refusal for an older one."""
    marks = checkout.applied(repo)
    if not marks:
        return False
    base, tip = marks
    if commit_series(repo, base, entries) == tip:
        print(f"already applied: {tip[:12]} in {repo}\nnext: make build")
        return True
    raise Refusal(
        f"another version of the series is applied in {repo}",
        expected="the patches/ and ucm_overlay/ of this folder, or none",
        found=f"tip {tip[:12]} on {base[:12]}",
        next="make refresh to keep edits made there, or make unapply, then make apply",
    )


def refuse_other_base(repo: Path, start: str, entries: list[Entry]) -> None:
    """Every file a patch touches must have the base's bytes; other files may differ."""
    base, paths = base_repository(), touched(entries)
    wanted = checkout.blobs(base, "HEAD", paths)
    found = checkout.blobs(repo, start, paths)
    differ = [path for path in paths if wanted.get(path) != found.get(path)]
    if not differ:
        return
    rows = [f"{path}{'' if path in found else ' (missing)'}" for path in differ]
    way = "the series still applies with moved lines: make rebase is the way"
    try:
        commit_series(repo, start, entries)
    except Refusal as refusal:
        way = f"{refusal}: make rebase is the way, with conflicts to solve"
    if len([path for path in differ if path not in found]) == len(paths):
        way = "none of the touched files is there: this is not a UCM near the base"
    raise Refusal(
        f"{len(differ)} of {len(paths)} files that the series touches differ",
        expected=f"their bytes at {checkout.describe_base()}",
        found="\n".join([*rows, way]),
        next=f"make rebase UCM={repo} TO=HEAD",
    )


def refuse_overlay_taken(repo: Path, start: str, entries: list[Entry]) -> None:
    """An overlay path must be free, in the commit and on disk."""
    paths = sorted(overlay_owners(entries))
    taken = set(lines(repo, "ls-tree", "-r", "-z", "--name-only", start, "--", *paths))
    taken |= {path for path in paths if (repo / path).exists()}
    if taken:
        raise Refusal(
            "overlay paths exist already",
            expected="no such file in the checkout",
            found="\n".join(sorted(taken)),
            next="move those files away; if upstream has them now, turn each into a patch "
            "(docs/series.md)",
        )


if __name__ == "__main__":
    run("apply", main)
