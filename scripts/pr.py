"""Make one topic a branch on an upstream commit, and the text of its pull request.

The topic's entries are put onto TO in build/points, above those of the topics that they need,
then linted, built and tested there as UCM does it. Nothing is pushed.
"""

import argparse
import configparser
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import _checkout as checkout
import prove
from _commits import series_on_base
from _git import GitError, git, git_bytes, lines
from _pin import BUILD, ROOT
from _report import Refusal, run
from _series import Entry, Header, read_header, read_series
from prove import POINT, Proof

TOPICS, OUT, LINT = ROOT / "docs" / "topics.ini", ROOT / "out", BUILD / "lint" / "bin"
LARGE = 400  # changed lines
# UCM's list
SPELL = "CANN,cann,NNAL,nnal,ASCEND,ascend,EnQue,CopyIn"  # codespell:ignore


@dataclass(frozen=True)
class Part:
    """An entry, its header, and its commit on the pinned base."""

    entry: Entry
    header: Header
    commit: str

    @property
    def topic(self) -> str:
        return self.header.trailers["Topic"][0]

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
    parts = series(repo)
    refuse_unknown(options.topic, topics.sections(), {part.topic for part in parts})
    topic, start = topics[options.topic], starting_point(repo, options.to)
    needs = [n for n in topic["needs"].split() if any(n == p.topic for p in parts)]
    own = [part for part in parts if part.topic == options.topic]
    prove.prepare(repo, start)
    prove.switch(start)
    for name in needs:
        stack([part for part in parts if part.topic == name], parts, needs)
    below = git(POINT, "rev-parse", "HEAD")
    stack(own, parts, needs)
    tip = git(POINT, "rev-parse", "HEAD")
    tests, outcome = run_tests(own)
    findings = [*lint(below), *contents(below, own), outcome]
    text = body(topic, needs, own, tests, options.issue)
    branch, ready = f"pr-{options.topic}", not any(
        "FAIL" in row[:4] for row in findings
    )
    print("\n".join(filter(None, findings)))
    print(
        f"title     {topic['title']}\nbranch    {branch}: {len(own)} commits", end=" "
    )
    print(f"above {', '.join(needs)}" if needs else f"on {start[:12]}, alone")
    if options.dry_run:
        print(f"\n{text}\n(dry run, nothing was changed)")
        return 0 if ready else 1
    OUT.mkdir(exist_ok=True)
    (OUT / f"{branch}.md").write_text(f"{topic['title']}\n\n{text}")
    git(repo, "branch", "--force", branch, tip)
    print(f"text      {OUT}/{branch}.md\n{'ready' if ready else 'NOT READY'}")
    if ready:
        print(f"next: git -C {repo} push <your fork> {branch}; docs/upstreaming.md")
    return 0 if ready else 1


def series(repo: Path) -> list[Part]:
    entries, (root, tip) = read_series(), series_on_base(repo, read_series())
    commits = git(repo, "rev-list", "--reverse", f"{root}..{tip}").split()
    headers = [read_header(entry.path.read_bytes()) for entry in entries]
    return [Part(*row) for row in zip(entries, headers, commits, strict=True)]


def refuse_unknown(name: str, described: list[str], known: set[str]) -> None:
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
    start = checkout.ref(repo, to or (marks[0] if marks else "HEAD"))
    if not start:
        raise Refusal(
            f"there is no commit {to} in {repo}",
            expected="TO=REF, the branch of UCM that the pull request targets",
            found=to or "",
            next=f"git -C {repo} fetch, then make pr again",
            code=2,
        )
    return start


def stack(own: list[Part], parts: list[Part], needs: list[str]) -> None:
    """Put entries onto HEAD, without the trailers that are for this project only."""
    for part in own:
        try:
            git(POINT, "cherry-pick", "--keep-redundant-commits", part.commit)
        except GitError as error:
            files = lines(POINT, "diff", "--name-only", "--diff-filter=U", "-z")
            log = ("log", "--format=%H", part.commit, "--", *files)
            touching = set(git(POINT, *log).split()) if files else set()
            others = {p.topic for p in parts if p.commit in touching} - {part.topic}
            lacking = sorted(others - set(needs)) or ["make rebase TO=REF first"]
            raise Refusal(
                f"{part.entry.patch} does not apply there",
                expected="the topic alone, or above the topics it needs (docs/topics.ini)",
                found="\n".join(files) or error.text,
                next=f"it needs: {', '.join(lacking)}",
            ) from error
        message = re.split(r"\n\nTopic: ", git(POINT, "show", "-s", "--format=%B"))[0]
        git(POINT, "commit", "-q", "--amend", "--allow-empty", "-m", message)


