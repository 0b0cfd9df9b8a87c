"""What is broken on purpose is found, with the key or the seed in the message."""

import errno
import itertools
import multiprocessing
import os
import re
import threading
import time

import concurrency
import crash
import hicache_kit as kit
import long_run
import metadata
import oracle
import pytest
import run
import trials
from deployments import Wrong, blocks, keys_of
from fuse_disk import Disk, pair
from hicache_kit import FaultStore
from hosts import Process

from ucm.integration.sglang import clearing, store_factory
from ucm.integration.sglang.staging import StagingPages

KEYS = keys_of(crash.N_KEY, "s")


TOLD = crash.Told(KEYS)


def stored(root, told=TOLD):
    """A crash round that nobody killed; a block."""
    crash.write(root, 64, KEYS, 1, "s", told)
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
        crash.audit(tmp_path, 64, KEYS, "s", TOLD)


def test_acknowledged_and_lost(tmp_path):
    os.unlink(stored(tmp_path))
    with pytest.raises(Wrong, match="seed s: swa .*: acknowledged, and lost"):
        crash.audit(tmp_path, 64, KEYS, "s", TOLD)


def test_writer_is_refused(tmp_path, monkeypatch):
    """A False that nothing explains, in a writer that is killed later."""
    break_store(monkeypatch, "wait_blocks", lambda found: [False] * len(found))
    with pytest.raises(Wrong, match="writer [0-3]: Wrong: seed 1.0: .* not stored"):
        crash.one_round(tmp_path, 64, "1.0")


@pytest.mark.parametrize("told, storing", [(37, 4), (77, 0)])
def test_killed_too_early(tmp_path, monkeypatch, told, storing):
    figures = {"told": told, "storing": storing}
    monkeypatch.setattr(crash, "one_round", lambda root, *_: root.mkdir() or figures)
    with pytest.raises(Wrong, match="74 pages acknowledged|: 0 writers were"):
        crash.run(2, 1, tmp_path)


def test_present_but_not_loaded(tmp_path, monkeypatch):
    os.unlink(stored(tmp_path))
    break_store(monkeypatch, "lookup", lambda found: [True] * len(found))
    with pytest.raises(Wrong, match="seed s: swa .*: said .*, gave"):
        crash.audit(tmp_path, 64, KEYS, "s", TOLD)


def test_leftover(tmp_path, monkeypatch):
    stored(tmp_path)
    monkeypatch.setattr(crash, "until", lambda condition, limit: condition())
    (tmp_path / "a" / "left.tmp").write_bytes(b"x")
    with pytest.raises(Wrong, match="start-up cleaning left .*left.tmp"):
        crash.audit(tmp_path, 64, KEYS, "s", TOLD)


@pytest.mark.parametrize("call", ["lookup", "wait_blocks"])
def test_oracle(tmp_path, monkeypatch, call):
    """A store that says yes to everything: found, and told with the calls that led there."""
    break_store(monkeypatch, call, lambda found: [True] * len(found))
    monkeypatch.setattr(oracle, "SHRINK_S", 5)
    monkeypatch.setattr(oracle, "FORMS", [("psync", False)])
    with pytest.raises(Wrong, match=r"seed 1, batch 0: .*the oracle says") as error:
        oracle.run(2000, 1, tmp_path)
    assert re.search("psync, small pages, .*; the calls were\n", str(error.value))


@pytest.mark.parametrize("what", ["refuses", "obeys", "keeps"])
def test_oracle_clear(tmp_path, monkeypatch, what):
    """clear() that never works, that works among another model's pages, that removes nothing."""
    if what == "keeps":
        monkeypatch.setattr(clearing, "_clear", lambda folder, before: "")
    else:
        reason = "" if what == "obeys" else "no"
        monkeypatch.setattr(clearing, "refusal", lambda folder, model: reason)
    monkeypatch.setattr(oracle, "SHRINK_S", 5)
    monkeypatch.setattr(oracle, "TURNS", [*oracle.TURNS, *[oracle.clear] * 10])
    found = {"refuses": "clear: found False", "obeys": "clear: found True"}
    with pytest.raises(Wrong, match=found.get(what, "") + ".*the oracle says"):
        oracle.run(2000, 1, tmp_path)


def test_oracle_without_clear(tmp_path, monkeypatch):
    for name, value in (("OPERATIONS", 4), ("WORLDS", 2), ("TURNS", [oracle.exists])):
        monkeypatch.setattr(oracle, name, value)
    with pytest.raises(Wrong, match="clear.. removed no page"):
        oracle.run(20, 1, tmp_path)


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


def test_clear_that_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(kit.UnifiedCacheStore, "clear", lambda self: False)
    with pytest.raises(Wrong, match="clear.. never worked"):
        concurrency.run(2, 1, tmp_path, processes=2, threads=2, keys=20)


GROWTHS = {
    "threads": lambda: threading.Thread(
        target=time.sleep, args=[60], daemon=True
    ).start(),
    "memory": lambda kept=[]: kept.append(b"x" * (1 << 20)),
    "hang": lambda: time.sleep(60),
}


