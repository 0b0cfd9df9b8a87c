"""The whole series moved onto a UCM that drifted, down to the feature tests on the result.

Minutes of compiling, so not part of `make test`: `make drift`. All kinds of drift, on a
small project, are in tests/tools/test_rebase.py.
"""

import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import per_block_lookup as drift
from conftest import BUILT, ROOT, call, edit, save

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

    call("git", "switch", "-q", "hicache-v2", cwd=ucm)
    words = ("--ucm", ucm, "--out", BUILT, "--variant", "debug", "--gtest")
    build = ROOT / "scripts" / "build.py"
    call(sys.executable, build, *words, "--only", "native", cwd=ROOT)
    program = BUILT / "cmake-debug" / "ucm" / "store" / "test" / "ucmstore.test"
    tmp_path.chmod(0o755)
    out = call(program, "--gtest_brief=1", "--gtest_filter=UCPosix*", cwd=tmp_path)
    assert "PASSED" in out
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
