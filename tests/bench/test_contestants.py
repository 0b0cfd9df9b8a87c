"""A tiny run of everybody, and that wrong bytes and wrong answers stop a run."""

import json
import os

import machine
import pytest
import report
import run
from benches import (
    BARE,
    BASE,
    FILE,
    FILE_ALONE,
    SERIES,
    STORE,
    Case,
    Field,
    Settings,
    measure,
)
from children import Child, ChildFailed, together
from conftest import ROOT, TREE
from kernel import FileOps, Kernel
from workloads import LOOKUPS, MAMBA, MHA, SMALL, V4, Place, Site, keys

BUILD = ROOT / "build" / "bench"
HERE = Place("here")
EVERYBODY = [SERIES, STORE, BASE, FILE, FILE_ALONE, BARE]


@pytest.fixture
def settings(tmp_path):
    base = ROOT / "build" / "base" / "tree"
    if not (base / "ucm").is_dir():
        pytest.skip("the base is not built; `make test` builds it")
    places = {"memory": tmp_path, "disk": tmp_path, "build": BUILD}
    few = {"rounds": 2, "threads": 2, "short": True, "tell": print}
    return Settings(tree=TREE, base=base, **places, **few)


@pytest.fixture
def opened(settings, tmp_path):
    found = Field(settings, Site(str(tmp_path / "site")))
    yield found
    found.close()


@pytest.mark.parametrize("workload", [V4.of(2, 3), MHA.of(3), SMALL.of(4)], ids=str)
def test_everybody_moves_the_same_bytes(settings, opened, workload):
    facts = opened.open(workload, HERE, EVERYBODY)
    for op in ("set", "get"):
        case = Case(op, bytes=workload.bytes)
        measure(settings, opened, case, facts, op, workload.pages)
        assert {name: len(v) for name, v in case.samples.items()} == dict.fromkeys(
            EVERYBODY, settings.rounds
        ), case.absent


def test_mamba_pages_are_one_block(settings, opened):
    facts = opened.open(MAMBA.of(1), HERE, EVERYBODY)
    case = Case("get", bytes=MAMBA.of(1).bytes)
    measure(settings, opened, case, facts, "get", 1)
    assert sorted(case.samples) == sorted([SERIES, FILE, FILE_ALONE, BARE])
    assert sorted(case.absent) == sorted([STORE, BASE])


def test_ranks_start_together_and_keep_apart(settings, tmp_path):
    opened = Field(settings, Site(str(tmp_path / "site")), ranks=2)
    try:
        facts = opened.open(SMALL.of(2), HERE, [SERIES, FILE])
        for op in ("set", "get"):
            measure(settings, opened, Case(op), facts, op, 2)
    finally:
        opened.close()


@pytest.mark.parametrize("name", [SERIES, FILE])
def test_a_flipped_bit_in_what_was_set_is_noticed(settings, opened, name):
    workload = SMALL.of(3)
    opened.open(workload, HERE, [name])
    (child,) = opened.children[name]
    child.call("prepare", name=name, op="set", tag="new", pages=3)
    child.call("go")
    site, key = opened.sites[0], keys("new", 3)[2:]
    find = site.paths if name == SERIES else site.file_paths
    flip(find(workload.pools[0], key)[0])
    with pytest.raises(ChildFailed, match="does not hold page 2") as e:
        child.call("finish")
    assert e.value.wrong


def flip(path):
    """In place: HiCacheFile may have a link to it."""
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        data[100] ^= 1
        file.seek(0)
        file.write(data)


@pytest.mark.parametrize("name", [SERIES, STORE, FILE, BARE])
def test_a_flipped_bit_is_noticed(settings, opened, name):
    workload = SMALL.of(3)
    opened.open(workload, HERE, [name])
    reference = keys("reference", 3)[1]
    (path,) = opened.sites[0].paths(workload.pools[0], [reference])
    flip(path)
    with pytest.raises(ChildFailed, match="page 1 of indexer has other bytes") as e:
        opened.transfer(name, op="get", tag="", pages=3)
    assert e.value.wrong


def test_lookups_answer_and_a_lost_file_is_noticed(settings, tmp_path):
    site = Site(str(tmp_path / "site"))
    with Child("Lookups", TREE) as ours, Child("Lookups", settings.base) as base:
        given = {"site": site, "count": 128, "threads_each": 2, "build": BUILD}
        together([ours, base], "open", [given] * 2)
        ours.call("write")
        ours.call("attach", series=True)
        base.call("attach", series=False)
        for what in ("all present", "none present", "sparse trailing"):
            for name in (SERIES, FILE):
                assert ours.call("whole", contestant=name, case=what) > 0
            for name in (SERIES, BARE):
                assert ours.call("lookup", contestant=name, case=what) > 0
        assert base.call("lookup", contestant=BASE, case="all present") > 0
        assert ours.call("derive", contestant=SERIES, case="all present") > 0
        lost = keys("all present", 128)[5]
        os.unlink(site.paths(LOOKUPS.pools[2], [lost])[0])
        for name in (SERIES, BARE):
            with pytest.raises(ChildFailed, match="wrong answers for draft"):
                ours.call("lookup", contestant=name, case="all present")
        with pytest.raises(ChildFailed, match="5, not 128"):
            ours.call("whole", contestant=SERIES, case="all present")


