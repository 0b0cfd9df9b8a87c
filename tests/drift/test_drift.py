"""The whole series moved onto a UCM that drifted, down to the feature tests on the result.

Minutes of compiling, so not part of `make test`: `make drift`. Each kind of drift in more
forms, on a small project, is in tests/tools/test_rebase.py.
"""

import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import per_block_lookup as drift
from conftest import BUILT, ROOT, call, edit, save

TRACKER = "ucm/store/posix/cc/hotness_tracker"
SLEEP, RECENCY = "let-the-idle-hotness-thread-sleep", "collect-last-what-was-used-last"
TRACKED = "UCPosixHotness*:UCPosixGcRecency*"  # its tests, of both entries
CONNECTOR = "ucm/integration/sglang/ucm_connector.py"
BACKEND = "ucm/integration/sglang/unifiedcache_store.py"
STATS = "    def get_stats(self):\n"
FEATURE = {
    CONNECTOR: [
        ("import hashlib\n", "import hashlib\nimport json\n"),
        (
            STATS,
            "    def describe(self) -> str:\n"
            '        """What a health page shows of this backend."""\n'
            "        folders = list(self.storage_backends)\n"
            '        return json.dumps({"backends": folders})\n\n' + STATS,
        ),
    ],
    BACKEND: [
        (
            STATS,
            "    def describe(self) -> str:\n"
            "        return self._ensure_initialized().describe()\n\n" + STATS,
        )
    ],
}


def rebase(project: Path, *words, code: int = 0) -> str:
    return call(sys.executable, "scripts/rebase.py", *words, cwd=project, code=code)


def outcomes(out: str) -> dict[str, str]:
    """Entry -> how it ended."""
    rows = (row.split() for row in out.splitlines() if row.endswith(".patch"))
    return {row[1]: row[0] for row in rows if len(row) == 2}


def stopped_at(out: str) -> str:
    """The entry in conflict, without its number."""
    return re.search(r"CONFLICT  \d+-(\S+)\.patch", out)[1]


def conflicts(out: str) -> list[str]:
    return sorted(re.findall("  conflict  (.+)", out))


def entry_s(tree: Path, path: str) -> str:
    """The entry's own text of a file in conflict."""
    return call("git", "show", f":3:{path}", cwd=tree)


def gtests(ucm: Path, cases: str, cwd: Path) -> None:
    """Compile the moved series, its tests as well, and run some of UCM's."""
    call("git", "switch", "-q", "hicache-v2", cwd=ucm)
    words = ("--ucm", ucm, "--out", BUILT, "--variant", "debug", "--gtest")
    build = ROOT / "scripts" / "build.py"
    call(sys.executable, build, *words, "--only", "native", cwd=ROOT)
    program = BUILT / "cmake-debug" / "ucm" / "store" / "test" / "ucmstore.test"
    cwd.chmod(0o755)
    out = call(program, "--gtest_brief=1", f"--gtest_filter={cases}", cwd=cwd)
    assert "PASSED" in out and "] 0 tests" not in out


def touched(patch: Path) -> set[str]:
    return set(re.findall(r"^\+\+\+ b/(.+)$", patch.read_text(), re.M))


def test_a_lines_moved(project, upstream):
    """Expected: every entry goes on by itself, some of them at other lines."""
    patches = (project / "patches").glob("*.patch")
    paths = {path for patch in patches for path in touched(patch)}
    ucm = upstream({}, "")
    for path in sorted(ucm / path for path in paths):
        if path.suffix in (".cc", ".h") and path.is_file():
            path.write_text("// moved\n" * 3 + path.read_text())
    save(ucm, "Move lines")
    found = Counter(outcomes(rebase(project, "--ucm", ucm, "--to", "HEAD")).values())
    assert set(found) == {"clean", "offset"} and found["offset"] > 5
    call(sys.executable, "scripts/verify.py", cwd=project)


