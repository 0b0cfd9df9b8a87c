"""Engines on one folder: each in a mount namespace of its own, where the folder has another path.

The same runs with one path for all, where mounting is not permitted.
"""

import ctypes
import logging
import multiprocessing
import os
import subprocess
import time
import zlib

import hicache_kit as kit
import pytest
import torch
from hicache_kit import PoolName

SWA, MAMBA = PoolName.SWA, PoolName.MAMBA
PAGES = kit.PAGES // 2  # the first half of a pool is stored, the second half read into
ALL = 3 * PAGES
CLONE_NEWNS = 0x20000
FORK = multiprocessing.get_context("fork")


class Pools:
    """One engine: KV, SWA and MAMBA pools; the bytes of a page follow from its tag."""

    def __init__(self, site, folder):
        self.anchor = kit.mha()
        self.sidecars = {SWA: kit.paged("swa", row=64 << 10), MAMBA: kit.mamba()}
        self.store = site.attach(
            self.anchor, self.sidecars, storage_backends=[str(folder)]
        )

    def _filled(self, tag):
        for pool in (self.anchor, *self.sidecars.values()):
            seed = zlib.crc32(f"{tag} {type(pool).__name__}".encode())
            yield pool, kit.fill(pool, range(PAGES), seed)

    def put(self, tag):
        """How many pages were stored."""
        names = kit.keys(PAGES, tag)
        list(self._filled(tag))
        slots = kit.slots(self.anchor, range(PAGES))
        done = self.store.batch_set_v1(names, slots)
        moves = [
            kit.transfer(name, pool, names, range(PAGES))
            for name, pool in self.sidecars.items()
        ]
        return sum(map(sum, [done, *self.store.batch_set_v2(moves).values()]))

    def hit(self, tag):
        transfers = [kit.query(SWA, kit.TRAILING, 2), kit.query(MAMBA, kit.TRAILING, 1)]
        return self.store.batch_exists_v2(kit.keys(PAGES, tag), transfers).kv_hit_pages

    def get(self, tag):
        """How many pages came back; AssertionError for one with other bytes."""
        names, there = kit.keys(PAGES, tag), range(PAGES, 2 * PAGES)
        expected = [data for _, data in self._filled(tag)]
        pools = [self.anchor, *self.sidecars.values()]
        for pool in pools:
            kit.poison(pool, there)
        moves = [kit.transfer(n, p, names, there) for n, p in self.sidecars.items()]
        verdicts = [self.store.batch_get_v1(names, kit.slots(self.anchor, there))]
        verdicts += self.store.batch_get_v2(moves).values()
        for pool, data, came in zip(pools, expected, verdicts, strict=True):
            assert (kit.contents(pool, there) == data)[
                came
            ].all(), f"{tag}: {type(pool).__name__}"
        return sum(map(sum, verdicts))

    def rush(self, rounds):
        """Store and read back as fast as possible."""
        return {(self.put(f"r{i}"), self.get(f"r{i}")) for i in range(rounds)}


class Engine:
    """Pools in a process of their own. mount: options of its view, None for the folder itself."""

    def __init__(self, site, view, mount):
        self._pipe, other = FORK.Pipe()
        arguments = other, site, view, mount
        self.process = FORK.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        other.close()

    def start(self, action, *arguments):
        self._pipe.send((action, arguments))

    def result(self, limit=60):
        assert self._pipe.poll(limit), "no answer in time"
        value, log = self._pipe.recv()
        assert not isinstance(value, BaseException), f"{value!r}\n{log}"
        self.log = log
        return value

    def do(self, action, *arguments):
        self.start(action, *arguments)
        return self.result()

    def kill(self):
        self.process.kill()
        self.process.join()


