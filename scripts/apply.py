"""Apply the series to a UCM checkout: patches and overlay become commits, all or nothing."""

import argparse
import os
from pathlib import Path

import _checkout as checkout
from _commits import commit_series, touched
from _git import git, lines
from _pin import base_repository
from _report import Refusal, run
from _series import Entry, overlay_owners, read_series


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ucm", metavar="DIR", help="default: the pinned base, fetched"
    )
    parser.add_argument(
        "--if-needed",
        action="store_true",
        help="keep a branch that is being edited, renew one that is older",
    )
    options = parser.parse_args()
    repo = checkout.find_checkout(options.ucm, make=True)
    entries = read_series()
    start = starting_point(repo, entries, options.if_needed)
    if not start:
        return 0
    checkout.refuse_unfinished(repo)
    refuse_other_base(repo, start, entries)
    refuse_overlay_taken(repo, start, entries)
    checkout.refuse_dirty(repo, [*touched(entries), *overlay_owners(entries)])
    tip = commit_series(repo, start, entries)
    checkout.move_to(repo, tip, (start, tip))
    print(f"base      {checkout.describe_base()}, checkout at {start[:12]}")
    print(f"series    {len(entries)} patches, {len(overlay_owners(entries))} new files")
    print(f"tip       {tip[:12]} in {repo}\nnext: make build")
    return 0


def starting_point(repo: Path, entries: list[Entry], if_needed: bool) -> str | None:
    """The commit to apply the series on; None when there is nothing to do."""
    head, marks = git(repo, "rev-parse", "HEAD"), checkout.applied(repo)
    base = marks[0] if marks else checkout.edited(repo)
    if not base:
        return head
    if if_needed and (not marks or head != marks[1]):
        print(f"kept as it is: {head[:12]} in {repo} is being edited")
        return None
    if marks and commit_series(repo, base, entries) == marks[1]:
        if not if_needed:
            print(f"already applied: {marks[1][:12]} in {repo}\nnext: make build")
        return None
    if if_needed:
        return base
    raise Refusal(
        f"another version of the series is applied in {repo}",
        expected="the patches/ and ucm_overlay/ of this folder, or none",
        found=f"HEAD {head[:12]} on {base[:12]}",
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
    missing = [path for path in differ if path not in found]
    rows = [f"{path}{' (missing)' if path in missing else ''}" for path in differ]
    step = f"make rebase UCM={repo} TO=HEAD"
    if missing == paths:
        way = "none of the touched files is there: this is not a UCM near the base"
        step = f"pass a checkout near {checkout.describe_base()}"
    else:
        way = rebase_way(repo, start, entries)
    raise Refusal(
        f"{len(differ)} of {len(paths)} files that the series touches differ",
        expected=f"their bytes at {checkout.describe_base()}",
        found="\n".join([*rows, way]),
        next=step,
    )


def rebase_way(repo: Path, start: str, entries: list[Entry]) -> str:
    """What make rebase would meet: moved lines only, or a conflict."""
    try:
        commit_series(repo, start, entries)
    except Refusal as refusal:
        return f"{refusal}: make rebase is the way, with conflicts to solve"
    return "the series still applies with moved lines: make rebase is the way"


def refuse_overlay_taken(repo: Path, start: str, entries: list[Entry]) -> None:
    """An overlay path, and each folder above it, must be free, in the commit and on disk."""
    paths = set(overlay_owners(entries))
    above = {str(up) for path in paths for up in Path(path).parents[:-1]}
    names = ("ls-tree", "-r", "-z", "--name-only")
    tracked = set(lines(repo, *names, "HEAD"))
    taken = (paths | above) & set(lines(repo, *names, start))
    taken |= {path for path in paths - tracked if os.path.lexists(repo / path)}
    links = {path for path in above if (repo / path).is_symlink()}
    taken |= links | {path for path in above if (repo / path).is_file()}
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
