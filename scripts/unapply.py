"""Take the series off a UCM checkout again: back to the commit it was applied on."""

import argparse

import _checkout as checkout
from _git import GitError, git
from _report import Refusal, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    parser.add_argument("--dry-run", action="store_true", help="check, change nothing")
    options = parser.parse_args()
    repo = checkout.find_checkout(options.ucm)
    checkout.refuse_unfinished(repo)
    marks = checkout.applied(repo)
    if not marks:
        print(f"not applied in {repo}: nothing to do\nnext: make apply")
        return 0
    base, tip = marks
    own = git(repo, "log", "--format=%h %s", f"{tip}..HEAD")
    if own:
        raise Refusal(
            "commits of your own stand on the series",
            expected=f"HEAD at the tip {tip[:12]}",
            found=own,
            next=f"git -C {repo} rebase --onto {base[:12]} {tip[:12]} moves them to the "
            "base; make refresh takes them into the series",
        )
    if not options.dry_run:
        try:
            checkout.move_to(repo, base)
        except GitError as error:
            raise Refusal(
                "uncommitted changes would be lost",
                expected="files of the series as committed",
                found=error.text,
                next="commit or stash them, then make unapply",
            ) from error
        for name in (checkout.BASE_REF, checkout.TIP_REF):
            git(repo, "update-ref", "-d", name)
    print(f"{'would go' if options.dry_run else 'back'} to {base[:12]} in {repo}")
    print("next: make apply")
    return 0


if __name__ == "__main__":
    run("unapply", main)
