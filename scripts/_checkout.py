"""The user's UCM checkout: where it is, what state it is in, and the marks we leave in it."""

import shutil
from pathlib import Path

from _git import GitError, git, git_ok, lines
from _pin import DEFAULT_UCM, base_repository, read_pin
from _report import Refusal

# Our only marks in a checkout: the commit the series was applied on, and its tip.
# Below refs/worktree/ each linked worktree has marks of its own.
BASE_REF = "refs/worktree/ucm-hicache/base"
TIP_REF = "refs/worktree/ucm-hicache/tip"

# A path that every UCM with a SGLang integration has.
LANDMARK = "ucm/store/ucmstore_v1.py"

_UNFINISHED = {
    "rebase-merge": "a rebase",
    "rebase-apply": "an am or rebase",
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
}


def find_checkout(given: str | None, make: bool = False) -> Path:
    """The checkout to work on: UCM=DIR, or the pinned base under build/ucm.

    `make` clones that base when it is missing. Raises Refusal when the folder is not the
    top of a UCM git checkout.
    """
    if not given and make:
        _follow_pin() if DEFAULT_UCM.exists() else _clone_base()
    folder = Path(given or DEFAULT_UCM).expanduser().resolve()
    if found := _not_ucm(folder):
        raise Refusal(
            f"{folder} is not a UCM checkout",
            expected=f"the top of a git checkout, with a working tree and {LANDMARK}",
            found=found,
            next="make apply, or UCM=<clone of unified-cache-management>",
            code=2,
        )
    return folder


def _not_ucm(folder: Path) -> str | None:
    """What is wrong with the folder. git acts on the repository around a plain one."""
    if not folder.is_dir():
        return "no such folder"
    try:
        top = git(folder, "rev-parse", "--show-toplevel")
    except GitError as error:
        return f"not the top of a git checkout: {error.text}"
    if Path(top) != folder:
        return f"not the top of a git checkout, which is {top or 'a bare repository'}"
    if not ref(folder, "HEAD"):
        return "no commit"
    if not git_ok(folder, "cat-file", "-e", f"HEAD:{LANDMARK}"):
        return f"no {LANDMARK} in its HEAD commit"
    return None


def _clone_base() -> None:
    scratch = DEFAULT_UCM.with_suffix(".new")
    shutil.rmtree(scratch, ignore_errors=True)
    base = base_repository()
    git(base, "clone", "--quiet", "--no-hardlinks", str(base), str(scratch))
    git(scratch, "remote", "remove", "origin")
    scratch.rename(DEFAULT_UCM)


def _follow_pin() -> None:
    """The pin moved since build/ucm was made: go to the new base, if nobody works there."""
    marks, pin = applied(DEFAULT_UCM), read_pin().commit
    if marks and marks[0] != pin and marks[1] == ref(DEFAULT_UCM, "HEAD"):
        fetch = ("fetch", "--quiet", "--no-tags", "--update-shallow")
        git(DEFAULT_UCM, *fetch, str(base_repository()), "HEAD")
        move_to(DEFAULT_UCM, pin, None)


def refuse_unfinished(repo: Path) -> None:
    """Refuse while git waits for the user to finish something."""
    ask = [word for name in _UNFINISHED for word in ("--git-path", name)]
    paths = git(repo, "rev-parse", *ask).split("\n")
    for path, (name, what) in zip(paths, _UNFINISHED.items(), strict=True):
        if (repo / path).exists():
            raise Refusal(
                f"{what} is in progress in {repo}",
                expected="no unfinished git operation",
                found=name,
                next="finish it or abort it (git status tells how), then try again",
            )


def refuse_dirty(repo: Path, paths: list[str]) -> None:
    """Refuse when one of `paths` has changes that are not committed."""
    status = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    found = git(repo, *status, "--ignored", "--", *paths, as_user=True)
    if found:
        raise Refusal(
            f"uncommitted changes are in the way in {repo}",
            expected="the files that the series touches as committed",
            found="\n".join(row for row in found.split("\0") if row),
            next="commit or stash them, then try again",
        )


def refuse_edited(repo: Path, again: str = "") -> None:
    """Refuse while the checkout has work that is not in the series yet.

    `again`: what goes on afterwards with a series that must not change until then.
    """
    marks, ask = applied(repo), ("status", "--porcelain", "--untracked-files=no")
    found = git(repo, *ask, as_user=True)
    next = f"stash it, then {again}" if again else "commit or stash it, then try again"
    if not found and (edited(repo) or marks and marks[1] != ref(repo, "HEAD")):
        since = marks[1] if marks else ref(repo, BASE_REF)
        found, next = git(repo, "log", "--format=%h %s", f"{since}.."), "make refresh"
        if again:
            keep = f"git -C {repo} branch <name> && git -C {repo} reset --keep {since[:12]}"
            next = f"{keep}, then {again}"
    if found:
        raise Refusal(
            f"there is work in {repo} that the series lacks",
            expected="no uncommitted changes, no commits since make apply",
            found=found,
            next=next,
        )


