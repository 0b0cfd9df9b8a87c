"""Write patches/, ucm_overlay/ and the series anew from the commits of a patched checkout."""

import argparse
import tempfile
from pathlib import Path

import _checkout as checkout
from _commits import Exported, commit_series, export
from _git import git, git_bytes, lines
from _pin import ROOT, base_repository
from _report import Refusal, run
from _series import OVERLAY, PATCHES, SERIES, write_series


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    parser.add_argument("--base", metavar="REV", help="default: where apply started")
    options = parser.parse_args()
    repo = checkout.find_checkout(options.ucm)
    checkout.refuse_unfinished(repo)
    base = find_base(repo, options.base)
    if not options.base:
        refuse_other_pin(repo, base)
    refuse_unexportable(repo, base)
    exported, folded = export(repo, base, "HEAD")
    refuse_strangers(exported)
    for commit in folded:
        print(f"folded    {commit}")
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".refresh-") as scratch:
        write(repo, exported, Path(scratch))
        tip = apply_again(repo, base, exported, Path(scratch))
        checkout.move_to(repo, tip, (base, tip))
        swap(Path(scratch))
    files = sum(len(item.entry.overlay) for item in exported)
    print(f"wrote     {len(exported)} patches, {files} overlay files")
    print("next: make verify; git status shows which files changed")
    return 0


def find_base(repo: Path, given: str | None) -> str:
    """The commit the exported commits stand on."""
    marks = checkout.applied(repo)
    base = marks[0] if marks else checkout.edited(repo)
    if given:
        base = checkout.ref(repo, given)
    if not base or not checkout.holds(repo, base):
        raise Refusal(
            f"the series is not applied in {repo}",
            expected="a branch that make apply made, or --base REV below HEAD",
            found=given or "no mark of an applied series",
            next="make apply, or make refresh UCM=<the clone where it is>",
        )
    return base


def refuse_other_pin(repo: Path, base: str) -> None:
    """After a rebase elsewhere the old series must not come back in the new one's place.

    A checkout may have files that the pinned base lacks: --base made it stand there.
    """
    paths = lines(repo, "diff", "--name-only", "-z", base, "HEAD")
    wanted = checkout.blobs(base_repository(), "HEAD", paths)
    found = checkout.blobs(repo, base, paths)
    differ = [path for path, blob in wanted.items() if found.get(path) != blob]
    if differ:
        raise Refusal(
            f"the series in {repo} stands on another base than the pinned one",
            expected=f"these files as they are at {checkout.describe_base()}",
            found="\n".join(differ),
            next="make refresh UCM=<the clone that was rebased>; what is here goes with "
            "make unapply, then make apply",
        )


def refuse_unexportable(repo: Path, base: str) -> None:
    """Only a clean, linear branch without leftover fixups can become a series."""
    span = f"{base}..HEAD"
    log = ("log", "--format=%h %s")
    faults = [
        (git(repo, *log, "--merges", span), "no merge commits"),
        (
            git(repo, *log, "-E", "--grep=^(fixup|squash|amend)! ", span),
            "fixups squashed (git rebase -i --autosquash)",
        ),
        (
            git(repo, "status", "--porcelain", "--untracked-files=no", as_user=True),
            "everything committed",
        ),
        ("" if git(repo, "rev-list", span) else span, "at least one commit"),
    ]
    for found, expected in faults:
        if found:
            raise Refusal(
                "this branch cannot be exported",
                expected=expected,
                found=found,
                next=f"mend the branch in {repo}, then make refresh",
            )


def refuse_strangers(exported: list[Exported]) -> None:
    """A commit of upstream or of the user must not slip into the series."""
    found = [item.entry.patch for item in exported if item.topic == "?"]
    if found or not exported:
        raise Refusal(
            "commits that are not the series' own",
            expected="a Topic trailer in every commit (CONTRIBUTING.md)",
            found="\n".join(found) or "no commit that changes anything",
            next="add the trailers, or keep these commits off this branch",
        )


def write(repo: Path, exported: list[Exported], root: Path) -> None:
    """Complete patches/ and ucm_overlay/ folders below `root`."""
    patches, overlay = root / PATCHES.name, root / OVERLAY.name
    patches.mkdir()
    overlay.mkdir()
    for item in exported:
        (patches / item.entry.patch).write_bytes(item.patch)
        for path in item.entry.overlay:
            _write_overlay(repo, path, overlay / path)
    text = write_series([i.entry for i in exported], [i.topic for i in exported])
    (patches / SERIES.name).write_bytes(text.encode("utf-8"))


def _write_overlay(repo: Path, path: str, target: Path) -> None:
    mode = git(repo, "ls-tree", "HEAD", "--", path).split()[0]
    if mode not in {"100644", "100755"}:
        raise Refusal(
            f"{path} cannot be an overlay file",
            expected="a plain file",
            found=f"git mode {mode}, a link or a repository",
            next=f"mend the branch in {repo}, then make refresh",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(git_bytes(repo, "show", f"HEAD:{path}"))
    target.chmod(0o755 if mode == "100755" else 0o644)


def apply_again(repo: Path, base: str, exported: list[Exported], root: Path) -> str:
    """The tip that the written series gives: HEAD's files, and the same export again."""
    tip = commit_series(repo, base, [item.entry for item in exported], root)
    for mine, again in zip(exported, export(repo, base, tip)[0], strict=True):
        if mine != again:
            raise Refusal(
                f"{mine.entry.patch} does not survive being applied",
                expected="the same patch again when it is applied and exported",
                found="a message that git am reads otherwise (a line '---', a diff in it)",
                next=f"reword that commit in {repo}, then make refresh",
            )
    if git(repo, "diff", "--name-only", "HEAD", tip):
        raise RuntimeError(f"{tip} differs from HEAD: this is a defect of refresh")
    return tip


def swap(root: Path) -> None:
    """Put the folders below `root` in the place of the project's."""
    for here in (PATCHES, OVERLAY):
        if here.exists():
            here.rename(root / f"old-{here.name}")
        (root / here.name).rename(here)


if __name__ == "__main__":
    run("refresh", main)
