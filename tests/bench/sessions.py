"""What the child processes do: transfers, lookups, small calls, registration."""

import gc
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import contestants as made
import numpy as np
import torch
from contestants import Pages, Wrong, kit
from kernel import FileOps, Kernel
from sglang.srt.distributed.parallel_state import get_world_group
from workloads import CHECKPOINT, KV, LOOKUPS, TRAILING, V4, Pool, Site, Workload, keys


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def folders(root: str) -> int:
    return sum(len(names) for _, names, _ in os.walk(root))


def start_torch() -> None:
    """Torch's own threads start now, so that no count takes them for UCM's.

    From then on it has one, as in SGLang's GPU workers: those that wait for work spin.
    """
    torch.zeros(1 << 22).copy_(torch.ones(1 << 22)).sum()
    torch.set_num_threads(1)


def start_sglang() -> None:
    """A server has imported its arguments, and what else its process groups need, long before
    it registers a pool."""
    with suppress(AssertionError, RuntimeError):  # there are none here
        get_world_group()


def drop(path: str) -> None:
    """Out of the page cache, this file only."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class Transfers:
    """Sets and gets of whole pages. One transfer: prepare, go, finish."""

    REFERENCE = "reference"

    def __init__(self) -> None:
        self.contestants: dict[str, made.Contestant] = {}

    def open(
        self,
        workload: Workload,
        site: Site,
        names: Sequence[str],
        threads_each: int,
        direct: bool,
        build: Path,
    ) -> dict[str, dict]:
        """Host pools once, then every contestant on them; threads added, or why absent."""
        self.site, self.workload, self.build = site, workload, build
        site.make(workload.pools)
        self.pages = [
            Pages(pool, workload.pages, site.rank * 100 + i)
            for i, pool in enumerate(workload.pools)
        ]
        self.kernel = Kernel(build, 0)
        for pages in self.pages:
            pages.fill()
        start_torch()
        facts = {}
        common = (site, workload, self.pages, threads_each, direct, build)
        for name in names:
            before = threads()
            try:
                self.contestants[name] = made.contestant(name, *common)
                facts[name] = {"threads": max(0, threads() - before)}
            except Exception as e:
                facts[name] = {"absent": f"cannot be opened: {e}"}
        gc.collect()
        gc.freeze()
        return facts

    def write_reference(self) -> None:
        """The files that every get reads: blocks, and hard links to them for HiCacheFile."""
        names = keys(self.REFERENCE, self.workload.pages)
        writer = made.Bare(self.site, self.pages, 1, self.build)
        writer.start("set", names)()
        for pages in self.pages:
            blocks = self.site.paths(pages.pool, names)
            files = self.site.file_paths(pages.pool, names)
            for block, file in zip(blocks, files, strict=True):
                os.link(block, file)
        writer.close()

    def prepare(
        self, name: str, op: str, tag: str, pages: int, cold: bool = False
    ) -> dict:
        """All that is not timed. A get finds poisoned pages, a set keys never seen.

        The pages hold what they should before a set: they did at first, and every get since
        was checked.
        """
        self.name, self.op = name, op
        contestant = self.contestants[name]
        self.names = keys(tag if op == "set" else self.REFERENCE, pages)
        if op == "get":
            for p in self.pages:
                p.poison(pages)
        self.run = contestant.start(op, self.names)
        return {"resident": self._cache(contestant, cold) if op == "get" else None}

    def go(self, at: float | None = None) -> dict:
        """Run it, at `at` on the monotonic clock; start, end, CPU seconds, new threads."""
        before = threads()
        while at is not None and time.monotonic() < at:
            time.sleep(max(0.0, at - time.monotonic() - 0.0005))
        cpu, start = time.process_time(), time.monotonic()
        self.run()
        end, cpu = time.monotonic(), time.process_time() - cpu
        return {
            "start": start,
            "end": end,
            "cpu": cpu,
            "grown": max(0, threads() - before),
        }

    def finish(self) -> None:
        """Compare every byte; give the space of what was set back, not the inodes.

        ext4 gives no inode out again within seconds of its end, and looks at all of those
        whenever it makes a file beside them (recently_deleted() in fs/ext4/ialloc.c). Sets
        would be several times slower than where nobody deletes. Settings.site() says more.
        """
        contestant, count = self.contestants[self.name], len(self.names)
        for pages in self.pages:
            if self.op == "get":
                pages.check(count, self.name)
                continue
            paths = contestant.paths(pages, self.names)
            pages.check_files(paths, self.name)
            for path in paths:
                os.truncate(path, 0)

    def python_share(self, pages: int) -> dict:
        """One get of the series; seconds in all, and in calls into the native stores."""
        store = self.contestants["series"].store
        spent = [0.0]
        pools = [store.connector.pools.get(p.pool.name) for p in self.pages]
        natives = [pool.store.store_ for pool in pools]
        for pool, native in zip(pools, natives, strict=True):
            pool.store.store_ = _Stopwatch(native, spent)
        try:
            self.prepare("series", "get", "", pages)
            took = self.go()
            self.finish()
        finally:
            for pool, native in zip(pools, natives, strict=True):
                pool.store.store_ = native
        return {"whole": took["end"] - took["start"], "native": spent[0]}

    def _cache(self, contestant: made.Contestant, cold: bool) -> float:
        """The part of up to 8 files of each pool that is in the page cache now."""
        found = []
        for pages in self.pages:
            paths = contestant.paths(pages, self.names)
            if cold:
                for path in paths:
                    drop(path)
            found += [self.kernel.resident(path) for path in paths[:8]]
        return float(np.mean(found))


class _Stopwatch:
    """A native store whose calls add to a sum."""

    def __init__(self, native, spent: list[float]) -> None:
        self._native, self._spent = native, spent

    def __getattr__(self, name: str):
        call = getattr(self._native, name)

        def timed(*args):
            start = time.perf_counter()
            try:
                return call(*args)
            finally:
                self._spent[0] += time.perf_counter() - start

        return timed


class Lookups:
    """batch_exists_v2 over many keys, and its two parts apart."""

    CASES = ("all present", "none present", "sparse trailing")

    def open(self, site: Site, count: int, threads_each: int, build: Path) -> None:
        self.site, self.count, self.build = site, count, build
        self.names = {case: keys(case, count) for case in self.CASES}
        self.pages = [Pages(pool, 1, i) for i, pool in enumerate(LOOKUPS.pools)]
        site.make(LOOKUPS.pools)
        self._options = made.store_options(threads_each)
        self.kernel = Kernel(build, threads_each)
        self.backends: dict[str, object] = {}
        start_torch()

    def attach(self, series: bool) -> None:
        """The connector and HiCacheFile, or one raw store per pool."""
        if series:
            hosts = {p.pool.name: p.host for p in self.pages}
            self.series = made.attach(self.site, hosts, self._options)
            self.file = made.HiCacheFile(self.site, self.pages).store
            connector = self.series.connector
            self.pools = [
                connector._anchor if p.name == KV else connector.pools.get(p.name)
                for p in LOOKUPS.pools
            ]
        else:
            self.stores = [
                made.open_store(self.site, pool, self._options)
                for pool in LOOKUPS.pools
            ]
        gc.collect()
        gc.freeze()

    def write(self) -> None:
        """Every file that should be there, and its twin for HiCacheFile."""
        writer = Kernel(self.build, 1)
        for case in self.CASES:
            for page, pool in zip(self.pages, LOOKUPS.pools, strict=True):
                there = self._present(case, pool)
                names = [k for k, e in zip(self.names[case], there, strict=True) if e]
                paths = self.site.paths(pool, names)
                pointers = np.repeat(page.pointers, len(names), axis=0)
                ops = FileOps.of(paths, pool.page_bytes, pointers, pool.components)
                writer.run("set", ops)
                if not ops.done.all():
                    raise Wrong(f"system calls failed: {ops.errors()}")
                for path, file in zip(
                    paths, self.site.file_paths(pool, names), strict=True
                ):
                    os.link(path, file)
        writer.close()

    def _present(self, case: str, pool: Pool) -> np.ndarray:
        """bool [count]: which pages of this pool are there in this case."""
        if case != "sparse trailing" or pool.name not in TRAILING:
            return np.full(self.count, case != "none present")
        ends = np.arange(CHECKPOINT, self.count - CHECKPOINT + 1, CHECKPOINT)
        there = np.zeros(self.count, dtype=bool)
        for back in range(TRAILING[pool.name]):
            there[ends - 1 - back] = True
        return there

    def _hit(self, case: str) -> int:
        full = {"all present": self.count, "none present": 0}
        return full.get(case, self.count - CHECKPOINT)

    def whole(self, contestant: str, case: str) -> float:
        """Seconds of one batch_exists_v2."""
        backend = self.series if contestant == "series" else self.file
        names = self.names[case]
        transfers = [self._query(pool) for pool in LOOKUPS.pools[1:]]
        start = time.perf_counter()
        answer = backend.batch_exists_v2(names, transfers)
        took = time.perf_counter() - start
        if answer.kv_hit_pages != self._hit(case):
            wanted = self._hit(case)
            raise Wrong(f"{contestant}, {case}: {answer.kv_hit_pages}, not {wanted}")
        return took

    def _query(self, pool: Pool):
        window = TRAILING.get(pool.name)
        policy = kit.ALL if window is None else kit.TRAILING
        return kit.query(pool.name, policy, window)

    def derive(self, contestant: str, case: str) -> float:
        """Seconds to make the block ids of every pool; they are those of docs/design.md."""
        names, start = self.names[case], time.perf_counter()
        if contestant == "series":
            ids = [pool.ids(names) for pool in self.pools]
        else:
            ids = [self.site.ids(pool, names) for pool in LOOKUPS.pools]
        took = time.perf_counter() - start
        for pool, found in zip(LOOKUPS.pools, ids, strict=True):
            if _joined(found) != b"".join(self.site.ids(pool, names)):
                raise Wrong(f"{contestant}: other block ids for {pool.name}")
        return took

    def lookup(self, contestant: str, case: str) -> float:
        """Seconds to look up every key in every pool, ids made beforehand."""
        names = self.names[case]
        if contestant == "C":
            return self._stat(case)
        if contestant == "series":
            jobs = [(p.store, p.ids(names)) for p in self.pools]
        else:
            pools = zip(self.stores, LOOKUPS.pools, strict=True)
            jobs = [(store, self.site.ids(pool, names)) for store, pool in pools]
        start = time.perf_counter()
        answers = [store.lookup(ids) for store, ids in jobs]
        took = time.perf_counter() - start
        for pool, answer in zip(LOOKUPS.pools, answers, strict=True):
            self._judge(contestant, case, pool, np.asarray(answer, dtype=bool))
        return took

    def _stat(self, case: str) -> float:
        parts = [
            FileOps.of(self.site.paths(pool, self.names[case]), pool.page_bytes)
            for pool in LOOKUPS.pools
        ]
        ops = FileOps.join(parts)
        start = time.perf_counter()
        self.kernel.run("lookup", ops)
        took = time.perf_counter() - start
        for number, pool in enumerate(LOOKUPS.pools):
            rows = slice(number * self.count, (number + 1) * self.count)
            self._judge("C", case, pool, ops.done[rows])
        return took

    def _judge(self, who: str, case: str, pool: Pool, found: np.ndarray) -> None:
        if not np.array_equal(found, self._present(case, pool)):
            raise Wrong(f"{who}, {case}: wrong answers for {pool.name}")


def _joined(ids) -> bytes:
    """However a tree keeps its ids: a list of 16 bytes each, or all of them in a row."""
    if isinstance(ids, (list, tuple)):
        return b"".join(bytes(i) for i in ids)
    return bytes(memoryview(ids).cast("B"))


class SmallCalls:
    """Calls that touch few blocks, with some number of stores open."""

    POOL = Pool("small", (16384,))
    COUNT = 128

    def open(self, site: Site, stores: int, threads_each: int, build: Path) -> None:
        self.site = site
        self.pages = Pages(self.POOL, 1, 1)
        self.kernel = Kernel(build, 0)
        self.names = keys("small", self.COUNT)
        site.make([self.POOL])
        self.before = np.array([threads(), descriptors()])
        options = made.store_options(threads_each)
        folders = [f"{site.folder(self.POOL)}-{i}" for i in range(1, stores)]
        for folder in folders:
            os.makedirs(folder, exist_ok=True)
        where = [None, *folders][:stores]
        self.stores = [
            made.open_store(site, self.POOL, options, folder) for folder in where
        ]

    def counts(self) -> dict:
        """Threads and descriptors that the stores have added by now."""
        added = np.array([threads(), descriptors()]) - self.before
        return dict(zip(("threads", "fds"), added.tolist(), strict=True))

    def write(self) -> None:
        self.pages.fill()
        ops = self._ops(self.COUNT)
        self.kernel.run("set", ops)
        if not ops.done.all():
            raise Wrong(f"system calls failed: {ops.errors()}")

    def _ops(self, count: int) -> FileOps:
        paths = self.site.paths(self.POOL, self.names[:count])
        pointers = np.repeat(self.pages.pointers, count, axis=0)
        size = self.POOL.page_bytes
        return FileOps.of(paths, size, pointers, self.POOL.components)

    def call(self, contestant: str, what: str, count: int, loops: int) -> float:
        """Seconds of one call over `count` blocks: the mean of `loops` calls in a row."""
        run = self._bare if contestant == "C" else self._stored
        if what == "get":
            self.pages.poison(1)
        took = run(what, count, loops)
        if what == "get":
            self.pages.check(1, contestant)
        return took / loops

    def _bare(self, what: str, count: int, loops: int) -> float:
        ops = FileOps.join([self._ops(count)] * loops)
        start = time.perf_counter()
        self.kernel.run(what, ops)
        took = time.perf_counter() - start
        if not ops.done.all():
            raise Wrong(f"system calls failed: {ops.errors()}")
        return took

    def _stored(self, what: str, count: int, loops: int) -> float:
        store = self.stores[0]
        ids = self.site.ids(self.POOL, self.names[:count])
        if what == "lookup":
            start = time.perf_counter()
            for _ in range(loops):
                answer = store.lookup(ids)
            took = time.perf_counter() - start
            if not all(answer):
                raise Wrong(f"lookup of {count}: {list(answer)}")
            return took
        pointers = np.repeat(self.pages.pointers, count, axis=0)
        start = time.perf_counter()
        for _ in range(loops):
            store.wait(store.load_data(ids, [0] * count, pointers))
        return time.perf_counter() - start


class Registration:
    """Seven pools with default settings: made, used once, destroyed; in a fresh process."""

    POOLS = (Pool(KV, (262144, 262144), "mha", layers=2), *V4.pools)

    def measure(self, contestant: str, site: Site) -> dict:
        """Seconds of each step; threads, descriptors and folders after the first get."""
        self.site = site
        self.pages = [Pages(pool, 1, i) for i, pool in enumerate(self.POOLS)]
        os.makedirs(site.backend)
        kind = _SeriesPools if contestant == "series" else _BasePools
        pools = kind(site, self.pages)
        start_torch()
        start_sglang()
        gc.collect()
        gc.freeze()  # destroy collects what UCM made, not all of torch and SGLang
        before = np.array([threads(), descriptors(), folders(site.backend)])
        found = {"register": seconds(pools.register)}
        for pages in self.pages:
            pages.fill()
        found["first set"] = seconds(lambda: pools.move("set"))
        for pages in self.pages:
            pages.poison(1)
        found["first get"] = seconds(lambda: pools.move("get"))
        after = np.array([threads(), descriptors(), folders(site.backend)])
        self._check()
        found["destroy"] = seconds(pools.destroy)
        names = ("threads", "fds", "folders")
        return found | dict(zip(names, (after - before).tolist(), strict=True))

    def _check(self) -> None:
        for pages in self.pages:
            pages.check(1, "the first get")
            (block,) = self.site.ids(pages.pool, ["page"])
            found = list(Path(self.site.backend).rglob(block.hex()))
            if len(found) != 1:
                raise Wrong(f"{pages.pool.name}: {len(found)} blocks after one set")
            pages.check_files(found, "the first set")


class _SeriesPools:
    """The connector with the operator's minimum of settings."""

    def __init__(self, site: Site, pages: Sequence[Pages]) -> None:
        self.site, self.pages = site, pages

    def register(self) -> None:
        hosts = {p.pool.name: p.host for p in self.pages}
        self.store = made.attach(self.site, hosts, {})

    def move(self, op: str) -> None:
        anchor, *sidecars = self.pages
        transfers = [
            kit.PoolTransfer(name=p.pool.name, keys=["page"], host_indices=p.slots(1))
            for p in sidecars
        ]
        kv = getattr(self.store, f"batch_{op}_v1")(["page"], anchor.slots(1))
        rest = getattr(self.store, f"batch_{op}_v2")(transfers)
        done = [list(answer) for answer in (kv, *rest.values())]
        if done != [[True]] * len(self.pages):
            raise Wrong(f"the first {op}: {done}")

    def destroy(self) -> None:
        self.store.close()
        del self.store
        gc.collect()


class _BasePools:
    """One store per pool, with the base's own defaults."""

    def __init__(self, site: Site, pages: Sequence[Pages]) -> None:
        self.site, self.pages = site, pages
        for p in pages:
            os.makedirs(site.folder(p.pool), exist_ok=True)

    def register(self) -> None:
        pools = [p.pool for p in self.pages]
        self.stores = [made.open_store(self.site, pool, {}) for pool in pools]

    def move(self, op: str) -> None:
        call, tasks = "load_data" if op == "get" else "dump_data", []
        for store, pages in zip(self.stores, self.pages, strict=True):
            ids = self.site.ids(pages.pool, ["page"])
            tasks.append((store, getattr(store, call)(ids, [0], pages.pointers)))
        for store, task in tasks:
            store.wait(task)

    def destroy(self) -> None:
        del self.stores
        gc.collect()


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