def refuse_branch(
    repo: Path, branch: str, mark: str, again: str, keep: str = ""
) -> None:
    """A result becomes a branch of its own: the name must be free, or ours as `mark` tells.

    `keep`: what to do with commits on top of ours, if not to give them another name.
    """
    there, ours = ref(repo, f"refs/heads/{branch}"), ref(repo, mark)
    rows = git(repo, "worktree", "list", "--porcelain").split("\n")
    found, next = None, f"git -C {repo} branch --move {branch} <another name>"
    if there and ours not in (None, there) and holds(repo, ours, there):
        more = git(repo, "log", "--format=%h %s", f"{ours}..{there}")
        found, next = f"it has commits on top of ours:\n{more}", keep or next
    elif there and there != ours:
        found = f"a branch of that name at {there[:12]}, made by somebody else"
    elif there and f"branch refs/heads/{branch}" in rows:
        found = "it is checked out"
    if found:
        raise Refusal(
            f"the result would be the branch {branch} of {repo}",
            expected="no such branch, or that of an earlier run, not checked out",
            found=found,
            next=f"{next}, then {again}",
        )


def applied(repo: Path) -> tuple[str, str] | None:
    """(base, tip) when the current branch holds an applied series, else None."""
    base, tip = ref(repo, BASE_REF), ref(repo, TIP_REF)
    return (base, tip) if base and tip and holds(repo, tip) else None


def edited(repo: Path) -> str | None:
    """The base of a branch on which commits of the series were edited since, else None."""
    base = ref(repo, BASE_REF)
    if not base or applied(repo) or not holds(repo, base):
        return None
    ours = ("log", "-1", "--format=%h", "--fixed-strings", "--grep=Drop-When: ")
    return base if git(repo, *ours, f"{base}..HEAD") else None


def holds(repo: Path, commit: str, tip: str = "HEAD") -> bool:
    """True when `tip` is `commit` or a descendant of it."""
    return git_ok(repo, "merge-base", "--is-ancestor", commit, tip)


def ref(repo: Path, name: str) -> str | None:
    try:
        return git(repo, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except GitError:
        return None


def find_commit(repo: Path, to: str | None) -> str:
    """The id of TO. Raises Refusal; nothing is fetched."""
    found = ref(repo, to) if to else None
    if not found:
        raise Refusal(
            f"there is no commit {to} in {repo}" if to else "no commit is named",
            expected="TO=REF, a branch, tag or commit that the checkout has",
            found=to or "nothing",
            next=f"git -C {repo} fetch, then the same with TO=REF",
            code=2,
        )
    return found


def blobs(repo: Path, commit: str, paths: list[str]) -> dict[str, str]:
    """Path -> blob id at `commit`, for those of `paths` that are there."""
    if not paths:
        return {}
    found = {}
    for row in lines(repo, "ls-tree", "-z", commit, "--", *paths):
        meta, path = row.split("\t", 1)
        found[path] = meta.split()[2]
    return found


def move_to(
    repo: Path, commit: str, marks: tuple[str, str] | None, again: str = "try again"
) -> None:
    """Move branch, index, files and our marks to `commit`, all or nothing.

    What the user changed or staged in other files stays. Raises Refusal when a change
    would be lost.
    """
    head = git(repo, "rev-parse", "HEAD")
    rows = [f"update HEAD {commit} {head}"]
    for name, value in zip((BASE_REF, TIP_REF), marks or (None, None), strict=True):
        if value or ref(repo, name):
            rows.append(f"update {name} {value}" if value else f"delete {name}")
    refs = "".join(f"{row}\n" for row in rows).encode()
    switch_files(repo, head, commit, again=again)
    try:
        git(repo, "update-ref", "-m", "ucm-hicache", "--stdin", stdin=refs)
    except GitError as error:
        switch_files(repo, commit, head)
        raise would_not_move(repo, commit, error, again) from error


def switch_files(
    repo: Path, old: str, new: str, *how: str, again: str = "try again"
) -> None:
    """Index and files go from `old` to `new`; with `-n` as `how` only told is whether they would."""
    git_ok(repo, "update-index", "-q", "--refresh", as_user=True)
    try:
        git(repo, "read-tree", *how, "-m", "-u", old, new, as_user=True)
    except GitError as error:
        raise would_not_move(repo, new, error, again) from error


def would_not_move(repo: Path, commit: str, error: GitError, again: str) -> Refusal:
    return Refusal(
        f"git would not move {repo} to {commit[:12]}",
        expected="files of the series as committed, no other git command at work",
        found=error.text,
        next=f"commit or stash what is in the way, then {again}",
    )


def describe_base() -> str:
    pin = read_pin()
    return f"{pin} ({pin.commit[:12]})"
