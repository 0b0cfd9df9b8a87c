"""make verify BUILD=1: what it takes for proof, what it does not, and that it goes on."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest
from series_project import (
    ENGINE,
    LICENCE,
    Project,
    bare_series,
    git,
    message,
    refused,
    replace,
    write,
)

PYTEST = f"""import os
from pathlib import Path

def test_line():
    text = (Path(os.environ["UCM_TREE"]) / "{ENGINE}").read_text()
    assert "engine_line_5(int n)" in text
"""
ABSENT = f"""
def test_absent():
    text = (Path(os.environ["UCM_TREE"]) / "{ENGINE}").read_text()
    assert "engine_line_5(int n)" in text or os.line_5
"""
FOLDER = "ucm/store/test/case/posix"


@pytest.fixture
def ucm(project: Project) -> Path:
    """The base on a branch, for a series of the test's own."""
    return bare_series(project)


def entry(ucm: Path, number: int, proof: str | None, *, kind="Bugfix", case="") -> None:
    """Change a line of the engine; `case` is the text of a test file that lands with it."""
    name = f"engine_line_{number}()"
    replace(ucm, ENGINE, name, f"engine_line_{number}(int n)")
    if case:
        path = f"{FOLDER}/posix_{number}_test.cc"
        write(ucm, path, f"{LICENCE.replace('#', '//')}{case}\n")
    text = message(f"[{kind}] Change line {number}", "posix-store", proof)
    git(ucm, "add", "-A")
    git(ucm, "commit", "-q", "-F", "-", text=text)


def case(number: int, word: str = "TEST", line: int | None = None) -> str:
    text = f"engine_line_{line or number}(int n)"
    return f"// {word} UCPosix{number}Test.Line {ENGINE} {text}"


def walk(project: Project, code: int = 0) -> list[list[str]]:
    done = project.run("prove")
    assert done.returncode == code, done.stdout + done.stderr
    rows = [row.split(" | ") for row in done.stdout.splitlines() if " | " in row]
    # The base's connector is one module.
    rows = [[cell.removesuffix("; 1 modules import") for cell in row] for row in rows]
    return [[row[0][:4], *row[2:]] for row in rows]


def refresh(project: Project, ucm: Path) -> None:
    project.ok(
        "refresh", "--ucm", ucm, "--base", git(project.base, "rev-parse", "HEAD")
    )


def builds(project: Project) -> int:
    path = project.root / "build" / "points" / "builds.txt"
    return len(path.read_text().splitlines())


def test_red_on_the_parent_green_on_it(project: Project, ucm: Path):
    entry(ucm, 5, "UCPosix5Test", case=case(5))
    entry(ucm, 15, "UCPosix15Test", case=case(15, "CRASH"))
    entry(ucm, 25, None, kind="Opt")
    refresh(project, ucm)
    assert walk(project) == [
        ["0001", "fails: 1 of 1", "passes: 1", "passes: 1", "ok"],
        ["0002", "crashes in Line", "passes: 1", "passes: 2", "ok"],
        ["0003", "-", "-", "passes: 2", "ok"],
    ]
    table = (project.root / "docs" / "bisect.md").read_text()
    assert "3 entries were built and tested; the tests of 2 fail" in table
    assert table.count("\n| 000") == 3


def test_what_is_no_proof(project: Project, ucm: Path):
    entry(ucm, 5, "UCPosix5Test", case=case(5, line=4).replace("(int n)", "()"))
    entry(
        ucm, 10, "UCPosix10Test", case=case(10) + f"\n// NEEDS {ENGINE} line_10(int n)"
    )
    entry(ucm, 15, None)
    entry(ucm, 20, "UCPosixOtherTest", case=case(20))
    refresh(project, ucm)
    assert walk(project, code=1) == [
        ["0001", "passes: 1", "passes: 1", "passes: 1", "PROVES NOTHING"],
        ["0002", "does not build", "passes: 1", "passes: 2", "PROVES NOTHING"],
        ["0003", "-", "-", "passes: 2", "NO PROOF"],
        ["0004", "no such test", "no such test", "passes: 3", "NOT GOOD at its point"],
    ]


@pytest.mark.parametrize("kind, end", [("Opt", "ok"), ("Feat", "PROVES NOTHING")])
def test_what_gets_faster_may_do_as_before(project, ucm, kind: str, end: str):
    text = case(5, line=4).replace("(int n)", "()")
    entry(ucm, 5, "UCPosix5Test", kind=kind, case=text)
    refresh(project, ucm)
    rows = walk(project, code=int(end != "ok"))
    assert rows == [["0001", "passes: 1", "passes: 1", "passes: 1", end]]


def test_new_api_is_marked_and_not_counted(project: Project, ucm: Path):
    text = case(10) + f"\n// NEEDS {ENGINE} line_10(int n)"
    entry(ucm, 10, "new-api UCPosix10Test", kind="Feat", case=text)
    refresh(project, ucm)
    assert walk(project) == [["0001", "does not build", "passes: 1", "passes: 1", "ok"]]
    table = (project.root / "docs" / "bisect.md").read_text()
    assert "UCPosix10Test (new-api)" in table and "the tests of 0 fail" in table


