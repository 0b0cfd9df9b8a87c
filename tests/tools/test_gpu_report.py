"""The judge of the GPU runs, on recorded results: it accepts them, and no altered ones."""

import copy
import gzip
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "data" / "gpu"
sys.path.insert(0, str(ROOT / "ci" / "gpu"))

import blocks  # noqa: E402
import report  # noqa: E402

SWA = report.read(DATA / "models-0.5.16.jsonl.gz")[1]["swa"]
V4 = report.read(DATA / "models-0.5.16.jsonl.gz")[1]["dsv4"]


def failed(rows):
    return [c.what for c in report.judge(report.Steps(rows)) if not c.ok]


def altered(rows, step, **fields):
    rows = copy.deepcopy(rows)
    row = next(row for row in rows if row["step"] == step)
    for name, value in fields.items():
        row[name] = value(row[name]) if callable(value) else value
    return rows


def nudged(logprobs):
    return [logprobs[0] + 1e-6, *logprobs[1:]]


def without(pool):
    return lambda moved: {k: v for k, v in moved.items() if f" {pool} " not in k}


def test_the_page_in_docs_is_what_the_recorded_results_give():
    page = report.whole(sorted(DATA.glob("*.jsonl.gz")))
    assert (ROOT / "docs" / "gpu-tables.md").read_text() == page, "make gpu-tables"


def test_the_recorded_results_hold():
    assert failed(SWA) == []


@pytest.mark.parametrize(
    ("step", "fields", "what"),
    [
        ("storage 1", {"logprobs": nudged}, "storage hit = device hit"),
        ("storage 0", {"moved": without("swa")}, "storage hit"),
        ("storage 2", {"details": {"device": 5888}}, "storage hit"),
        ("restart 0", {"ids": lambda ids: ids[::-1]}, "restart: storage = device"),
        ("long storage 1", {"logprobs": nudged}, "long: storage = device"),
        ("delete swa", {"cached": 64}, "delete swa: recomputed"),
        ("truncate kv", {"logprobs": nudged}, "truncate kv: recomputed"),
        ("cold 0", {"cached": 64}, "cold run"),
        ("spoilt swa", {"spoilt": False}, "late delete swa: recomputed"),
    ],
)
def test_one_wrong_step_is_seen(step, fields, what):
    found = failed(altered(SWA, step, **fields))
    assert [name for name in found if name.startswith(what)], found


def test_a_bad_page_that_changes_nothing_fails_the_control():
    good = next(row for row in SWA if row["step"] == "device 0")
    same = {name: good[name] for name in ("ids", "logprobs", "first")}
    assert failed(altered(SWA, "zero swa", **same)) == ["zeroed swa is seen"]


def test_noise_allows_what_repeats_do_and_no_more():
    """Twice the repeats' own spread is the limit: 0.04 here."""
    assert failed(V4) == [
        "zeroed deepseek_v4_c4_state is seen",
        "zeroed deepseek_v4_c4_indexer_state is seen",
    ]
    shifted = altered(
        V4, "storage 0", first=lambda first: {k: v + 0.06 for k, v in first.items()}
    )
    assert "storage hit = device hit" in failed(shifted)


def test_results_are_read_plain_and_gzipped(tmp_path):
    rows = [{"machine": {"gpu": "x"}}, *SWA]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    plain, packed = (report.read(path) for path in sorted(tmp_path.iterdir()))
    assert plain == packed and plain[1]["swa"] == SWA


@pytest.fixture
def store(tmp_path):
    """A folder as the stores make it: KV at the top, one sidecar pool, other files."""
    names = [f"{i:032x}" for i in range(3)]
    for folder in (tmp_path / "abc", tmp_path / "sglang_v2" / "swa_8x2" / "ab"):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(b"\1" * 16)
    (tmp_path / "abc" / ".layout").write_text("{}")
    return tmp_path


def test_blocks_are_told_apart_by_pool(store):
    assert blocks.counts(store) == {"kv": 3, "swa": 3}
    assert blocks.namespaces(store) == [
        {"folder": "swa_8x2", "blocks": 3, "as_named": True}
    ]
    blocks.truncate(blocks.listing(store)["swa"])
    assert not blocks.namespaces(store)[0]["as_named"]


@pytest.mark.parametrize("spoil", blocks.SPOIL)
def test_spoilt_blocks_are_put_back(store, tmp_path_factory, spoil):
    copied = tmp_path_factory.mktemp("copy") / "store"
    blocks.save(store, copied)
    before = {p: p.read_bytes() for p in blocks.listing(store)["swa"]}
    blocks.SPOIL[spoil](list(before))
    assert all(not p.exists() or p.read_bytes() != b for p, b in before.items())
    (store / "abc" / f"{9:032x}").write_bytes(b"new")
    blocks.put_back(store, copied)
    assert {p: p.read_bytes() for p in before} == before
    assert blocks.counts(store) == {"kv": 3, "swa": 3}
