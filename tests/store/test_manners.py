"""How a store behaves in somebody else's process."""

import os
import signal
import statistics
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hosts import Process, peer
from kit import (
    Background,
    Pages,
    StoreSpec,
    dump,
    error_of,
    found,
    keys,
    load,
    load_statuses,
    seconds,
    start_dump,
    start_load,
    stored,
    until,
)

# ---- signals, files, threads ----


def quick(spec: StoreSpec) -> StoreSpec:
    return replace(spec, options={"data_dir_shard_bytes": 1})


def test_no_signal_handlers(site, tree, plain):
    """The handlers of the process are the same before `import ucm` and after a store is used."""
    run = peer(tree, "signals", "k", [quick(plain)], site.root)
    assert "changed:\n" in run.stdout, run.stdout + run.stderr


def test_a_crash_ends_the_process(site, tree, plain, no_sanitizer):
    """A segmentation fault elsewhere in the process kills it as if there were no store."""
    run = peer(tree, "crash", "k", [quick(plain)], site.root, timeout=10)
    assert run.returncode == -signal.SIGSEGV, run.stderr


def test_ctrl_c_reaches_python(site, spec, no_sanitizer):
    """SIGINT raises KeyboardInterrupt."""
    stored(site.open(spec), spec, 1)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def test_no_files_in_the_working_folder(site, tree, plain):
    """With logging off nothing is made outside the store's own folders."""
    work = site.folder("work")
    quiet = {"UC_LOGGER_LEVEL": "off"}
    run = peer(tree, "write", "k", [quick(plain)], site.root, cwd=work, env=quiet)
    assert list(work.iterdir()) == [], run.stderr


# ---- the interpreter's lock ----


class Ticks:
    """A Python thread that wants to run every 5 ms; the longest time it could not."""

    def __enter__(self):
        self.on, self.longest = True, 0.0
        sys.setswitchinterval(0.001)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def _run(self) -> None:
        last = time.monotonic()
        while self.on:
            time.sleep(0.005)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now

    def __exit__(self, *_) -> None:
        self.on = False
        self.thread.join()


SLOW = 0.6


@pytest.mark.parametrize("call", ["lookup", "lookup_on_prefix"])
def test_lookup_lets_other_threads_run(site, plain, faults, call):
    """A slow lookup does not hold the interpreter's lock."""
    store = site.open(plain)
    ids, _ = stored(store, plain, 8)
    faults.add("stat", site.root, delay_ms=int(SLOW * 1000))
    with Ticks() as ticks:
        assert (
            seconds(lambda: getattr(store, call)(ids)) >= SLOW
        ), "the fault was not met"
    assert ticks.longest < SLOW / 2


@pytest.mark.parametrize("operation", ["dump", "load"])
def test_transfers_let_other_threads_run(site, spec, faults, operation):
    """Neither submitting nor waiting holds the interpreter's lock."""
    store = site.open(spec)
    ids, pages = stored(store, spec, 4)
    for block in ids:
        if operation == "dump":
            site.path(block).unlink()
    call = dump if operation == "dump" else load
    op = "write" if operation == "dump" else "read"
    for slow in ("open", op):
        faults.add(slow, site.root, delay_ms=int(SLOW * 1000))
    with Ticks() as ticks:
        assert seconds(lambda: call(store, ids, pages)) >= SLOW
    assert ticks.longest < SLOW / 2


@pytest.mark.limit(20)
def test_destruction_lets_other_threads_run(site, spec, faults):
    """Destroying a busy store waits for its I/O without holding the interpreter's lock."""
    store = site.open(spec, keep=False)
    slow = faults.add("write", site.root, hold=True)
    pages = Pages(spec, 4)
    task = start_dump(store, keys(4), pages)
    assert until(lambda: faults.active() > 0)
    release = Background(lambda: (time.sleep(SLOW), slow.drop()))
    with Ticks() as ticks:
        del store, task
    assert release.finished(5) and ticks.longest < SLOW / 2


# ---- the end of a store ----


@pytest.mark.limit(40)
def test_idle_store_is_destroyed_at_once(site, spec):
    """Under 50 ms; the limit here leaves room for a busy machine."""

    def once() -> float:
        store = site.open(spec, keep=False)
        stored(store, spec, 2)
        start = time.monotonic()
        del store
        return time.monotonic() - start

    times = [once() for _ in range(5)]
    print(f"destroyed in {statistics.median(times) * 1000:.1f} ms (median of 5)")
    assert statistics.median(times) < 0.25


