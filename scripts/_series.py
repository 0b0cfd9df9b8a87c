"""The series on disk: patches/series, the patch headers, and who owns which overlay file.

Grammar of patches/series, all of it written by `make refresh`:

    # a comment
    0001-short-phrase.patch          an entry; entries apply in this order
        ucm/path/of/a/new_file.py    an overlay file that lands in the entry's commit
"""

import email
import email.policy
import re
from dataclasses import dataclass, field
from pathlib import Path

from _git import git
from _pin import ROOT
from _report import Refusal

PATCHES = ROOT / "patches"
OVERLAY = ROOT / "ucm_overlay"
SERIES = PATCHES / "series"

TAGS = ("Feat", "Bugfix", "Opt", "Build", "CI", "Doc", "Test", "Misc")
SUBJECT = re.compile(rf"(\[({'|'.join(TAGS)})\])+ \S.{{0,70}}[^.\s]$")
SECTIONS = ("Why", "What", "To test")
TRAILERS = ("Topic", "Forwarded", "Drop-When")


@dataclass
class Entry:
    """One commit of the series: a patch file and the overlay files that land with it."""

    patch: str
    overlay: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return PATCHES / self.patch


def read_series(complete: bool = True) -> list[Entry]:
    """Entries of patches/series in order, at least one.

    Raises Refusal for what cannot be read, and for a `complete` series that lacks a file.
    """
    entries: list[Entry] = []
    text = SERIES.read_text("utf-8") if SERIES.is_file() else ""
    names = (line.partition("#")[0].rstrip() for line in text.splitlines())
    for name in filter(None, names):
        if name[0].isspace() and entries:
            entries[-1].overlay.append(name.strip())
        else:
            entries.append(Entry(name.strip()))
    if not entries:
        raise Refusal(
            "the series is empty",
            expected="at least one entry in patches/series",
            found="none",
            next="git checkout -- patches",
        )
    files = [entry.path for entry in entries]
    files += [OVERLAY / path for path in overlay_owners(entries)]
    lost = [str(path.relative_to(ROOT)) for path in files if not path.is_file()]
    if complete and lost:
        raise Refusal(
            "the series is not complete",
            expected="every file that patches/series names",
            found="\n".join(f"{path} is not there" for path in lost),
            next="git checkout -- patches ucm_overlay; make verify names every fault",
        )
    return entries


def write_series(entries: list[Entry], topics: list[str]) -> str:
    """Text of patches/series; a comment opens each topic."""
    rows, last = ["# Written by `make refresh`; docs/series.md tells the grammar."], ""
    for entry, topic in zip(entries, topics, strict=False):
        if topic != last:
            rows += ["", f"# {topic}"]
            last = topic
        rows.append(entry.patch)
        rows += [f"    {path}" for path in sorted(entry.overlay)]
    return "\n".join(rows) + "\n"


def overlay_owners(entries: list[Entry]) -> dict[str, str]:
    """Overlay path -> the patch whose commit adds it."""
    return {path: entry.patch for entry in entries for path in entry.overlay}


@dataclass(frozen=True)
class Header:
    """Mail header and message of one patch file."""

    subject: str
    body: str
    trailers: dict[str, list[str]]


def read_header(patch: bytes) -> Header:
    message = email.message_from_bytes(patch, policy=email.policy.default)
    body = message.get_content().split("\n---\n")[0].split("\ndiff --git ")[0]
    mail = f"subject\n\n{body}\n".encode("utf-8", "replace")
    parsed = git(ROOT, "interpret-trailers", "--parse", stdin=mail)
    trailers: dict[str, list[str]] = {}
    for row in parsed.splitlines():
        key, _, value = row.partition(":")
        trailers.setdefault(key, []).append(value.strip())
    return Header(str(message["Subject"]).replace("\n", ""), body, trailers)


def header_faults(header: Header) -> list[str]:
    """What a patch header lacks; empty when it follows CONTRIBUTING.md."""
    faults = []
    if not SUBJECT.match(header.subject):
        faults.append(
            f"subject {header.subject!r}: expected [{'|'.join(TAGS)}] and a phrase "
            "under 72 characters without a full stop"
        )
    for section in SECTIONS:
        if not re.search(rf"^{section}: \S", header.body, re.MULTILINE):
            faults.append(f"message has no paragraph that starts with '{section}: '")
    for key in TRAILERS:
        count = len(header.trailers.get(key, []))
        if count != 1:
            faults.append(f"trailer {key} is there {count} times, expected once")
    proof = header.trailers.get("Proof", [""])[0]
    if "[Bugfix]" in header.subject and not proof:
        faults.append(
            "a [Bugfix] without a trailer Proof, the test that shows the fault"
        )
    if "[Bugfix]" in header.subject and proof.startswith("new-api "):
        faults.append(
            "a [Bugfix] with 'Proof: new-api': no test fails before it. Name one that "
            "does, or tag it as what it adds"
        )
    return faults


def slug(subject: str) -> str:
    """File-name part of a subject: tags dropped, lower case, dashes."""
    phrase = re.sub(r"^(\[\w+\])+\s*", "", subject).lower()
    return re.sub(r"[^a-z0-9]+", "-", phrase).strip("-")[:60].rstrip("-")