@pytest.mark.parametrize("what", GROWTHS)
def test_concurrency_growth(tmp_path, monkeypatch, what):
    """Threads and memory that stay; a call that does not return. Now and then in one process."""
    waits, begin = itertools.count(), time.monotonic()

    def spoil(found):
        warm = time.monotonic() > begin + 4
        if warm and next(waits) % 10 == 0:
            GROWTHS[what]()
        return found

    for name, value in (("HUNG_S", 1), ("SETTLE_S", 1), ("GROWTH", 4 << 20)):
        monkeypatch.setattr(concurrency, name, value)
    break_store(monkeypatch, "wait_blocks", spoil)
    words = {"threads": "threads [0-9]+ -> ", "memory": "[0-9]+ bytes", "hang": "hangs"}
    with pytest.raises(AssertionError, match=words[what]):
        concurrency.run(9, 1, tmp_path, processes=2, threads=2, keys=20)


def test_first_error_is_told():
    """What a wrong byte in one process does to the others is not the news."""

    def server(number):
        if number == 2:
            raise Wrong("a byte")
        barrier.wait()

    barrier = multiprocessing.Barrier(3, timeout=30)
    with pytest.raises(Wrong, match="^a byte$"):
        servers = [Process(lambda n=n: server(n)) for n in range(3)]
        concurrency.results(servers, 20)


def test_long_run(tmp_path, monkeypatch):
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


def test_metadata_takes_what_it_may_not(tmp_path, monkeypatch):
    layout = store_factory.probe(kit.mha(), "swa")
    monkeypatch.setattr(store_factory, "probe", lambda *args, **more: layout)
    with pytest.raises(Wrong, match=r"seed 1\.\d+: .*: taken"):
        metadata.run(50, 1, tmp_path)


@pytest.mark.parametrize("what", ["stored", "beside"])
def test_metadata_leaves_things_alone(tmp_path, monkeypatch, what):
    """A page that was refused and is there; a load that writes to another page."""
    backend, pools = kit.UnifiedCacheStore, []
    make, get, put = kit.mha, backend.batch_get_v2, backend.batch_set_v2

    def refusing(self, moved):
        put(self, moved)
        return {t.name: [t.keys[0] in kit.keys(4)] * len(t.keys) for t in moved}

    def spilling(self, moved):
        kit.poison(pools[-1], [5])
        return get(self, moved)

    if what == "stored":
        monkeypatch.setattr(backend, "batch_set_v2", refusing)
    else:
        monkeypatch.setattr(kit, "mha", lambda: pools.append(make()) or pools[-1])
        monkeypatch.setattr(backend, "batch_get_v2", spilling)
    words = {"stored": "4 blocks became", "beside": "a page beside changed"}
    with pytest.raises(Wrong, match=words[what]):
        metadata.run(200, 1, tmp_path)


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


def test_skipped_fault(tmp_path, monkeypatch):
    names = ["one", "two, of another kind"]
    skipped = dict.fromkeys(names, lambda folder: pytest.skip("no disk"))
    monkeypatch.setattr(trials, "CASES", skipped)
    with pytest.raises(Wrong, match="one: skipped: no disk") as refused:
        trials.run(1, tmp_path)
    (named,) = re.findall("SKIP='(.*)' lets", str(refused.value))
    may_skip = run.parse(["--skip", named]).skip
    assert may_skip == names
    found = trials.run(1, tmp_path, may_skip)
    assert found == dict.fromkeys(names, "skipped: no disk")


def test_fault_that_hit_nothing(tmp_path):
    _, disk = pair(tmp_path)
    with pytest.raises(Wrong, match="hit no call"), disk.on("read", error=errno.EIO):
        pass


def test_remote_file_system(tmp_path):
    """What is written reaches another mount with close, which gives the error if there is one."""
    backing, disk = pair(tmp_path, remote=True)
    (tmp_path / "other").mkdir()
    twin = Disk(backing, tmp_path / "other", remote=True)
    with open(disk.mount / "a", "xb", buffering=0) as file:
        file.write(b"page")
        assert (twin.mount / "a").read_bytes() == b""
    assert (twin.mount / "a").read_bytes() == b"page"
    with disk.on("close", "b", error=errno.EDQUOT):
        file = os.open(disk.mount / "b", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(file, b"page")
        with pytest.raises(OSError, match="quota"):
            os.close(file)
    assert (twin.mount / "b").read_bytes() == b""


@pytest.mark.parametrize("op", ["get", "set"])
def test_staging_used_twice(tmp_path, monkeypatch, op):
    """A staging page that a hung call still uses goes to the next one."""
    take = StagingPages._take

    def keep(self, count):
        pages = take(self, count)
        self._free += pages
        return pages

    def release(self, pages, has_ended):
        self.release(pages)

    if op == "get":
        monkeypatch.setattr(StagingPages, "_take", keep)
    else:
        monkeypatch.setattr(StagingPages, "retire", release)
    with pytest.raises(Wrong, match="wrong bytes|not 1;"):
        trials.hung_staging(tmp_path, op)