@pytest.mark.parametrize("tree", [SERIES, BASE])
def test_small_calls(settings, tmp_path, tree):
    where = settings.base if tree == BASE else TREE
    site = Site(str(tmp_path / "site"))
    with Child("SmallCalls", where) as child:
        given = {"stores": 2, "threads_each": 1, "build": BUILD}
        child.call("open", site=site, **given)
        child.call("write")
        for name in (STORE, BARE):
            for what, count in (("lookup", 1), ("lookup", 128), ("get", 1)):
                call = {"what": what, "count": count, "loops": 2}
                assert child.call("call", contestant=name, **call) > 0
        assert child.call("counts")["threads"] > 0


def test_registration_counts_what_it_leaves(settings, tmp_path):
    site = Site(str(tmp_path / "site"))
    with Child("Registration", TREE) as child:
        found = child.call("measure", contestant=SERIES, site=site)
    assert found["threads"] > 0 and found["folders"] > 0
    steps = ("register", "first set", "first get", "destroy")
    assert all(found[step] > 0 for step in steps)


def test_the_kernel_says_which_operations_failed(tmp_path):
    whole, short = tmp_path / "whole", tmp_path / "short"
    whole.write_bytes(b"x" * 100)
    short.write_bytes(b"x" * 99)
    ops = FileOps.of([str(whole), str(short), str(tmp_path / "none")], 100)
    for threads in (0, 2):
        kernel = Kernel(BUILD, threads)
        kernel.run("lookup", ops)
        kernel.close()
        assert ops.done.tolist() == [True, False, False]
        assert "ENODATA" in ops.errors() or "No data" in ops.errors()


def test_the_page_cache_is_seen(settings, opened, tmp_path):
    kind = machine.file_system(tmp_path)
    if kind == "tmpfs":
        pytest.skip(
            "tmpfs has nothing to drop; runs where the temporary folder is a disk"
        )
    opened.open(SMALL.of(2), HERE, [BARE])
    given = {"op": "get", "tag": "", "pages": 2}
    assert opened.transfer(BARE, **given)["cached"] == 1.0
    assert opened.transfer(BARE, **given, cold=True)["cached"] == 0.0


def test_raw_numbers_make_the_same_page_again(settings, opened, tmp_path):
    """From contestants to JSON to tables; the chart only where matplotlib is installed."""
    facts = opened.open(SMALL.of(2), HERE, [SERIES, FILE, BARE])
    case = Case("get, disk, page cache warm", bytes=SMALL.of(2).bytes)
    measure(settings, opened, case, facts, "get", 2)
    comparison = {"id": "v4", "title": "t", "note": "n", "references": [BARE, FILE]}
    result = {
        "machine": machine.describe(tmp_path, tmp_path),
        "rounds": 2,
        "seconds": 0,
    }
    result |= {"threads": 2, "short": True, "comparisons": [comparison]}
    comparison |= {"curve": "", "cases": [vars(case)]}
    again = json.loads(json.dumps(result))
    assert report.text(result, ".") == report.text(again, ".")
    assert "## Targets" in report.text(result, ".")
    if report.SITE.is_dir():
        for name, tail in (("", ""), ("big", "-big")):
            docs = tmp_path / f"docs{tail}"
            docs.mkdir()
            report.publish(again, docs, name)
            figures = docs / f"performance{tail}"
            assert (figures / "v4.png").stat().st_size > 1000
            page = (docs / f"performance-results{tail}.md").read_text()
            assert f"]({figures.name}/v4.png)" in page and str(tmp_path) not in page
            raw = docs / "data" / f"performance{tail}.json"
            assert json.loads(raw.read_text()) == again


@pytest.mark.parametrize(
    ("arguments", "tree", "text"),
    [
        ([], "nowhere", "a tree that is compared is not built"),
        (["--publish", "--short"], "", "only a whole run is published"),
        (["--publish", "--only", "small"], "", "only a whole run is published"),
    ],
)
def test_refusals_come_before_any_work(
    settings, tmp_path, monkeypatch, arguments, tree, text
):
    monkeypatch.setenv("UCM_TREE", str(tmp_path / tree if tree else TREE))
    places = [f"--{name}={tmp_path / name}" for name in ("disk", "out")]
    with pytest.raises(run.Refusal, match=text):
        run.check(run.parse([*arguments, *places]))
    assert not list(tmp_path.iterdir())
