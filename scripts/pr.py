"""Make one topic a branch on an upstream commit, and the text of its pull request.

The topic's entries are put onto TO in build/points, above those of the topics that they need,
then linted, built and tested there as UCM does it. Nothing is pushed.
"""

import argparse
import configparser
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import _checkout as checkout
import prove
from _commits import series_on_base
from _git import GitError, git, git_bytes, lines
from _pin import BUILD, ROOT
from _report import Refusal, run
from _series import SUBJECT, Entry, Header, read_header, read_series
from _stuck import cannot_read, readable
from prove import POINT, Proof

TOPICS, OUT, LINT = ROOT / "docs" / "topics.ini", ROOT / "out", BUILD / "lint" / "bin"
MARKS = "refs/worktree/ucm-hicache/pr"  # the branches that we made
BEHAVIOUR = re.compile(r"\[(Feat|Bugfix|Opt)\]")
LARGE = 400  # changed lines
# UCM's list
SPELL = "CANN,cann,NNAL,nnal,ASCEND,ascend,EnQue,CopyIn"  # codespell:ignore
TEXT = """## Purpose

{purpose}

{why}

{closes}{relation}{needs}

## Modifications

One commit each, in this order.

{what}

## Test

Built for the CPU, `cmake {cmake}`: dependencies are headers of their PyPI packages, of the
stores' tests only `case/posix` and `case/detail` are compiled.
{ours}
```
{tests}```

What each test said before:

{before}
"""
# Of the CMake cache of what ran; the others name folders.
SHOWN = (
    "CMAKE_BUILD_TYPE DOWNLOAD_DEPENDENCE RUNTIME_ENVIRONMENT BUILD_UNIT_TESTS".split()
)
# Whatever the checkout's settings and attributes say: what clang-format-diff.py reads.
PLAIN = (
    "--no-color --no-ext-diff --no-textconv --text --src-prefix=a/ --dst-prefix=b/"
).split()
OURS = "Files under `tests/` are of the repository that this branch comes from.\n"
ONLY = "\nThese changes have no test in the branch, only there:\n\n"


@dataclass(frozen=True)
class Part:
    """An entry, its header, and its commit on the pinned base."""

    entry: Entry
    header: Header
    commit: str

    @property
    def topic(self) -> str:
        return self.header.trailers["Topic"][0]

    @property
    def proof(self) -> Proof:
        return Proof.of(self.entry)

    @property
    def brought(self) -> list[str]:
        """Test files that it brings to UCM."""
        named = ("diff-tree", "-r", "-z", "--name-only", "--no-commit-id", self.commit)
        return [p for p in lines(POINT, *named) if p.startswith(prove.TESTS)]

    @property
    def stays(self) -> str:
        """The file of its only test, where the branch does not have it."""
        path = self.proof.test.split()[0] if self.proof.is_python else ""
        return "" if self.brought or (POINT / path).exists() else path

    @property
    def phrase(self) -> str:
        return self.header.subject.rsplit("] ", 1)[-1]

    def paragraph(self, name: str) -> str:
        found = re.search(rf"^{name}: (.+?)\n(\n|\Z)", self.header.body, re.M | re.S)
        return " ".join(found[1].split()) if found else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucm", metavar="DIR", help="default: build/ucm")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--to", metavar="REF", help="default: where the series stands")
    parser.add_argument("--issue", metavar="URL", help="what the pull request closes")
    parser.add_argument("--dry-run", action="store_true", help="no branch, no file")
    options = parser.parse_args()
    repo, topics = checkout.find_checkout(options.ucm), configparser.ConfigParser()
    topics.read(TOPICS)
    refuse_unknown(options.topic, topics.sections())
    topic, start = topics[options.topic], starting_point(repo, options.to)
    branch, mark = f"pr-{options.topic}", f"{MARKS}/{options.topic}"
    if not options.dry_run:
        checkout.refuse_branch(repo, branch, mark, "make pr")
    install_linters()
    make_venv()
    parts = series(repo)
    needs = [n for n in topic["needs"].split() if any(n == p.topic for p in parts)]
    own = [part for part in parts if part.topic == options.topic]
    prove.prepare(repo, start)
    prove.switch(start)
    for place, name in enumerate(needs):
        stack([part for part in parts if part.topic == name], parts, needs[:place])
    below = git(POINT, "rev-parse", "HEAD")
    stack(own, parts, needs)
    tip = git(POINT, "rev-parse", "HEAD")
    tests, outcome = run_tests(own)
    findings = [*lint(below), *contents(below, own), outcome]
    title, issue = topic["title"], options.issue
    findings.append(finding(not SUBJECT.match(title), "title", title))
    findings.append(finding(not issue, "issue", issue or "ISSUE=URL names it", "warn"))
    text = body(topic, [topics[name]["title"] for name in needs], own, tests, issue)
    ready = not any(row.startswith("FAIL") for row in findings)
    print("\n".join(findings))
    where = f"above {', '.join(needs)}" if needs else f"on {start[:12]}, alone"
    print(f"branch    {branch}: {len(own)} commits {where}")
    if options.dry_run:
        print(f"\n{text}\n(dry run, nothing was changed)")
        return 0 if ready else 1
    checkout.refuse_branch(repo, branch, mark, "make pr")  # made meanwhile
    # Both or none: a branch without its mark would be somebody else's.
    rows = f"update refs/heads/{branch} {tip}\nupdate {mark} {tip}\n"
    with readable(f"when no git runs in {repo}: remove its lock, then make pr"):
        git(repo, "update-ref", "--stdin", stdin=rows.encode())
    OUT.mkdir(exist_ok=True)
    (OUT / f"{branch}.md").write_text(f"{title}\n\n{text}")
    print(f"text      {OUT}/{branch}.md\n{'ready' if ready else 'NOT READY'}")
    if ready:
        print(f"next: git -C {repo} push <your fork> {branch}; docs/upstreaming.md")
    return 0 if ready else 1


