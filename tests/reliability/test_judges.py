"""What is broken on purpose is found, with the key or the seed in the message."""

import errno
import itertools
import multiprocessing
import os
import re
import sys
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
import suites
import trials
from deployments import Wrong, blocks, keys_of
from fuse_disk import Disk, pair
from hicache_kit import FaultStore
from hosts import Process

from ucm.integration.sglang import clearing, flat_pages, store_factory
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


@pytest.mark.parametrize("what", ["attaching", "found"])
def test_moment_that_never_came(tmp_path, monkeypatch, what):
    """No writer was killed while it attached; no kill left a temporary."""
    figures = {"told": 39, "storing": 1, "attaching": 1, "found": 1} | {what: 0}
    monkeypatch.setattr(crash, "one_round", lambda root, *_: root.mkdir() or figures)
    with pytest.raises(Wrong, match=f"seed 1: {crash.MOMENTS[what]} in 20 rounds"):
        crash.run(20, 1, tmp_path)


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
        concurrency.run(3, 1, tmp_path, processes=2, threads=2, keys=20)


def test_lookup_that_never_forgets(tmp_path, monkeypatch):
    """A page that was removed stays present for who saw it.

    Where that is primary KV, a true answer for the prefix makes its sidecars seem lost first.
    """
    seen, real = set(), FaultStore.lookup

    def lookup(self, ids):
        there = real(self, ids)
        seen.update(i for i, found in zip(ids, there, strict=True) if found)
        return [i in seen for i in ids]

    monkeypatch.setattr(FaultStore, "lookup", lookup)
    with pytest.raises(Wrong, match="present, and not loaded|acknowledged, and lost"):
        concurrency.run(3, 1, tmp_path, processes=2, threads=2, keys=20)


@pytest.mark.parametrize("phase", ["warm-up", *concurrency.SETTLED.values()])
def test_lookup_that_forgets(tmp_path, monkeypatch, phase):
    """What a process stored is a miss in one of the phases without a removal."""
    real, now = concurrency.Worker.run, []

    def run_phase(self, name, seconds):
        now[:] = [name]
        real(self, name, seconds)

    monkeypatch.setattr(concurrency.Worker, "run", run_phase)
    break_store(monkeypatch, "lookup", lambda r: [f and now != [phase] for f in r])
    with pytest.raises(Wrong, match="acknowledged, and lost"):
        concurrency.run(3, 1, tmp_path, processes=2, threads=2, keys=20)


@pytest.mark.parametrize("says", [False, True])
def test_clear_that_does_nothing(tmp_path, monkeypatch, says):
    """And says so, or not."""
    monkeypatch.setattr(kit.UnifiedCacheStore, "clear", lambda self: says)
    words = {False: "failed in phase cleared", True: "removed nothing: cleared"}
    with pytest.raises(Wrong, match=f"clear.. {words[says]}"):
        concurrency.run(3, 1, tmp_path, processes=2, threads=2, keys=20)


@pytest.mark.parametrize("gone", [concurrency.BOTH, concurrency.SETTLED["pruned"]])
def test_phase_without_loads(tmp_path, monkeypatch, gone):
    """Nothing is ever there in one phase: no wrong byte, and no proof."""
    real = concurrency.Worker._read

    def read(self, keys, pages, phase):
        keys = self.plan.strangers[: len(keys)] if phase == gone else keys
        real(self, keys, pages, phase)

    monkeypatch.setattr(concurrency.Worker, "_read", read)
    with pytest.raises(Wrong, match=f"moved nothing in phase {re.escape(gone)}"):
        concurrency.run(3, 1, tmp_path, processes=2, threads=2, keys=20)


@pytest.mark.parametrize("what", ["cleared beside prune", concurrency.BOTH])
def test_clear_and_prune_side_by_side(what):
    """One of them did nothing while the other worked."""
    removed = {"unlinked": 1, "pruned": 1, concurrency.BOTH: 1}
    worker = {"cleared": 2, "cleared beside prune": 1}
    for counts in (removed, worker):
        counts.update({what: 0} if what in counts else {})
    with pytest.raises(Wrong, match=f"(no blocks were|removed nothing:) {what}"):
        concurrency.judge([worker, worker], removed)


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
    monkeypatch.setattr(metadata, "KINDS", metadata.KINDS[:1])
    monkeypatch.setattr(store_factory, "probe", lambda *args, **more: layout)
    with pytest.raises(Wrong, match=r"seed 1\.\d+: .*: taken"):
        metadata.run(50, 1, tmp_path)


