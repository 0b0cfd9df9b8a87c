"""Store DeepSeek V4 Flash's six pools through SGLang's own host pools, read them back elsewhere.

The first process stores random pages. A second one looks them up, loads them into other,
poisoned pages, compares every byte, truncates one block of each pool and expects a miss.
"""

import logging
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "hicache"))
import hicache_kit as kit  # noqa: E402
import torch  # noqa: E402

PAGE_TOKENS, PAGES = 256, 8
FIRST, OTHERS, CUT = range(PAGES), range(PAGES, 2 * PAGES), 3
KEYS = kit.keys(PAGES)


def attach(root: Path):
    """Where the files are, the patched backend as SGLang makes it, and its six pools."""
    logging.disable()  # a miss is an error line
    site, pools = kit.Site(root), kit.v4_pools(pages=2 * PAGES, page=PAGE_TOKENS)
    config = site.config(mla=True, model="deepseek-ai/DeepSeek-V4-Flash")
    connector = config.extra_config["kv_connector_extra_config"]
    connector["ucm_connector_name"] = "UcmPipelineStore"
    del connector["ucm_connector_module_path"]
    return site, site.attach(kit.logical(PAGE_TOKENS, 2 * PAGES), pools, config), pools


def write(root: Path) -> dict[str, tuple[int, float]]:
    """Bytes of a page, and seconds to store PAGES of them, by pool."""
    _, store, pools = attach(root)
    rows = {}
    for number, (name, pool) in enumerate(pools.items()):
        kit.fill(pool, FIRST, seed=number)
        start = time.perf_counter()
        kit.put(store, name, pool, KEYS, FIRST)
        rows[name] = (kit.page_bytes(pool), time.perf_counter() - start)
    store.close()
    return rows


def read(root: Path) -> dict[str, tuple[str, float, str]]:
    """Namespace on disk, seconds to load, and what was wrong ("" for nothing), by pool."""
    site, store, pools = attach(root)
    transfers = {n: kit.transfer(n, p, KEYS, OTHERS) for n, p in pools.items()}
    hit = store.batch_exists_v2(KEYS, [*transfers.values()])
    assert hit.kv_hit_pages == PAGES, f"looked up {PAGES} pages, hit {hit}"
    rows = {}
    for number, (name, pool) in enumerate(pools.items()):
        kit.poison(pool, OTHERS)
        start = time.perf_counter()
        result = store.batch_get_v2([transfers[name]])[name]
        seconds = time.perf_counter() - start
        same = torch.equal(
            kit.contents(pool, OTHERS), kit.fill(pool, FIRST, seed=number)
        )
        fault = "" if result == [True] * PAGES and same else f"get {result}, {same=}"
        block = kit.block_of(site, store, name, KEYS[CUT])
        space = block.relative_to(site.backends[0] / "sglang_v2").parts[0]
        rows[name] = (space, seconds, fault or truncated(store, block, transfers[name]))
    store.close()
    return rows


def truncated(store, block: Path, transfer) -> str:
    """Halve one block on disk: exactly that page must be a miss, in lookup and in load."""
    os.truncate(block, block.stat().st_size // 2)
    hit = store.batch_exists_v2(KEYS, [transfer])
    result = store.batch_get_v2([transfer])[transfer.name]
    if hit.kv_hit_pages == CUT and result == [page != CUT for page in FIRST]:
        return ""
    return f"block {CUT} truncated: lookup {hit}, load {result}"


def elsewhere(half, root: Path) -> dict:
    """Run one half in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(half, (root,))


def table(written: dict, found: dict) -> bool:
    """Print a row for each pool; True when nothing is wrong."""
    head = ("namespace", "pages", "bytes", "store MB/s", "load MB/s")
    print("{:<46} {:>5} {:>9} {:>10} {:>10}  verdict".format(*head))
    for name, (space, seconds, fault) in found.items():
        size, stored = written[name]
        speeds = (PAGES * size / s / 1e6 for s in (stored, seconds))
        print(
            "{:<46} {:>5} {:>9} {:>10.0f} {:>10.0f}".format(
                space, PAGES, size, *speeds
            ),
            fault or " equal, truncated block is a miss",
        )
    return not any(fault for _, _, fault in found.values())


def main() -> int:
    os.environ.setdefault("UC_LOGGER_LEVEL", "off")
    with tempfile.TemporaryDirectory(prefix="ucm-demo-") as scratch:
        good = table(*(elsewhere(half, Path(scratch)) for half in (write, read)))
    print("demo: ok\nnext: make test" if good else "demo: FAILED, see the verdicts")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