@pytest.mark.parametrize(
    "kind, mark, end",
    [
        ("Feat", "new-api ", "PROVES NOTHING"),
        ("Test", "", "ok"),
        ("Bugfix][Test", "", "PROVES NOTHING"),
        ("Opt][Bugfix", "", "PROVES NOTHING"),
    ],
)
def test_what_excuses_a_test_that_passes_before(project, ucm, kind, mark, end: str):
    """Not that it is said to be of new API, and nothing where a fault is said to be."""
    text = case(5, line=4).replace("(int n)", "()")
    entry(ucm, 5, f"{mark}UCPosix5Test", kind=kind, case=text)
    refresh(project, ucm)
    rows = walk(project, code=int(end != "ok"))
    assert rows == [["0001", "passes: 1", "passes: 1", "passes: 1", end]]


def test_a_kept_result_is_judged_anew(project: Project, ucm: Path):
    """Another subject is not another result, but may be another verdict."""
    text = case(5, line=4).replace("(int n)", "()")
    entry(ucm, 5, "UCPosix5Test", kind="Test", case=text)
    refresh(project, ucm)
    walk(project)
    first = builds(project)
    told = message("[Bugfix] Change line 5", "posix-store", "UCPosix5Test")
    git(ucm, "commit", "-q", "--amend", "-F", "-", text=told)
    refresh(project, ucm)
    assert walk(project, code=1)[0][-1] == "PROVES NOTHING"
    assert builds(project) == first


def test_records_of_worktrees_that_are_not_ours(project: Project, ucm: Path):
    """One on a disk that is not plugged in right now, and our own that was removed."""
    away = project.root.parent / "usb"
    git(ucm, "worktree", "add", "-q", "--detach", str(away))
    entry(ucm, 5, "UCPosix5Test", case=case(5))
    refresh(project, ucm)
    away.rename(away.with_name("unplugged"))
    walk(project)
    shutil.rmtree(project.root / "build" / "points" / "ucm")
    (project.root / "docs" / "data" / "points.json").unlink()
    walk(project)
    away.with_name("unplugged").rename(away)
    assert git(away, "rev-parse", "HEAD") == git(project.base, "rev-parse", "HEAD")


def test_a_point_that_breaks_others_tests(project: Project, ucm: Path):
    entry(ucm, 5, "UCPosix5Test", case=case(5))
    replace(ucm, ENGINE, "engine_line_5(int n)", "engine_row_5(int n)")
    entry(ucm, 15, "UCPosix15Test", case=case(15))
    refresh(project, ucm)
    rows = walk(project, code=1)
    assert rows[1][1:] == [
        "fails: 1 of 1",
        "passes: 1",
        "fails: 1 of 2",
        "NOT GOOD at its point",
    ]


def test_a_test_of_time_gets_one_more_try(project: Project, ucm: Path):
    """Shown in the table; the entry's own test gets none."""
    mark = project.root.parent / "tried"
    late = f"\n// FLAKY UCPosixLate.Test {ENGINE} {mark}"
    entry(ucm, 5, "UCPosix5Test", case=case(5) + late)
    refresh(project, ucm)
    word = "passes: 2, 1 of them when run again"
    assert walk(project) == [["0001", "fails: 1 of 1", "passes: 1", word, "ok"]]


def test_goes_on_where_it_stopped(project: Project, ucm: Path):
    """Good results are kept by content: another message changes nothing, a file does."""
    entry(ucm, 5, "UCPosix5Test", case=case(5))
    refresh(project, ucm)
    walk(project)
    first = builds(project)
    entry(ucm, 15, "UCPosix15Test", case=case(15))
    refresh(project, ucm)
    rows = walk(project)
    assert builds(project) == first + 2
    git(ucm, "commit", "-q", "--amend", "-C", "HEAD", "--date=2026-05-05T00:00:00Z")
    refresh(project, ucm)
    assert walk(project) == rows and builds(project) == first + 2
    known = project.root / "docs" / "data" / "points.json"
    assert len(json.loads(known.read_text())) == 4
    replace(ucm, ENGINE, "engine_line_30", "engine_row_30")
    git(ucm, "commit", "-q", "-a", "--amend", "-C", "HEAD")
    refresh(project, ucm)
    walk(project)
    assert builds(project) == first + 4


