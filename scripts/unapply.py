"""Take the series off a UCM checkout again: back to the commit it was applied on."""

import argparse

import _checkout as checkout
from _git import git
from _report import Refusal, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    options = parser.parse_args()
    repo = checkout.find_checkout(options.ucm)
    checkout.refuse_unfinished(repo)
    marks = checkout.applied(repo)
    base, tip = marks or (checkout.edited(repo), None)
    if not base:
        print(f"not applied in {repo}: nothing to do\nnext: make apply")
        return 0
    own = git(repo, "log", "--format=%h %s", f"{tip or base}..HEAD")
    if own:
        raise Refusal(
            "commits of your own stand on the series",
            expected=f"HEAD at the tip {tip[:12]}" if tip else "the tip of make apply",
            found=own,
            next=(
                f"git -C {repo} rebase --onto {base[:12]} {tip[:12]} moves them to the "
                "base; make refresh takes them into the series"
                if tip
                else "make refresh takes the edited series over, then make unapply"
            ),
        )
    checkout.move_to(repo, base, None)
    print(f"back to {base[:12]} in {repo}\nnext: make apply")
    return 0


if __name__ == "__main__":
    run("unapply", main)
