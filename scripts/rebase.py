"""Move the series to another commit of UCM, entry by entry, with git's 3-way merges.

The entries become commits on the pinned base, whose objects git needs to merge, and are
cherry-picked onto TO in a worktree: build/rebase, which holds all there is of an open
rebase. The checkout, patches/, ucm_overlay/ and UPSTREAM change at the end, or not at all.
"""

import argparse
import json
import re
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import _checkout as checkout
import refresh
from _commits import export, patch_ids, series_on_base, touched
from _git import GitError, git, git_bytes, git_ok, lines
from _pin import BUILD, ROOT, Pin, base_repository, fetch_base, read_pin, write_pin
from _report import Refusal, run
from _series import OVERLAY, Entry, overlay_owners, read_header, read_series

TREE = BUILD / "rebase"
RESULT = ROOT / ".rebase"  # beside patches/, which it is to replace
RANGE_DIFF = BUILD / "range-diff.txt"
BRANCH = "hicache-v2"


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
        there = (TREE / ".git").is_file() and State.path().is_file()
        return State(**json.loads(State.path().read_text())) if there else None

    @property
    def commits(self) -> list[str]:
        span = f"{self.root}..{self.old}"
        return git(TREE, "rev-list", "--reverse", span).split()

    def save(self) -> None:
        self.head = git(TREE, "rev-parse", "HEAD")
        fresh = self.path().with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(self.path())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    parser.add_argument("--to", metavar="REF", help="the commit to move to")
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--continue", dest="go_on", action="store_true")
    step.add_argument("--abort", action="store_true")
    options = parser.parse_args()
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
    if not checkout.applied(repo):  # else the applied series moves
        checkout.refuse_branch(repo, BRANCH, checkout.TIP_REF, "make rebase")
    root, old = series_on_base(repo, entries)
    git(repo, "worktree", "prune")
    try:
        git(repo, "worktree", "add", "--quiet", "--detach", str(TREE), start)
    except GitError as error:
        raise cannot_read(error, f"git -C {repo} fetch, then make rebase") from error
    print(f"from      {checkout.describe_base()}\nonto      {start[:12]} ({to})")
    report_overlay(repo, start, entries)
    state = State(str(repo), start, root, old, start)
    state.save()
    return state


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
    base, wanted = base_repository(), read_pin().commit
    if git_ok(repo, "merge-base", "--is-ancestor", start, wanted):
        return wanted[:12]
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


def version(repo: Path, commit: str) -> tuple[int, ...] | None:
    try:
        found = re.search(r'version="([\d.]+)', git(repo, "show", f"{commit}:setup.py"))
    except GitError:
        return None
    return tuple(map(int, found[1].strip(".").split("."))) if found else None


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
            raise cannot_read(error, "make rebase-continue") from error
        # Upstream took it word for word and went on from there.
        own = patch_ids(TREE, f"{commit}^..{commit}")
        if not own or not own <= patch_ids(TREE, f"-500 {state.start}"):
            return None
        git(TREE, "reset", "--quiet", "--hard")
        return "dropped"
    return judge(state, commit)


def cannot_read(error: GitError, next: str) -> Refusal:
    """A clone without all files asks its remote for them, which may not be there."""
    return Refusal(
        "git cannot read or write what it needs",
        expected="every file of the commit in the clone, or a network; room on the disk",
        found=error.text,
        next=f"{next}, or make rebase-abort",
    )


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
        log = ("log", "-1", "--format=%h %as %s", state.start, "--", path)
        print(f"  conflict  {path}")
        print(f"            upstream last: {git(TREE, *log) or 'never had it'}")
    print(f"Nothing was changed in {state.ucm}, patches/ or ucm_overlay/.")
    print(
        "next: edit these files in the worktree. Where upstream has the same already,"
    )
    print(f"      git -C {TREE} checkout HEAD -- <file>")
    print("      keeps its side; an entry of which nothing is left is dropped. Then:")
    print(f"  git -C {TREE} diff")
    print(f"  git -C {TREE} add --all")
    print("  make rebase-continue            (or give up: make rebase-abort)")


def go_on(state: State, entries: list[Entry]) -> State:
    """Take the solved conflict over; after an interruption, start the entry again."""
    if series_on_base(Path(state.ucm), entries) != (state.root, state.old):
        raise Refusal(
            "patches/ or ucm_overlay/ changed while the rebase was open",
            expected="the series as it was when the rebase began",
            found="other files",
            next="put them back, or make rebase-abort and start anew",
        )
    if state.stopped:
        refuse_unsolved()
    for entry, how in zip(entries, state.rows, strict=False):
        show(entry, how)
    if not state.stopped:
        git(TREE, "reset", "--quiet", "--hard", state.head)
        return state
    commit = state.commits[len(state.rows)]
    # Whoever ran `git cherry-pick --continue` has made the commit already.
    if git(TREE, "rev-parse", "HEAD") == state.head:
        if git(TREE, "status", "--porcelain"):
            git(TREE, "commit", "--quiet", "--no-verify", "-C", commit)
        else:
            git(TREE, "reset", "--quiet", "--hard")
    how = judge(state, commit)
    add_row(state, entries[len(state.rows)], how if how == "dropped" else "solved")
    return state


def read_state() -> State:
    state = State.read()
    if not state:
        raise Refusal(
            "no rebase is open",
            expected=f"the worktree {TREE}",
            found="a part of one" if TREE.exists() else "none",
            next="make rebase-abort" if TREE.exists() else "make rebase UCM=DIR TO=REF",
            code=2,
        )
    return state


def refuse_unsolved() -> None:
    """Every file must be decided and staged, without git's conflict markers."""
    found = []
    for row in lines(TREE, "status", "--porcelain", "-z", "--no-renames"):
        path = TREE / row[3:]
        if row[1] != " " or "U" in row[:2] or row[:2] == "AA":
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
        checkout.refuse_edited(repo)
    exported, _ = export(TREE, start, "HEAD")
    refresh.refuse_strangers(exported)
    shutil.rmtree(RESULT, ignore_errors=True)
    RESULT.mkdir()
    refresh.write(TREE, exported, RESULT)
    tip = refresh.apply_again(TREE, start, exported, RESULT)
    fetch_base(str(repo), start)
    span = (f"{state.root}..{state.old}", f"{start}..{tip}")
    compare = ("range-diff", "--no-color", "--creation-factor=95")
    RANGE_DIFF.write_bytes(git_bytes(repo, *compare, *span))
    state.tip = tip
    state.save()
    where = move(state)
    print(git(repo, *compare, "--no-patch", *span))
    counts = ", ".join(f"{n} {how}" for how, n in Counter(state.rows).items())
    print(f"entries   {counts}\nrange-diff in full: {RANGE_DIFF}")
    print(f"pin       {checkout.describe_base()} in UPSTREAM\ntip       {where}")
    return 0


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
        checkout.move_to(repo, tip, (start, tip))
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
    if (TREE / ".git").is_file():
        ask = ("rev-parse", "--path-format=absolute", "--git-common-dir")
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