def test_b_a_patch_was_merged_verbatim(project, upstream):
    """Expected: that entry is dropped, with its overlay files, and no other one."""
    first = min((project / "patches").glob("*.patch"))
    ucm = upstream({}, "")
    call("git", "apply", first, cwd=ucm)
    series = (project / "patches" / "series").read_text()
    owned = re.findall(r"^    (\S+)", series.partition("0002-")[0], re.M)
    for path in owned:
        (ucm / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(project / "ucm_overlay" / path, ucm / path)
    save(ucm, "Answer per key")
    found = outcomes(rebase(project, "--ucm", ucm, "--to", "HEAD"))
    assert [name for name, how in found.items() if how != "clean"] == [first.name]
    assert found[first.name] == "dropped" and owned
    assert not [path for path in owned if (project / "ucm_overlay" / path).exists()]
    call(sys.executable, "scripts/verify.py", cwd=project)


def test_c_a_patch_was_merged_with_edits(project, upstream, tmp_path):
    """Expected: conflicts in its files, where upstream's text stays, so that only its tests
    are left of it; and in the entry that builds on it, which takes upstream's name."""
    (patch,) = (project / "patches").glob(f"*-{SLEEP}.patch")
    files = sorted(TRACKER + suffix for suffix in (".cc", ".h"))
    ucm = upstream({}, "")
    call("git", "apply", patch, cwd=ucm)
    for path in files:
        (ucm / path).write_text((ucm / path).read_text().replace("queueCv_", "awake_"))
    save(ucm, "Sleep while nothing is touched")
    out = rebase(project, "--ucm", ucm, "--to", "HEAD", code=3)
    tree = project / "build" / "rebase"
    assert (stopped_at(out), conflicts(out)) == (SLEEP, files)
    assert out.count("Sleep while nothing is touched") == len(files)
    call("git", "checkout", "HEAD", "--", *files, cwd=tree)
    call("git", "add", "--all", cwd=tree)
    out = rebase(project, "--continue", code=3)
    assert stopped_at(out) == RECENCY and set(conflicts(out)) <= set(files)
    for path in conflicts(out):
        text = entry_s(tree, path).replace("queueCv_", "awake_")
        (tree / path).write_text(text)
    call("git", "add", "--all", cwd=tree)
    found = outcomes(rebase(project, "--continue"))
    assert [name for name, how in found.items() if how == "solved"] == [
        patch.name,
        next(name for name in found if RECENCY in name),
    ]
    assert touched(patch) == set(), "nothing of upstream's files is left in the entry"
    call(sys.executable, "scripts/verify.py", cwd=project)
    gtests(ucm, TRACKED, tmp_path)


def test_d_a_touched_function_was_renamed(project, upstream, tmp_path):
    """Expected: a conflict where an entry changes that function; and where its tests, which
    are new files, call it by the old name, no conflict but a compiler's error."""
    old, new = "hotnessTracker_.Setup(", "hotnessTracker_.Start("
    declared = "Status Setup(const SpaceLayout* layout"
    edits = {
        "ucm/store/posix/cc/space_manager.cc": [(old, new)],
        TRACKER + ".cc": [("HotnessTracker::Setup(", "HotnessTracker::Start(")],
        TRACKER + ".h": [(declared, declared.replace("Setup", "Start"))],
    }
    ucm = upstream(edits, "Start what starts a thread")
    out = rebase(project, "--ucm", ucm, "--to", "HEAD", code=3)
    tree = project / "build" / "rebase"
    assert (stopped_at(out), conflicts(out)) == (RECENCY, sorted(edits))
    for path, pieces in edits.items():
        (tree / path).write_text(entry_s(tree, path))
        edit(tree, {path: pieces})
    call("git", "add", "--all", cwd=tree)
    found = Counter(outcomes(rebase(project, "--continue")).values())
    assert found["solved"] == 1 and not found["dropped"]
    call(sys.executable, "scripts/verify.py", cwd=project)

    call("git", "switch", "-q", "hicache-v2", cwd=ucm)
    test = ucm / "ucm/store/test/case/posix/posix_hotness_test.cc"
    test.write_text(test.read_text().replace("tracker.Setup(", "tracker.Start("))
    save(ucm, "fixup")
    call(sys.executable, "scripts/refresh.py", "--ucm", ucm, cwd=project)
    call(sys.executable, "scripts/verify.py", cwd=project)
    gtests(ucm, TRACKED, tmp_path)


def test_e_a_touched_file_was_split_in_two(project, upstream, tmp_path):
    """Expected: each entry that changes the part that went is in conflict, and its change is
    made where that part is now."""
    whole, part = TRACKER + ".cc", "ucm/store/posix/cc/hotness_worker.cc"

    def split(root: Path, text: str) -> None:
        """The thread's work goes, with a licence and the includes of its own."""
        head, opens, rest = text.partition("namespace UC::PosixStore {\n")
        kept, worker, work = rest.partition("void HotnessTracker::UtimeWorkerLoop()")
        end = "\n}  // namespace UC::PosixStore\n"
        (root / whole).write_text(head + opens + kept.rstrip("\n") + "\n" + end)
        (root / part).write_text(head + opens + "\n" + worker + work)

    ucm = upstream({}, "")
    split(ucm, (ucm / whole).read_text())
    save(ucm, "Give the worker a file")
    out = rebase(project, "--ucm", ucm, "--to", "HEAD", code=3)
    tree = project / "build" / "rebase"
    for entry, code in ((SLEEP, 3), (RECENCY, 0)):
        assert (stopped_at(out), conflicts(out)) == (entry, [whole])
        assert "Give the worker a file" in out
        split(tree, entry_s(tree, whole))
        call("git", "add", "--all", cwd=tree)
        out = rebase(project, "--continue", code=code)
    found = Counter(outcomes(out).values())
    assert found["solved"] == 2 and not found["dropped"]
    for entry in (SLEEP, RECENCY):
        (patch,) = (project / "patches").glob(f"*-{entry}.patch")
        assert {whole, part} <= touched(patch)
    call(sys.executable, "scripts/verify.py", cwd=project)
    gtests(ucm, TRACKED, tmp_path)


def test_g_an_overlay_path_appeared(project, upstream):
    """Expected: said before the first entry; a conflict, whose solution becomes a patch."""
    path = "ucm/integration/sglang/hit_policy.py"
    ours = (project / "ucm_overlay" / path).read_text()
    ucm = upstream({}, "")
    (ucm / path).write_text("# upstream's own\n")
    save(ucm, "Judge hits")
    out = rebase(project, "--ucm", ucm, "--to", "HEAD", code=3)
    assert f"overlay   {path}: upstream has it now, otherwise" in out
    tree = project / "build" / "rebase"
    (tree / path).write_text(ours)
    call("git", "add", "--all", cwd=tree)
    found = Counter(outcomes(rebase(project, "--continue")).values())
    assert found["solved"] == 1 and set(found) == {"clean", "solved"}
    assert not (project / "ucm_overlay" / path).exists()
    assert path in {
        p for f in (project / "patches").glob("*.patch") for p in touched(f)
    }
    call(sys.executable, "scripts/verify.py", cwd=project)


def test_f_upstream_answers_lookups_per_block(
    project, upstream, feature_tests, tmp_path
):
    """Expected: upstream's code stays and the entry is reduced to its tests; those after it
    that build on our lookup are in conflict, and get what upstream's still lacks."""
    ucm = upstream(drift.UPSTREAM, "Look up per block")
    out = rebase(project, "--ucm", ucm, "--to", "HEAD", code=3)
    tree, solved = project / "build" / "rebase", []
    while "CONFLICT" in out:
        name = re.search(r"CONFLICT  (\S+)", out)[1]
        assert "Look up per block" in out
        solved += [word for word in drift.SOLUTIONS if word in name]
        edits = drift.SOLUTIONS[solved[-1]]
        call("git", "checkout", "HEAD", "--", *edits, cwd=tree)
        edit(tree, edits)
        if solved[-1] in drift.UNPINNED:
            path, name = drift.UNPINNED[solved[-1]]
            pattern = rf"(?s)TEST_F\(\w+, {name}\)\n.*?\n}}\n\n?"
            text, found = re.subn(pattern, "", (tree / path).read_text())
            assert found == 1
            (tree / path).write_text(text)
        call("git", "add", "--all", cwd=tree)
        last = len(solved) == len(drift.SOLUTIONS)
        out = rebase(project, "--continue", code=0 if last else 3)
    assert solved == list(drift.SOLUTIONS)
    found = outcomes(out)
    assert sorted(set(found.values())) == ["clean", "merged", "solved"]
    first = project / "patches" / next(iter(found))
    assert touched(first) == set(), "nothing of upstream's files is left in the entry"
    assert (project / "ucm_overlay" / drift.OURS).is_file()
    call(sys.executable, "scripts/verify.py", cwd=project)

    gtests(ucm, "UCPosix*", tmp_path)
    assert " passed" in feature_tests(BUILT / "tree-debug")


def test_h_the_connector_gained_a_feature(project, upstream, feature_tests, tmp_path):
    """Expected: conflicts of imports, and twice of methods at one place; both sides stay."""
    ucm = upstream(FEATURE, "Describe the backend")
    tree = project / "build" / "rebase"
    out = rebase(project, "--ucm", ucm, "--to", "HEAD", code=3)
    for left, both in ((2, r"import json\n"), (1, r"\1\n\2"), (0, r"\1\n\2")):
        assert re.findall("  conflict  (.+)", out) == [CONNECTOR]
        text = (tree / CONNECTOR).read_text()
        marked = r"(?s)<<<<<<< HEAD\n(.*?)=======\n(.*?)>>>>>>> .*?\n"
        (tree / CONNECTOR).write_text(re.sub(marked, both, text))
        call("git", "add", "--all", cwd=tree)
        out = rebase(project, "--continue", code=3 if left else 0)
    found = Counter(outcomes(out).values())
    assert found["solved"] == 3 and not found["dropped"]
    call(sys.executable, "scripts/verify.py", cwd=project)

    call("git", "switch", "-q", "hicache-v2", cwd=ucm)
    built, package = BUILT / "tree", "ucm/integration/sglang"
    shutil.rmtree(built, ignore_errors=True)
    shutil.copytree(ROOT / "build" / "tree", built, symlinks=True)
    shutil.rmtree(built / package)
    shutil.copytree(ucm / package, built / package)
    assert " passed" in feature_tests(built)
    probe = (
        "import hicache_kit as kit\n"
        "with kit.Site.temporary() as site:\n"
        "    print(site.attach(kit.mha()).describe())"
    )
    path = f"{ROOT / 'tests' / 'hicache'}:{built}"
    python = ROOT / "build" / "venv" / "bin" / "python"
    assert '{"backends": [' in call(python, "-c", probe, cwd=tmp_path, PYTHONPATH=path)