def test_two_walks_at_a_time(project: Project, ucm: Path):
    """They would build in the same folder, and take the other's program for their own."""
    entry(ucm, 5, "UCPosix5Test", case=case(5))
    refresh(project, ucm)
    points = project.root / "build" / "points"
    points.mkdir(parents=True)
    with open(points / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(project.run("prove"), "by another process", "wait for its end")
    walk(project)


def test_what_a_killed_git_left(project: Project, ucm: Path):
    """A lock in the worktree; its record, still locked, and no worktree."""
    entry(ucm, 5, "UCPosix5Test", case=case(5))
    refresh(project, ucm)
    walk(project)
    (project.root / "docs" / "data" / "points.json").unlink()
    point = project.root / "build" / "points" / "ucm"
    for name in ("index.lock", "HEAD.lock"):
        lock = Path(git(point, "rev-parse", "--absolute-git-dir")) / name
        lock.touch()
        refused(project.run("prove"), f"rm {lock}, then the same again")
        lock.unlink()
    git(ucm, "worktree", "lock", str(point))
    shutil.rmtree(point)
    walk(project)


def test_another_series_is_applied(project: Project, ucm: Path):
    entry(ucm, 5, "UCPosix5Test", case=case(5))
    refused(project.run("prove"), "this series is not applied", "make apply")


def test_a_gtest_is_not_added_for_pytest(project: Project, ucm: Path):
    """An entry's gtest may need its API, while its proof is a Python test of the fault."""
    write(project.root, "tests/test_line.py", PYTEST)
    text = case(5) + f"\n// NEEDS {ENGINE} line_5(int n)"
    entry(ucm, 5, "tests/test_line.py", case=text)
    refresh(project, ucm)
    assert walk(project) == [["0001", "fails: 1 of 1", "passes: 1", "passes: 1", "ok"]]


@pytest.mark.parametrize(
    "line, fails",
    [
        ("import line_5_not_there", False),
        ("from os import line_5", False),
        ("os.line_5", False),
        ("os.getenv('a', line=5)", False),
        ("raise TypeError('5 is no line')", True),
        ("raise ValueError('AttributeError')", True),
        ("raise AssertionError('no line 5')", True),
    ],
)
def test_what_python_lacks_before_the_entry(project, ucm, line: str, fails: bool):
    """A name or argument that is not there yet is Python's compile failure."""
    text = PYTEST.replace(
        "    assert", f"    if not 'line_5(int n)' in text:\n        {line}\n    assert"
    )
    write(project.root, "tests/test_line.py", text)
    entry(ucm, 5, "tests/test_line.py", case=case(5))
    refresh(project, ucm)
    row = walk(project, code=0 if fails else 1)[0]
    outcome = (
        ["fails: 1 of 1", "ok"]
        if fails
        else ["needs what the entry adds", "PROVES NOTHING"]
    )
    assert [row[1], row[-1]] == outcome


def test_one_real_failure_among_absent_names(project: Project, ucm: Path):
    write(project.root, "tests/test_line.py", PYTEST + ABSENT)
    entry(ucm, 5, "tests/test_line.py", case=case(5))
    refresh(project, ucm)
    assert walk(project)[0][1:3] == ["fails: 2 of 2", "passes: 2"]


def test_helpers_of_a_python_test_are_part_of_it(project: Project, ucm: Path):
    """Another conftest.py or helper is another test; a test file beside it that it does
    not name is not."""
    write(project.root, "tests/test_line.py", PYTEST + "# test_named\n")
    entry(ucm, 5, "tests/test_line.py", case=case(5))
    refresh(project, ucm)
    walk(project)
    first = builds(project)
    write(project.root, "tests/test_other.py", "")
    walk(project)
    assert builds(project) == first
    for count, name in enumerate(("conftest.py", "kit.py", "test_named.py"), 1):
        write(project.root, f"tests/{name}", "MORE = 1\n")
        walk(project)
        assert builds(project) == first + 2 * count


def test_every_module_of_the_connector_imports(project: Project, ucm: Path):
    """At each point; a script is run by nobody, and what breaks is named."""
    folder = "ucm/integration/sglang"
    write(ucm, f"{folder}/tool/__init__.py", LICENCE)
    write(ucm, f"{folder}/tool/__main__.py", LICENCE + "raise SystemExit(1)\n")
    entry(ucm, 5, "UCPosix5Test", case=case(5))
    write(
        ucm, f"{folder}/early.py", LICENCE + "from ucm.integration.sglang import late\n"
    )
    entry(ucm, 15, "UCPosix15Test", case=case(15))
    write(ucm, f"{folder}/late.py", LICENCE)
    entry(ucm, 25, "UCPosix25Test", case=case(25))
    refresh(project, ucm)
    rows = walk(project, code=1)
    assert [row[3:] for row in rows] == [
        ["passes: 1; 2 modules import", "ok"],
        ["ucm.integration.sglang.early does not import", "NOT GOOD at its point"],
        ["passes: 3; 4 modules import", "ok"],
    ]


def test_pytest_that_cannot_be_imported_is_no_proof(project: Project, ucm: Path):
    write(project.root, "tests/test_line.py", "import not_there_yet\n" + PYTEST)
    entry(ucm, 5, "tests/test_line.py", case=case(5))
    refresh(project, ucm)
    rows = walk(project, code=1)
    assert rows[0][1] == "cannot be imported" and rows[0][-1] != "ok"
