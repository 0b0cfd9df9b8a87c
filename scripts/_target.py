"""What must hold before a rebase begins, and what is told of the commit it goes to."""

import re
from pathlib import Path

import _checkout as checkout
from _commits import touched
from _git import GitError, git, git_ok
from _pin import ROOT, UPSTREAM, base_repository, read_pin
from _report import Refusal
from _series import OVERLAY, PATCHES, Entry, overlay_owners


def refuse_target(repo: Path, start: str, entries: list[Entry]) -> None:
    """The commit must be UCM, without the series, and no older than the pinned base."""
    pin, tip = read_pin(), checkout.ref(repo, checkout.TIP_REF)
    found = None
    if not git_ok(repo, "cat-file", "-e", f"{start}:{checkout.LANDMARK}"):
        found = f"it has no {checkout.LANDMARK}: this is not UCM"
    elif start == pin.commit:
        found = "it is the pinned base: the series stands on it"
    elif tip and git_ok(repo, "merge-base", "--is-ancestor", tip, start):
        found = "it holds the applied series itself"
    elif newer := newer_equal_of_base(repo, start, touched(entries)):
        found = f"it is older than the pinned base, which is {newer}"
    if found:
        raise Refusal(
            f"the series cannot move to {start[:12]}",
            expected=f"a commit of UCM after {checkout.describe_base()}",
            found=found,
            next=f"make rebase UCM={repo} TO=<a later commit>",
            code=2,
        )


def newer_equal_of_base(repo: Path, start: str, paths: list[str]) -> str | None:
    """What shows that `start` is older than the base: a later commit that equals the base.

    The pinned sdist is no commit of upstream: its version and the bytes of the files that
    the series touches tell.
    """
    base, pin = base_repository(), read_pin()
    wanted = pin.commit
    if git_ok(repo, "merge-base", "--is-ancestor", start, wanted):
        return wanted[:12]
    if not pin.sha256 and not checkout.ref(repo, wanted):
        date, pinned = committed(repo, start), committed(base, "HEAD")
        if date < pinned:
            return (
                f"{wanted[:12]} of {pinned}, not {date}; the clone lacks it: git fetch"
            )
    was, now = version(repo, start), version(base, "HEAD")
    if was and now and was < now:
        return f"version {'.'.join(map(str, now))}, not {'.'.join(map(str, was))}"
    same = checkout.blobs(base, "HEAD", paths)
    if checkout.blobs(repo, start, paths) == same:
        return None
    later = ("rev-list", "--all", "-500", "--ancestry-path", f"^{start}", "--", *paths)
    for commit in git(repo, *later).split():
        if checkout.blobs(repo, commit, paths) == same:
            return f"like {commit[:12]}"
    return None


def committed(repo: Path, commit: str) -> str:
    """When it was committed, in UTC, as text that sorts."""
    form = ("--date=format-local:%Y-%m-%d %H:%M:%S", "--format=%cd")
    return git(repo, "log", "-1", *form, commit)


def version(repo: Path, commit: str) -> tuple[int, ...] | None:
    try:
        found = re.search(r'version="([\d.]+)', git(repo, "show", f"{commit}:setup.py"))
    except GitError:
        return None
    return tuple(map(int, found[1].strip(".").split("."))) if found else None


def refuse_uncommitted() -> None:
    """The end replaces these whole: only what git knows of can be taken back then."""
    names = (PATCHES.name, OVERLAY.name, UPSTREAM.name)
    if not git_ok(ROOT, "ls-files", "--error-unmatch", UPSTREAM.name):
        return  # the project itself is no git checkout
    ask = ("status", "--porcelain", "--untracked-files=all", "--", *names)
    if found := git(ROOT, *ask):
        raise Refusal(
            "the series has changes that are not committed",
            expected=f"{', '.join(names)} as committed in {ROOT}",
            found=found,
            next=f"commit them, or move them out of {ROOT}, then make rebase",
        )


def report_overlay(repo: Path, start: str, entries: list[Entry]) -> None:
    """Overlay files that upstream has now: equal ones leave the overlay, others conflict."""
    owners = overlay_owners(entries)
    for path, blob in checkout.blobs(repo, start, sorted(owners)).items():
        ours = git(repo, "hash-object", "--no-filters", "--", str(OVERLAY / path))
        print(f"overlay   {path}: upstream has it now, ", end="")
        if ours == blob:
            print("with the same bytes: it leaves ucm_overlay/")
        else:
            print(
                f"otherwise than {owners[path]}.\n          At the conflict, keep "
                "upstream's text and add what it lacks: that becomes a patch."
            )