def run_tests(own: list[Part]) -> tuple[str, str]:
    """Build the branch and run every gtest of PosixStore and each entry's own test."""
    if not prove.compile_point():
        return "", f"FAIL  build: read {prove.WORK}/log/compile.txt"
    proofs = [Proof.of(part.entry) for part in own]
    python = sorted({proof.test for proof in proofs if proof.is_python})
    runs = [
        ("ucmstore.test --gtest_filter='UCPosix*'", prove.run_gtest("UCPosix*", 600))
    ]
    runs += [(f"python -m pytest {test}", prove.run_pytest(test)) for test in python]
    bad = [command for command, result in runs if not result.startswith("passes")]
    text = "\n".join(f"$ {command}\n{result}" for command, result in runs)
    return text, f"{'FAIL' if bad else 'ok  '}  tests: {', '.join(bad) or len(runs)}"


def lint(below: str) -> list[str]:
    """UCM's checks on the files of the branch; clang-format on the changed lines only."""
    subprocess.run([ROOT / "ci" / "lint.sh", "tools"], check=True)
    alive = lines(POINT, "diff", "--name-only", "-z", "--diff-filter=d", below, "HEAD")
    python = [path for path in alive if path.endswith(".py")]
    native = [path for path in alive if path.endswith((".cc", ".h"))]
    diff = ("diff", "-U0", below, "HEAD", "--", *native)
    changed = git_bytes(POINT, *diff) if native else b""
    style = (
        "file" if (POINT / ".clang-format").exists() else f"file:{ROOT}/ci/clang-format"
    )
    checks = [
        ("black", python and ["black", "--check", *python], b""),
        ("isort", python and ["isort", "--profile=black", "--check", *python], b""),
        ("codespell", ["codespell", "-L", SPELL, *alive], b""),
        (
            "clang-format",
            changed and ["clang-format-diff.py", "-p1", f"-style={style}"],
            changed,
        ),
    ]
    rows, env = [], {**os.environ, "PATH": f"{LINT}:{os.environ['PATH']}"}
    for name, command, stdin in checks:
        done = command and subprocess.run(
            command, cwd=POINT, env=env, input=stdin, capture_output=True
        )
        # clang-format-diff.py prints what it would change, and succeeds.
        bad = done and (done.returncode or (stdin and done.stdout))
        rows.append(f"{'FAIL' if bad else 'ok  '}  {name}")
        if bad:
            rows.append((done.stdout + done.stderr).decode("utf-8", "replace").strip())
    return rows


def contents(below: str, own: list[Part]) -> list[str]:
    """What UCM's reviewers ask for: no workflow, licences, tests, a size to review."""
    span = (below, "HEAD")
    paths = lines(POINT, "diff", "--name-only", "-z", *span)
    added = lines(POINT, "diff", "--name-only", "-z", "--diff-filter=A", *span)
    flows = [path for path in paths if path.startswith(".github/workflows")]
    bare = [
        path
        for path in added
        if path.endswith((".py", ".cc", ".h"))
        and b"MIT License" not in (POINT / path).read_bytes()[:200]
    ]
    loose = [p.entry.patch for p in own if not_tested(p, paths)]
    untested = [p for p in own if not Proof.of(p.entry).test]
    mute = [p.entry.patch for p in untested if "[Test]" not in p.header.subject]
    size = git(POINT, "diff", "--shortstat", *span)
    changed = sum(int(n) for n in re.findall(r"(\d+) (?:insertion|deletion)", size))
    return [
        f"{'FAIL' if flows else 'ok  '}  workflows: {', '.join(flows) or 'untouched'}",
        f"{'FAIL' if bare else 'ok  '}  licence: {', '.join(bare) or 'in each new file'}",
        f"{'FAIL' if mute else 'ok  '}  a test named: {', '.join(mute) or 'by each entry'}",
        f"warn  tests that stay here: {', '.join(loose)}" if loose else "",
        f"{'warn' if changed > LARGE else 'ok  '}  size: {size.strip()}",
    ]


def not_tested(part: Part, paths: list[str]) -> bool:
    """The entry's test is one of this project's, not in the branch."""
    proof = Proof.of(part.entry)
    return proof.is_python and proof.test.split()[0] not in paths


def body(
    topic, needs: list[str], own: list[Part], tests: str, issue: str | None
) -> str:
    """UCM's template, filled from the headers and the run."""
    rows = ["## Purpose", "", " ".join(topic["purpose"].split()), ""]
    rows += [f"- **{phrase(part)}**: {part.paragraph('Why')}" for part in own]
    rows += [
        "",
        f"Closes {issue}." if issue else "Part of the request behind #1392.",
        "",
    ]
    rows += [" ".join(topic["relation"].split()), ""]
    rows += [f"Needs `{need}`, which is to be merged first." for need in needs]
    rows += ["", "## Modifications", ""]
    rows += [f"- **{phrase(part)}**: {part.paragraph('What')}" for part in own]
    rows += [
        "",
        "## Test",
        "",
        "Debug build for the CPU (`RUNTIME_ENVIRONMENT=simu`):",
        "",
    ]
    rows += ["```", tests, "```", "", "What each test said before:", ""]
    rows += [f"- {part.paragraph('To test')}" for part in own]
    return "\n".join(rows) + "\n"


def phrase(part: Part) -> str:
    return part.header.subject.rsplit("] ", 1)[-1]


if __name__ == "__main__":
    run("pr", main)
