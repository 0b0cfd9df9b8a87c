"""Write patches/, ucm_overlay/ and the series anew from the commits of a patched checkout."""

import argparse
import shutil
import tempfile
from pathlib import Path

import _checkout as checkout
from _commits import Exported, commit_series, export
from _git import git, git_bytes
from _report import Refusal, run
from _series import OVERLAY, PATCHES, SERIES, write_series


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    parser.add_argument("--base", metavar="REV", help="default: where apply started")
    parser.add_argument("--dry-run", action="store_true", help="check, write nothing")
    options = parser.parse_args()
    repo = checkout.find_checkout(options.ucm)
    checkout.refuse_unfinished(repo)
    base = find_base(repo, options.base)
    refuse_unexportable(repo, base)
    exported, folded = export(repo, base, "HEAD")
    for commit in folded:
        print(f"folded    {commit}")
    if not options.dry_run:
        write(repo, exported)
        settle(repo, base, exported)
    files = sum(len(item.entry.overlay) for item in exported)
    verb = "would write" if options.dry_run else "wrote"
    print(f"{verb} {len(exported)} patches, {files} overlay files\nnext: make verify")
    return 0


def find_base(repo: Path, given: str | None) -> str:
    """The commit the exported commits stand on."""
    marks = checkout.applied(repo)
    base = checkout.ref(repo, given) if given else marks and marks[0]
    if not base:
        raise Refusal(
            f"the series is not applied in {repo}",
            expected="a branch that make apply made, or --base REV",
            found=given or "no mark of an applied series",
            next="make apply",
        )
    return base


def refuse_unexportable(repo: Path, base: str) -> None:
    """Only a clean, linear branch without leftover fixups can become a series."""
    span = f"{base}..HEAD"
    faults = [
        (git(repo, "log", "--format=%h %s", "--merges", span), "no merge commits"),
        (
            git(repo, "log", "--format=%h %s", "--grep=^fixup! \\|^squash! ", span),
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


def write(repo: Path, exported: list[Exported]) -> None:
    """Replace patches/ and ucm_overlay/; the new folders are complete before the swap."""
    with tempfile.TemporaryDirectory(dir=PATCHES.parent, prefix=".refresh-") as scratch:
        patches, overlay = Path(scratch) / "patches", Path(scratch) / "overlay"
        patches.mkdir()
        overlay.mkdir()
        for item in exported:
            (patches / item.entry.patch).write_bytes(item.patch)
            for path in item.entry.overlay:
                _write_overlay(repo, path, overlay / path)
        text = write_series([i.entry for i in exported], [i.topic for i in exported])
        (patches / SERIES.name).write_text(text, "utf-8")
        for new, old in ((patches, PATCHES), (overlay, OVERLAY)):
            if old.exists():
                old.rename(Path(scratch) / f"old-{old.name}")
            new.rename(old)


def _write_overlay(repo: Path, path: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(git_bytes(repo, "show", f"HEAD:{path}"))
    mode = git(repo, "ls-tree", "HEAD", "--", path).split()[0]
    target.chmod(0o755 if mode == "100755" else 0o644)


def settle(repo: Path, base: str, exported: list[Exported]) -> None:
    """Put the branch on the series' own tip: same files, folded commits gone."""
    tip = commit_series(repo, base, [item.entry for item in exported])
    if git(repo, "diff", "--name-only", "HEAD", tip):
        raise RuntimeError(f"{tip} differs from HEAD: this is a defect of refresh")
    git(repo, "update-ref", "-m", "make refresh", "HEAD", tip)
    git(repo, "update-ref", checkout.BASE_REF, base)
    git(repo, "update-ref", checkout.TIP_REF, tip)


if __name__ == "__main__":
    run("refresh", main)