@pytest.mark.parametrize("what", ["stored", "beside"])
@pytest.mark.parametrize("kind", ["swa", "kv"])
def test_metadata_leaves_things_alone(tmp_path, monkeypatch, kind, what):
    """A page that was refused and is there; a load that writes to another page."""
    real, old = metadata.Kind.move, kit.keys(metadata.PAGES, "old")

    def move(self, store, op, pool, keys, slots):
        found = real(self, store, op, pool, keys, slots)
        if what == "beside" and op == "get":
            kit.poison(pool, [5])
        return [False] * len(keys) if keys != old and what == "stored" else found

    monkeypatch.setattr(metadata.Kind, "move", move)
    monkeypatch.setattr(
        metadata, "KINDS", [k for k in metadata.KINDS if k.name == kind]
    )
    words = {"stored": "4 blocks became", "beside": "a page beside changed"}
    with pytest.raises(Wrong, match=f": {kind}, .*{words[what]}"):
        metadata.run(200, 1, tmp_path)


@pytest.mark.parametrize("what", ["taken", "unnamed"])
def test_metadata_ids(tmp_path, monkeypatch, what):
    """An ID of a wrong length that a lookup takes, or refuses without its length."""

    def lookup(self, ids):
        if what == "unnamed":
            raise ValueError("no")
        return [True] * len(ids)

    monkeypatch.setattr(FaultStore, "lookup", lookup)
    found = {"taken": "lookup took b''", "unnamed": "lookup: does not tell '"}
    with pytest.raises(Wrong, match=found[what]):
        metadata.run(100, 1, tmp_path)


def test_metadata_flat_page(tmp_path, monkeypatch):
    """A flat page of another length that is stored as far as it goes."""

    def copy_in(self, staged, first):
        page = self._pool.get_data_page(first, flat=True).reshape(-1)
        staged[: page.numel()] = page[: staged.numel()]

    monkeypatch.setattr(flat_pages.FlatPages, "copy_in", copy_in)
    with pytest.raises(Wrong, match="mamba, (a|no) numbers?.*: .*loaded afterwards"):
        metadata.run(400, 1, tmp_path)


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


@pytest.mark.parametrize("call", ["lookup", "wait_blocks"])
def test_errors_around_a_transfer(tmp_path, monkeypatch, call):
    """A store that takes EIO for a hit, or for a page that was moved."""
    break_store(monkeypatch, call, lambda found: [True] * len(found))
    with pytest.raises(Wrong, match="not {|wrong bytes"):
        trials.io_errors_around(tmp_path)


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


def test_pages_beside_a_hung_one_are_lost(tmp_path, monkeypatch):
    """A load of which one page hangs answers that no pool has any."""
    real, calls = kit.UnifiedCacheStore.batch_get_v2, itertools.count()

    def get(self, moved):
        found, first = real(self, moved), next(calls) == 0
        return {n: [ok and not first for ok in done] for n, done in found.items()}

    monkeypatch.setattr(kit.UnifiedCacheStore, "batch_get_v2", get)
    with pytest.raises(Wrong, match="found {'swa': .False, .*, not {'swa': .True, "):
        trials.hung_read(tmp_path)


@pytest.mark.parametrize("op", ["get", "set"])
def test_late_call_that_raises(tmp_path, monkeypatch, op):
    """Into SGLang, on the mount that hangs, or on the slow one."""
    name = f"batch_{op}_v2"
    real = getattr(kit.UnifiedCacheStore, name)

    def call(self, moved):
        begin, found = time.monotonic(), real(self, moved)
        if time.monotonic() > begin + 2:
            raise RuntimeError("late")
        return found

    monkeypatch.setattr(kit.UnifiedCacheStore, name, call)
    trial = {"get": trials.no_starving, "set": trials.slow_beside_good}[op]
    with pytest.raises(Wrong, match="found .RuntimeError..late"):
        trial(tmp_path)