def finding(bad: object, name: str, text: str, word: str = "FAIL") -> str:
    return f"{word if bad else 'ok  '}  {name}: {text}"


def series(repo: Path) -> list[Part]:
    entries, (root, tip) = read_series(), series_on_base(repo, read_series())
    commits = git(repo, "rev-list", "--reverse", f"{root}..{tip}").split()
    headers = [read_header(entry.path.read_bytes()) for entry in entries]
    return [Part(*row) for row in zip(entries, headers, commits, strict=True)]


def refuse_unknown(name: str, described: list[str]) -> None:
    heads = [read_header(entry.path.read_bytes()) for entry in read_series()]
    known = {head.trailers["Topic"][0] for head in heads}
    if name not in described or name not in known:
        raise Refusal(
            f"there is no topic {name!r}",
            expected=f"a Topic trailer of patches/ ({', '.join(sorted(known))}) "
            f"and a section in docs/topics.ini ({', '.join(described)})",
            found=name or "nothing",
            next="make pr TOPIC=<one of these> UCM=DIR",
            code=2,
        )


def starting_point(repo: Path, to: str | None) -> str:
    """TO; else where the series is applied, or HEAD."""
    marks = checkout.applied(repo)
    return checkout.find_commit(repo, to or (marks[0] if marks else "HEAD"))


def stack(own: list[Part], parts: list[Part], below: list[str]) -> None:
    """Put entries onto HEAD, which has the topics `below`, without our own trailers."""
    for part in own:
        try:
            git(POINT, "cherry-pick", "--keep-redundant-commits", part.commit)
        except GitError as error:
            files = lines(POINT, "diff", "--name-only", "--diff-filter=U", "-z")
            if not files:
                next = f"git -C {POINT} fetch, then {prove.AGAIN}"
                raise cannot_read(error, next) from error
            log = ("log", "--format=%H", part.commit, "--", *files)
            touching = set(git(POINT, *log).split())
            others = {p.topic for p in parts if p.commit in touching} - {part.topic}
            lacking = sorted(others - set(below)) or ["make rebase TO=REF first"]
            raise Refusal(
                f"{part.entry.patch} does not apply there",
                expected="the topic alone, or above the topics it needs (docs/topics.ini)",
                found="\n".join(files),
                next=f"it needs: {', '.join(lacking)}",
            ) from error
        trees = git(POINT, "rev-parse", "HEAD^{tree}", "HEAD~^{tree}").split()
        if trees[0] == trees[1]:
            raise Refusal(
                f"upstream has {part.entry.patch} already",
                expected="entries that TO lacks",
                found=f"nothing is left of {part.phrase!r} there",
                next="make rebase TO=REF first, which drops it",
            )
        message = re.split(r"\n\nTopic: ", git(POINT, "show", "-s", "--format=%B"))[0]
        git(POINT, "commit", "-q", "--amend", "--allow-empty", "-m", message)


def run_tests(own: list[Part]) -> tuple[str, str]:
    """Build the branch and run every gtest of PosixStore and each entry's own test."""
    if not prove.compile_point():
        return "", finding(True, "build", f"read {prove.WORK}/log/compile.txt")
    tests = {part.proof.test: part.proof for part in own if part.proof.test}
    runs = [("ucmstore.test --gtest_filter='UCPosix*'", prove.run_gtest, "UCPosix*")]
    runs += [(command_of(tests[t]), prove.run_test, tests[t]) for t in sorted(tests)]
    bad, again, text = [], "", ""
    for command, run_it, test in runs:
        result = run_it(test)
        if not result.startswith("passes"):  # UCM has tests of time, too
            again += f"; {command}: {result}, then run again"
            result = run_it(test)
        bad += [] if result.startswith("passes") else [f"{command}: {result}"]
        rows = 1 if run_it is prove.run_test else 2
        text += f"$ {command}\n{prove.last_output(rows)}\n"
    return text, finding(bad, "tests", (", ".join(bad) or "all pass") + again)


def command_of(proof: Proof) -> str:
    if proof.is_python:
        return f"python -m pytest {proof.test}"
    return f"ucmstore.test --gtest_filter='{prove.fixtures(proof)}'"


