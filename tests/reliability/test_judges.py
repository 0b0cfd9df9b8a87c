"""What is broken on purpose is found, with the key or the seed in the message."""

import os

import concurrency
import crash
import hicache_kit as kit
import long_run
import metadata
import oracle
import pytest
import trials
from deployments import Wrong, blocks, keys_of
from hicache_kit import FaultStore

from ucm.integration.sglang import store_factory

KEYS = keys_of(crash.N_KEY, "s")


def stored(root):
    """A crash round that nobody killed."""
    crash.write(root, 64, KEYS, 1, "s")
    return max(blocks(root), key=lambda path: path.stat().st_size)


def break_store(monkeypatch, call, change):
    real = getattr(FaultStore, call)
    monkeypatch.setattr(FaultStore, call, lambda self, *a: change(real(self, *a)))


def test_torn_page(tmp_path):
    """Two writers' halves in one file of the right size."""
    path = stored(tmp_path)
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\0" * 64)
    with pytest.raises(
        Wrong, match="seed s: pool swa, key [0-9a-f]{64}: .* wrong bytes"
    ):
        crash.audit(tmp_path, 64, KEYS, "s")


def test_present_but_not_loaded(tmp_path, monkeypatch):
    os.unlink(stored(tmp_path))
    break_store(monkeypatch, "lookup", lambda found: [True] * len(found))
    with pytest.raises(Wrong, match="seed s: swa .*: said .*, gave"):
        crash.audit(tmp_path, 64, KEYS, "s")


def test_leftover(tmp_path, monkeypatch):
    stored(tmp_path)
    monkeypatch.setattr(crash, "until", lambda condition, limit: condition())
    (tmp_path / "a" / "left.tmp").write_bytes(b"x")
    with pytest.raises(Wrong, match="start-up cleaning left .*left.tmp"):
        crash.audit(tmp_path, 64, KEYS, "s")


@pytest.mark.parametrize("call", ["lookup", "wait_blocks"])
def test_oracle(tmp_path, monkeypatch, call):
    """A store that says yes to everything."""
    break_store(monkeypatch, call, lambda found: [True] * len(found))
    with pytest.raises(Wrong, match=r"seed 1\.\d+, operation \d+ .*the oracle says"):
        oracle.run(2000, 1, tmp_path)


@pytest.mark.parametrize("what", ["byte", "stranger", "descriptor"])
def test_concurrency(tmp_path, monkeypatch, what):
    """A flipped byte, a key that nobody stored, a descriptor that stays open."""

    def spoil(task_result):
        if what == "byte":
            for path in blocks(tmp_path / "root")[:3]:
                os.truncate(path, path.stat().st_size - 8)
                os.truncate(path, path.stat().st_size + 8)
        if what == "descriptor":
            os.open("/dev/null", os.O_RDONLY)
        return task_result

    break_store(monkeypatch, "wait_blocks", spoil)
    if what == "stranger":
        break_store(monkeypatch, "lookup", lambda found: [True] * len(found))
    words = {"byte": "wrong bytes", "stranger": "never stored|not loaded"}
    with pytest.raises(AssertionError, match=words.get(what, "descriptors [0-9]+ -> ")):
        concurrency.run(2, 1, tmp_path, processes=2, threads=2, keys=20)


def test_long_run(tmp_path, monkeypatch):
    monkeypatch.setattr(kit.Site, "files", lambda self: [])
    break_store(monkeypatch, "wait_blocks", lambda r: os.dup(1) and r)
    with pytest.raises(Wrong, match="cycles: .*descriptors"):
        long_run.run(0, 1, tmp_path)


def test_metadata(tmp_path, monkeypatch):
    """A refusal that does not say which pool."""
    real = store_factory.probe

    def probe(pool, name, flattened=False):
        return real(pool, name, flattened) if name == "c4" else int("no")

    monkeypatch.setattr(store_factory, "probe", probe)
    with pytest.raises(Wrong, match=r"seed 1\.\d+: "):
        metadata.run(50, 1, tmp_path)


def test_trials(tmp_path):
    """A page that fails for no reason, and one that should have failed."""
    trial = trials.Trial(tmp_path)
    with pytest.raises(Wrong, match="not {"):
        trial.must("get", trials.KEYS, swa=[1])
    kit.block_of(trial.live.site, trial.live.store, "swa", trials.KEYS[0]).unlink()
    with pytest.raises(Wrong, match="not {"):
        trial.must("get", trials.KEYS)
    with pytest.raises(Wrong, match="pool swa: logged"):
        trial.told("get", "")