def test_slow_traffic_that_ends(tmp_path, monkeypatch):
    """After its first round."""
    real = trials._store_on

    def store(trial, writer, over):
        over = threading.Event()
        threading.Timer(0.5, over.set).start()
        return real(trial, writer, over)

    monkeypatch.setattr(trials, "_store_on", store)
    with pytest.raises(Wrong, match="the slow mount was idle: .1, 1. rounds"):
        trials.slow_beside_good(tmp_path)


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


# ---- suites ----


def suite(folder, text):
    """A pytest suite of one file, run and counted."""
    (folder / "test_it.py").write_text(f"import pytest\n{text}\n")
    words = [sys.executable, "-m", "pytest", "-q", folder / "test_it.py"]
    return suites.call(words, folder / "results")[0]


def test_suite_that_fails(tmp_path):
    with pytest.raises(Wrong, match="failed: 1\n.*test_it.py test_two"):
        suite(tmp_path, "def test_one(): pass\ndef test_two(): assert 0")


def test_suite_that_skips(tmp_path):
    found = suite(tmp_path, "def test_one(): pytest.skip('no disk')")
    assert suites.no_skips(found, "no disk") == 1
    with pytest.raises(Wrong, match="test_one was skipped: no disk"):
        suites.no_skips(found, "under a sanitizer")


def test_security_test_that_is_gone(tmp_path, monkeypatch):
    gone = "tests/hicache/test_keys.py::test_gone"
    monkeypatch.setattr(suites, "PROMISES", {"names": [gone]})
    monkeypatch.setattr(suites, "GTEST", ["true"])
    with pytest.raises(Wrong, match="test_gone"):
        suites.security(1, tmp_path)
    monkeypatch.setattr(suites, "PROMISES", {"names": ["UCGoneTest"]})
    with pytest.raises(Wrong, match="did not run: UCGoneTest"):
        suites.security(1, tmp_path / "again")


REPORTS = ["==7==ERROR: AddressSanitizer: x", "WARNING: ThreadSanitizer: data race"]
REPORTS += ["a/b.cc:3:4: runtime error: signed integer overflow"]


@pytest.mark.parametrize("report", REPORTS)
def test_sanitizer_report(tmp_path, report):
    """Even where it ended nothing."""
    with pytest.raises(Wrong, match="ended with 0"):
        suites.call(["echo", report], tmp_path)


def test_last_try_counts(tmp_path):
    """Of a gtest that ci/gtest.sh tries again."""
    case = '<t><testcase classname="A" name="b" file="c.cc">{}</testcase></t>'
    for number, what in enumerate(["<failure message='late'/>", ""]):
        path = tmp_path / f"{number}.xml"
        path.write_text(case.format(what))
        os.utime(path, (number, number))
        (found,) = suites.results(tmp_path)
        assert found.outcome == ("passed" if number else "failed")


def test_a_list_of_tests_is_no_result(tmp_path):
    """What cmake's gtest_discover_tests leaves there when `make gtest` links."""
    listed = '<t><testcase name="b" file="c.cc" line="1" />{}</t>'
    (tmp_path / "listed.xml").write_text(listed.format(""))
    assert not suites.results(tmp_path)
    ran = '<testcase classname="A" name="b" status="run" file="c.cc" />'
    (tmp_path / "ran.xml").write_text(listed.format(ran))
    assert [test.suite for test in suites.results(tmp_path)] == ["A"]


def test_changed_expectation_without_a_word(tmp_path):
    (patch,) = suites.PATCHES.glob("0020-*")
    text = patch.read_text()
    (tmp_path / patch.name).write_text(text)
    found = suites.changed_expectations(tmp_path)
    assert list(found.values()) == [1, "posix_space_manager_test.cc (0020)"]
    text = text.replace("UCPosixSpaceManagerTest", "A test", 1)
    (tmp_path / patch.name).write_text(text)
    with pytest.raises(Wrong, match="posix_space_manager_test.cc, and does not say so"):
        suites.changed_expectations(tmp_path)