def built_with() -> str:
    """CMake's own record of the variables that it was given."""
    path = prove.WORK / "cmake-debug" / "CMakeCache.txt"
    text = path.read_text() if path.is_file() else ""  # it may fail before that
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", text, re.M))
    return " ".join(f"-D{name}={cache.get(name, '')}" for name in SHOWN)


def install_linters() -> None:
    """Before the build, which takes minutes."""
    command = [ROOT / "ci" / "lint.sh", "tools"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise Refusal(
            "UCM's linters are not there and cannot be installed",
            expected="ci/requirements/lint.txt in build/lint, once, from PyPI",
            found="\n".join((done.stderr + done.stdout).strip().splitlines()[-3:]),
            next="make lint where there is a network, then make pr again",
        )


def make_venv() -> None:
    """Here, so that nobody waits for it to learn of a typing error."""
    command = [sys.executable, ROOT / "scripts" / "build.py", "--only", "venv"]
    if code := subprocess.run(command).returncode:
        sys.exit(code)  # it has told why


def lint(below: str) -> list[str]:
    """UCM's checks on the files of the branch; clang-format on the changed lines only."""
    alive = lines(POINT, "diff", "--name-only", "-z", "--diff-filter=d", below, "HEAD")
    python = [path for path in alive if path.endswith(".py")]
    native = [path for path in alive if path.endswith((".cc", ".h"))]
    diff = ("diff", "-U0", *PLAIN, below, "HEAD", "--", *native)
    theirs = (POINT / ".clang-format").exists()
    style = f"-style=file{'' if theirs else f':{ROOT}/ci/clang-format'}"
    checks = {
        "black": python and ["black", "--check", *python],
        "isort": python and ["isort", "--profile=black", "--check", *python],
        "codespell": ["codespell", "-L", SPELL, *alive],
        "clang-format": native and ["clang-format-diff.py", "-p1", style],
    }
    rows, env = [], {**os.environ, "PATH": f"{LINT}:{os.environ['PATH']}"}
    for name, command in checks.items():
        if command:
            stdin = git_bytes(POINT, *diff) if command[1] == "-p1" else b""
            where = {"cwd": POINT, "env": env, "input": stdin}
            done = subprocess.run(command, **where, capture_output=True)
            # clang-format-diff.py prints what it would change, and succeeds.
            bad = done.returncode or stdin and done.stdout
            text = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
            rows.append(finding(bad, name, text if bad else "clean"))
    return rows


def contents(below: str, own: list[Part]) -> list[str]:
    """What UCM's reviewers ask for: no workflow, licences, tests, a size to review."""
    span = (below, "HEAD")
    paths = lines(POINT, "diff", "--name-only", "-z", *span)
    added = lines(POINT, "diff", "--name-only", "-z", "--diff-filter=A", *span)
    flows = [path for path in paths if path.startswith(".github/workflows")]
    sources = [path for path in added if path.endswith((".py", ".cc", ".h"))]
    bare = [p for p in sources if b"MIT License" not in (POINT / p).read_bytes()[:200]]
    acting = [part for part in own if BEHAVIOUR.search(part.header.subject)]
    mute = [p.entry.patch for p in acting if not (p.proof.test or p.brought)]
    left = [f"\n      {p.header.subject} ({p.stays})" for p in own if p.stays]
    here = f"{len(left)} of {len(own)} entries{''.join(left)}"
    size = git(POINT, "diff", "--shortstat", *span).strip()
    changed = sum(int(n) for n in re.findall(r"(\d+) (?:insertion|deletion)", size))
    return [
        finding(flows, "workflows", ", ".join(flows) or "untouched"),
        finding(bare, "licence", ", ".join(bare) or "in each new file"),
        finding(mute, "a test named", ", ".join(mute) or "by each change"),
        finding(left, "tested here only", here, "warn"),
        finding(changed > LARGE, "size", size, "warn"),
    ]


def body(topic, needs: list[str], own: list[Part], tests: str, issue: str) -> str:
    """UCM's template, filled from the headers and the run."""
    above = "".join(f"\n\nNeeds `{need}`, to be merged first." for need in needs)
    return TEXT.format(
        purpose=" ".join(topic["purpose"].split()),
        why="\n".join(f"- **{part.phrase}**: {part.paragraph('Why')}" for part in own),
        closes=f"Closes {issue}. " if issue else "",
        relation=" ".join(topic["relation"].split()),
        needs=above,
        what="\n".join(
            f"- **{part.phrase}**: {part.paragraph('What')}" for part in own
        ),
        cmake=built_with(),
        ours=ours(own, tests),
        tests=tests,
        before="\n".join(f"- {part.paragraph('To test')}" for part in own),
    )


def ours(own: list[Part], tests: str) -> str:
    """Of the tests what a reader will not find in the branch."""
    rows = [f"- {p.header.subject}: `{p.stays}`\n" for p in own if p.stays]
    told = OURS if rows or "pytest tests/" in tests else ""
    return told + (ONLY + "".join(rows) if rows else "")


if __name__ == "__main__":
    run("pr", main)