def _serve(pipe, site, view, mount):
    log, handler = [], logging.Handler()
    handler.emit = lambda record: log.append(record.getMessage())
    logging.getLogger("ucm.integration.sglang").addHandler(handler)
    torch.set_num_threads(1)  # the parent's helpers did not come along
    try:
        if mount is not None:
            _mount(site.backends[0], view, mount)
        pools = Pools(site, site.backends[0] if mount is None else view)
        while True:
            action, arguments = pipe.recv()
            pipe.send((getattr(pools, action)(*arguments), log))
    except EOFError:
        pass
    except BaseException as e:
        pipe.send((e, log))
    finally:
        os._exit(0)


def _mount(folder, view, options):
    """What `unshare --mount` does, then the folder at its other path."""
    assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", folder, view], check=True)
    if options:
        subprocess.run(["mount", "-o", f"remount,bind,{options}", view], check=True)


@pytest.fixture(params=["own mounts", "one path"])
def engine(request, site):
    """engine(mount="") starts one. Its folder is `site.backends[0]`."""
    own = request.param == "own mounts"
    if own and subprocess.run(["unshare", "--mount", "true"]).returncode:
        pytest.skip("needs CAP_SYS_ADMIN; runs as [one path] without")
    started = []

    def start(mount=""):
        view = site.root / f"view{len(started)}"
        view.mkdir()
        started.append(Engine(site, view, mount if own else None))
        return started[-1]

    start.own = own
    yield start
    for one in started:
        one.kill()


@pytest.fixture
def two(engine):
    return engine(), engine()


def unfinished(site):
    return [path for path in site.files() if ".tmp" in path.parts]


def test_one_hits_what_the_other_stored(two, site):
    for writer, reader in (two, two[::-1]):
        tag = f"by{writer.process.pid}"
        assert reader.do("hit", tag) == 0
        assert writer.do("put", tag) == ALL
        assert (reader.do("hit", tag), reader.do("get", tag)) == (PAGES, ALL)
    assert not any(site.root.glob("view*/*")), "the views are the engines' own"


def test_both_store_and_read_the_same_pages_at_once(two, site):
    for one in two:
        one.start("rush", 25)
    for one in two:
        assert one.result() == {(ALL, ALL)}
    assert (len(site.files()), unfinished(site)) == (25 * ALL, [])


def test_one_dies_while_it_stores(engine, site):
    """Its blocks are whole or absent; a start removes its leftovers and nothing of the living."""
    living, dying = engine(), engine()
    living.do("put", "x")
    dying.start("rush", 1_000_000)
    while len(site.files()) < 20 * ALL:
        time.sleep(0.01)
    dying.kill()
    tags = [f"r{i}" for i in range(len(site.files()) // ALL + 1)]
    came = [living.do("get", tag) for tag in tags]
    assert came[:10] == [ALL] * 10
    living.start("rush", 20)
    assert engine().do("hit", "x") == PAGES
    assert living.result() == {(ALL, ALL)}
    until = time.monotonic() + 10
    while unfinished(site) and time.monotonic() < until:
        time.sleep(0.05)
    assert unfinished(site) == []


def test_a_read_only_view_hits_and_stores_nothing(engine, site):
    if not engine.own:
        pytest.skip("needs a mount of its own; runs as [own mounts]")
    writer = engine()
    writer.do("put", "x")
    reader, before = engine("ro"), site.everything()
    assert (reader.do("hit", "x"), reader.do("get", "x")) == (PAGES, ALL)
    assert (reader.do("put", "y"), reader.do("hit", "y")) == (0, 0)
    assert site.everything() == before and any("EROFS" in line for line in reader.log)


def test_deleted_blocks_are_misses_and_come_back(two, site):
    one, other = two
    assert one.do("put", "x") == ALL
    for path in site.files():
        if any(part.startswith("swa_") for part in path.parts):
            path.unlink()
    assert (other.do("hit", "x"), other.do("get", "x")) == (0, 2 * PAGES)
    assert other.do("put", "x") == ALL
    assert (one.do("hit", "x"), one.do("get", "x")) == (PAGES, ALL)
