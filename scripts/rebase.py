"""Move the series to another commit of UCM, entry by entry, with git's 3-way merges.

The entries become commits on the pinned base, whose objects git needs to merge, and are
cherry-picked onto TO in a worktree: build/rebase, which holds all there is of an open
rebase. The checkout, patches/, ucm_overlay/ and UPSTREAM change at the end, or not at all.
"""

import argparse
import json
import os
import re
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import _checkout as checkout
import refresh
from _commits import REVERSED, Exported, export, patch_ids, series_on_base
from _git import GitError, git, git_bytes, git_ok, lines
from _lock import hold
from _pin import BUILD, ROOT, Pin, fetch_base, read_pin, write_pin
from _report import Refusal, run
from _series import Entry, read_header, read_series
from _stuck import cannot_read, readable, refuse_locked
from _target import refuse_target, refuse_uncommitted, report_overlay

TREE = BUILD / "rebase"
RESULT = ROOT / ".rebase"  # beside patches/, which it is to replace
RANGE_DIFF = BUILD / "range-diff.txt"
BRANCH = "hicache-v2"
CONTINUE = "make rebase-continue"


@dataclass
class State:
    """An open rebase: `root..old` is the series on its pinned base, `head` the last commit made.

    `rows` tells how each entry so far ended; `stopped` is true at a conflict. `taken` are
    the topics that upstream has whole. `tip` is the result, once things move to it.
    """

    ucm: str
    start: str
    root: str
    old: str
    head: str
    rows: list[str] = field(default_factory=list)
    stopped: bool = False
    taken: list[str] | None = None
    tip: str = ""

    @staticmethod
    def path() -> Path:
        return Path(git(TREE, "rev-parse", "--absolute-git-dir")) / "ucm-hicache.json"

    @staticmethod
    def read() -> "State | None":
        """None as well when the clone moved away, or the power went as it was written."""
        try:
            there = (TREE / ".git").is_file()
            return State(**json.loads(State.path().read_text())) if there else None
        except (GitError, OSError, ValueError, TypeError):
            return None

    @property
    def commits(self) -> list[str]:
        span = f"{self.root}..{self.old}"
        return git(TREE, "rev-list", "--reverse", span).split()

    def save(self) -> None:
        self.head = git(TREE, "rev-parse", "HEAD")
        fresh = self.path().with_suffix(".new")
        with open(fresh, "w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    parser.add_argument("--to", metavar="REF", help="the commit to move to")
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--continue", dest="go_on", action="store_true")
    step.add_argument("--abort", action="store_true")
    options = parser.parse_args()
    only_one()
    if options.abort:
        return abort()
    if options.go_on:
        state = read_state()
        if state.tip:  # patches/ may be on its way
            return finish(state)
        entries = read_series()
        return pick_rest(go_on(state, entries), entries)
    refuse_open()
    entries, repo = read_series(), checkout.find_checkout(options.ucm)
    return pick_rest(begin(repo, options.to, entries), entries)


def only_one() -> None:
    hold(
        BUILD / "rebase.lock",
        "another make rebase is at work",
        expected=f"one at a time in {TREE}",
        found="rebase, rebase-continue or rebase-abort, still running",
    )


def refuse_open() -> None:
    if TREE.exists():
        raise Refusal(
            "a rebase is open already",
            expected="no worktree of an earlier one",
            found=str(TREE),
            next="make rebase-continue, or make rebase-abort",
            code=3,
        )


def begin(repo: Path, to: str | None, entries: list[Entry]) -> State:
    """Refuse what cannot work, then make the worktree at `to`."""
    start = checkout.find_commit(repo, to)
    checkout.refuse_unfinished(repo)
    checkout.refuse_edited(repo)
    refuse_target(repo, start, entries)
    keep = f"git -C {repo} switch {BRANCH}, make refresh UCM={repo}"
    refuse_branch(repo, "make rebase", keep)
    refuse_uncommitted()
    root, old = series_on_base(repo, entries)
    # Twice: a record of this path that a killed git left, and locked, is ours to replace.
    add = ("worktree", "add", "--force", "--force", "--quiet", "--detach")
    with readable(f"git -C {repo} fetch, then make rebase, or make rebase-abort"):
        git(repo, *add, str(TREE), start)
    state = State(str(repo), start, root, old, start)
    state.save()
    print(f"from      {checkout.describe_base()}\nonto      {start[:12]} ({to})")
    report_overlay(repo, start, entries)
    return state


def refuse_branch(repo: Path, again: str, keep: str = "") -> None:
    if not checkout.applied(repo):  # else the applied series moves
        checkout.refuse_branch(repo, BRANCH, checkout.TIP_REF, again, keep)


def pick_rest(state: State, entries: list[Entry]) -> int:
    """Put what is left of the old commits onto HEAD, one by one, up to a conflict."""
    commits, topics = state.commits, [topic_of(entry) for entry in entries]
    if state.taken is None:
        find_taken(state, commits, topics)
    for number in range(len(state.rows), len(commits)):
        taken = topics[number] in state.taken
        how = "dropped" if taken else pick(state, commits[number])
        if not how:
            state.stopped = True
            state.save()
            report_conflict(state, entries[number], f"{number + 1} of {len(commits)}")
            return 3
        add_row(state, entries[number], how)
    return finish(state)


def topic_of(entry: Entry) -> str:
    return read_header(entry.path.read_bytes()).trailers.get("Topic", ["?"])[0]


def find_taken(state: State, commits: list[str], topics: list[str]) -> None:
    """Topics that upstream has whole: it makes one commit of a pull request.

    Entry by entry such a topic would conflict wherever two of its entries change a line.
    """
    taken: list[str] = []

    def found(topic: str) -> bool:
        pairs = zip(commits, topics, strict=True)
        return has_all(state, [c for c, name in pairs if name in (*taken, topic)])

    # One found may be what another needs.
    left = dict.fromkeys(topics)
    while topic := next(filter(found, left), None):
        taken.append(topic)
        left.pop(topic)
        print(f"topic     {topic}: upstream has all of it")
    state.taken = taken
    state.save()


def has_all(state: State, commits: list[str]) -> bool:
    """Whether these commits, as one, leave nothing to do on `start`. HEAD ends there."""
    try:
        git(TREE, "reset", "--quiet", "--hard", state.root)
        for commit in commits:
            git(TREE, "cherry-pick", "--keep-redundant-commits", commit)
        one = ("commit-tree", "HEAD^{tree}", "-p", state.root, "-m", "a topic")
        whole = git(TREE, *one)
        git(TREE, "reset", "--quiet", "--hard", state.start)
        return pick(state, whole) == "dropped"
    except GitError:  # they do not apply alone
        return False
    finally:
        git(TREE, "reset", "--quiet", "--hard", state.start)


def add_row(state: State, entry: Entry, how: str) -> None:
    state.rows.append(how)
    state.stopped = False
    state.save()
    show(entry, how)


def show(entry: Entry, how: str) -> None:
    print(f"  {how:<9} {entry.patch}", flush=True)


def pick(state: State, commit: str) -> str | None:
    """Cherry-pick one commit; tell how it went, None for a conflict."""
    try:
        git(TREE, "cherry-pick", "--keep-redundant-commits", commit)
    except GitError as error:
        if not git(TREE, "ls-files", "--unmerged"):
            raise cannot_read(error, f"{CONTINUE}, or make rebase-abort") from error
        if not taken_whole(state.start, commit):
            return None
        git(TREE, "reset", "--quiet", "--hard")
        return "dropped"
    return judge(state, commit)


def taken_whole(start: str, commit: str) -> bool:
    """Upstream took the commit word for word, went on from there, and never took it back."""
    own, back = (
        patch_ids(TREE, f"{commit}^..{commit}", *how, new_files=True)
        for how in ((), REVERSED)
    )
    theirs = patch_ids(TREE, f"-500 {start}", new_files=True)
    return bool(own) and own <= theirs and not back & theirs


def judge(state: State, commit: str) -> str:
    """Compare what HEAD changes with what `commit` changed; an empty HEAD goes."""
    if git_ok(TREE, "diff", "--quiet", state.head, "HEAD"):
        git(TREE, "reset", "--quiet", "--hard", state.head)
        return "dropped"
    flags = ("--no-renames", "--no-color", "--no-ext-diff", "--no-textconv")
    spans = ((f"{commit}^", commit), (state.head, "HEAD"))
    old, new = (git_bytes(TREE, "diff", *flags, *span) for span in spans)
    for how, noise in (("clean", rb"^index .*|(?<= @@) .*"), ("offset", rb"^@@ .*")):
        old, new = (re.sub(rb"(?m)%b" % noise, b"", text) for text in (old, new))
        if old == new:
            return how
    return "merged"


def report_conflict(state: State, entry: Entry, place: str) -> None:
    rows = lines(TREE, "diff", "--name-only", "--diff-filter=U", "-z")
    print(f"rebase: CONFLICT  {entry.patch}  ({place})\n  worktree  {TREE}")
    for path in rows:
        print(f"  conflict  {path}")
        print(f"            upstream last: {last_change(state.start, path)}")
    print(f"Nothing was changed in {state.ucm}, patches/ or ucm_overlay/.")
    print(
        "next: edit these files in the worktree. Where upstream has the same already,"
    )
    print(f"      git -C {TREE} checkout HEAD -- <file>")
    print("      keeps its side; an entry of which nothing is left is dropped. Then:")
    print(f"  git -C {TREE} diff")
    print(f"  git -C {TREE} add --all")
    print("  make rebase-continue            (or give up: make rebase-abort)")


def last_change(start: str, path: str) -> str:
    """Upstream's last commit to a file, where the clone's history goes back to it."""
    found = git(TREE, "log", "-1", "--format=%h %as %s\n%p", start, "--", path)
    commit, _, parents = found.partition("\n")
    if not found or parents:
        return commit or "never had it"
    deeper = git(TREE, "rev-parse", "--is-shallow-repository") == "true"
    way = "; git fetch --unshallow tells" if deeper else ""
    return f"unknown, the clone's history begins at {commit.split()[0]}{way}"


def go_on(state: State, entries: list[Entry]) -> State:
    """Take the solved conflict over; after an interruption, start the entry again."""
    if series_on_base(Path(state.ucm), entries) != (state.root, state.old):
        raise Refusal(
            "patches/ or ucm_overlay/ changed while the rebase was open",
            expected="the series as it was when the rebase began",
            found="other files",
            next="put them back, or make rebase-abort and start anew",
        )
    refuse_locked(TREE, CONTINUE)
    if state.stopped:
        refuse_unsolved()
    for entry, how in zip(entries, state.rows, strict=False):
        show(entry, how)
    if not state.stopped or given_up(state.head):
        git(TREE, "reset", "--quiet", "--hard", state.head)
        state.stopped = False
        state.save()
        return state
    commit = state.commits[len(state.rows)]
    # Commits that the user made, with whatever message, are part of the entry.
    git(TREE, "reset", "--quiet", "--soft", state.head)
    if not git_ok(TREE, "diff", "--cached", "--quiet"):
        git(TREE, "commit", "--quiet", "--no-verify", "-C", commit)
    how = judge(state, commit)
    add_row(state, entries[len(state.rows)], how if how == "dropped" else "solved")
    return state


def given_up(head: str) -> bool:
    """Nothing of the pick is left: `git cherry-pick --abort` or `git reset --hard` ended it."""
    return (
        not checkout.ref(TREE, "CHERRY_PICK_HEAD")
        and git_ok(TREE, "merge-base", "--is-ancestor", "HEAD", head)
        and git_ok(TREE, "diff", "--cached", "--quiet")
    )


def read_state() -> State:
    state = State.read()
    if not state:
        raise Refusal(
            "no rebase is open",
            expected=f"the worktree {TREE}",
            found=(
                "a part of one: it died before its first entry, or its clone is gone"
                if TREE.exists()
                else "none"
            ),
            next="make rebase-abort" if TREE.exists() else "make rebase UCM=DIR TO=REF",
            code=2,
        )
    return state


def refuse_unsolved() -> None:
    """Every file must be decided and staged, without git's conflict markers."""
    found = []
    ask = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    for row in lines(TREE, *ask, "--ignored=matching"):
        path = TREE / row[3:]
        if row.startswith("!!"):
            found.append(f"{row[3:]}: ignored; git add --force it, or remove it")
        elif row[1] != " " or "U" in row[:2] or row[:2] == "AA":
            found.append(f"{row[3:]}: not added")
        elif path.is_file() and b"\n<<<<<<< " in b"\n" + path.read_bytes():
            found.append(f"{row[3:]}: has conflict markers")
    if found:
        raise Refusal(
            "the conflict is not solved",
            expected="every file edited and added",
            found="\n".join(found),
            next=f"git -C {TREE} add --all, then make rebase-continue",
            code=3,
        )


def finish(state: State) -> int:
    """Make all of the result, then move to it; after an interruption, both once more."""
    repo, start = Path(state.ucm), state.start
    checkout.refuse_unfinished(repo)
    if not state.tip:  # later the difference may be what was moved already
        checkout.refuse_edited(repo, CONTINUE)
        refuse_branch(repo, CONTINUE)
    exported, _ = export(TREE, start, "HEAD")
    refuse_nothing_left(exported, start)
    refresh.refuse_strangers(exported)
    shutil.rmtree(RESULT, ignore_errors=True)
    RESULT.mkdir()
    refresh.write(TREE, exported, RESULT)
    tip = refresh.apply_again(TREE, start, exported, RESULT)
    fetch_base(str(repo), start)
    span = (f"{state.root}..{state.old}", f"{start}..{tip}")
    compare = ("range-diff", "--no-color", "--creation-factor=95")
    RANGE_DIFF.write_bytes(git_bytes(repo, *compare, *span))
    if not state.tip and checkout.applied(repo):
        checkout.switch_files(repo, "HEAD", tip, "-n", again=CONTINUE)
    state.tip = tip
    state.save()
    where = move(state)
    print(git(repo, *compare, "--no-patch", *span))
    counts = ", ".join(f"{n} {how}" for how, n in Counter(state.rows).items())
    print(f"entries   {counts}\nrange-diff in full: {RANGE_DIFF}")
    print(f"pin       {checkout.describe_base()} in UPSTREAM\ntip       {where}")
    return 0


def refuse_nothing_left(exported: list[Exported], start: str) -> None:
    if not exported:
        raise Refusal(
            "upstream has the whole series",
            expected="an entry of which something is left",
            found=f"nothing is left to move: {start[:12]} needs no series",
            next="make rebase-abort",
            code=3,
        )


def move(state: State) -> str:
    """Checkout, series and pin go to the result. Each step may be done already."""
    repo, pin = Path(state.ucm), read_pin()
    told = git(repo, "describe", "--tags", "--always", state.start)
    where = move_checkout(repo, state.start, state.tip)
    refresh.swap(RESULT)
    write_pin(Pin(state.start, package=pin.package, version=told, url=pin.url))
    remove_worktree()
    return where


def move_checkout(repo: Path, start: str, tip: str) -> str:
    """An applied series moves with its branch; otherwise the result is a new branch."""
    marks = checkout.applied(repo)
    if marks and marks[1] == git(repo, "rev-parse", "HEAD"):
        checkout.move_to(repo, tip, (start, tip), CONTINUE)
        return f"{tip[:12]} in {repo}\nnext: make verify build test UCM={repo}"
    git(repo, "branch", "--force", BRANCH, tip)
    git(repo, "update-ref", checkout.BASE_REF, start)
    git(repo, "update-ref", checkout.TIP_REF, tip)
    return (
        f"{tip[:12]}, branch {BRANCH} of {repo}; its checked-out branch has not moved\n"
        f"next: git -C {repo} switch {BRANCH} && make verify build test UCM={repo}"
    )


def remove_worktree() -> None:
    """Whatever is left of it; git's record of a half one goes with the next rebase."""
    ask = ("rev-parse", "--path-format=absolute", "--git-common-dir")
    if (TREE / ".git").is_file() and git_ok(TREE, *ask):  # else the clone is gone
        common = Path(git(TREE, *ask))
        git(common, "worktree", "remove", "--force", "--force", str(TREE))
    shutil.rmtree(TREE, ignore_errors=True)
    shutil.rmtree(RESULT, ignore_errors=True)


def abort() -> int:
    """Give up what is before its end."""
    if not TREE.exists():
        print("no rebase is open: nothing to do\nnext: make rebase UCM=DIR TO=REF")
        return 0
    state = State.read()
    if state and state.tip:
        raise Refusal(
            "the rebase is at its end",
            expected="an entry that is still to come",
            found=f"{state.ucm}, patches/, ucm_overlay/ or UPSTREAM moved already",
            next="make rebase-continue; docs/rebasing.md tells how to take it back then",
        )
    remove_worktree()
    told = "nothing else had changed" if state else "it was a part of one"
    print(f"removed {TREE}; {told}\nnext: make rebase UCM=DIR TO=REF")
    return 0


if __name__ == "__main__":
    run("rebase", main)