def test_destruction_keeps_accepted_dumps(site, spec, faults):
    """Dumps that were accepted and not waited for are stored, whole, when the store is gone."""
    n, spec = 20, replace(spec, workers=1)
    store = site.open(spec, keep=False)
    faults.add("write", site.root, delay_ms=100)
    ids, pages = keys(n), Pages(spec, n, 1)
    for i, block in enumerate(ids):
        store.dump_data([block], [0], pages.pointers()[i : i + 1])
    del store
    assert site.blocks() == {block.hex() for block in ids} and not site.temporaries()
    assert [site.path(block).read_bytes() for block in ids] == [
        pages.block(i) for i in range(n)
    ]


# ---- fork ----


def refuses_in_the_child(store, ids, spec) -> list[str]:
    """Names of the calls that do not raise RuntimeError."""
    calls = {
        "lookup": lambda: store.lookup(ids),
        "prefix": lambda: store.lookup_on_prefix(ids),
        "load": lambda: load(store, ids, Pages(spec, 2)),
        "dump": lambda: dump(store, ids, Pages(spec, 2)),
    }
    wrong = []
    for name, call in calls.items():
        try:
            call()
            wrong.append(name)
        except RuntimeError:
            pass
    return wrong


def test_fork_gives_an_error_not_a_hang(site, spec):
    """In a child every call of an inherited store raises, and the parent's store goes on."""
    store = site.open(spec)
    ids, _ = stored(store, spec, 2)
    child = Process(lambda: refuses_in_the_child(store, ids, spec))
    assert child.outcome(5) == ([], None)
    assert load_statuses(store, ids, Pages(spec, 2)) == [True, True]


def test_forked_child_can_open_its_own_store(site, spec):
    """And the child may drop the inherited one, and exit."""
    stores = [site.open(spec, keep=False)]
    ids, _ = stored(stores[0], spec, 2)

    def run():
        stores.clear()
        own = site.open(spec)
        stored(own, spec, 2, "child")
        return found(own, ids + keys(2, "child"))

    assert Process(run).outcome(8) == ([True] * 4, None)
    assert found(stores[0], ids + keys(2, "child")) == [True] * 4


def test_fork_during_a_load(site, spec, faults, no_sanitizer):
    """A fork while pages are being filled disturbs neither process."""
    store = site.open(spec)
    ids, pages = stored(store, spec, 4)
    faults.add("read", site.root, delay_ms=200)
    copy = Pages(spec, 4)
    task = start_load(store, ids, copy)
    child = Process(lambda: refuses_in_the_child(store, ids[:2], spec))
    assert child.outcome(5) == ([], None)
    store.wait(task)
    assert np.array_equal(copy.data, pages.data)


# ---- stores that only answer lookups, and idle ones ----


@pytest.mark.limit(10)
def test_lookup_only_store_answers_errors(site, plain):
    """A store made for lookups refuses transfers and their tasks by error."""
    maker = site.open(plain)
    ids, pages = stored(maker, plain, 2)
    task = start_dump(maker, ids, pages)
    store = site.open(replace(plain, options=site.adapter.lookup_only()))
    assert found(store, [*ids, *keys(1, "no")]) == [True, True, False]
    arguments = ids, [0, 0], pages.pointers()
    for call in (store.load_data, store.dump_data):
        error_of(lambda call=call: call(*arguments), RuntimeError, ValueError)
    for call in (store.wait, store.check, store.wait_blocks):
        error_of(lambda call=call: call(task))


def context_switches() -> int:
    total = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as lines:
            total += sum(int(x.split()[1]) for x in lines if x.startswith("voluntary"))
    return total


@pytest.mark.parametrize("kind", ["psync", "aio", "lookup only"])
def test_idle_store_sleeps(site, plain, kind):
    """An idle store wakes up a few times a second at most and uses no processor."""
    if kind == "lookup only":
        spec = replace(plain, options=site.adapter.lookup_only())
    else:
        spec = replace(plain, engine=kind)
    stores = [site.open(spec) for _ in range(4)]
    assert found(stores[0], keys(1)) == [False]
    time.sleep(0.3)
    switches, used = context_switches(), time.process_time()
    time.sleep(1.0)
    switches, used = context_switches() - switches, time.process_time() - used
    print(
        f"{len(stores)} idle stores: {switches} wake-ups a second, {used * 100:.1f} % of a core"
    )
    assert switches < 100 and used < 0.03
