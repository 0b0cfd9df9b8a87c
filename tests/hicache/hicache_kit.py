"""What the tests share: configurations, SGLang's host pools on the CPU, pages and transfers."""

import warnings

warnings.filterwarnings("ignore")

import ctypes  # noqa: E402
import dataclasses  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from pathlib import Path  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import torch  # noqa: E402
from sglang.srt.mem_cache.device_pool_info import (  # noqa: E402
    KVBufferLayout,
    KVBuffers,
    MambaStateBufferInfo,
    MHABufferInfo,
    MLABufferInfo,
    PageRowBufferInfo,
)
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.memory_pool_host import (  # noqa: E402
    DeepSeekV4PagedHostPool,
    DeepSeekV4StateHostPool,
    LogicalHostPool,
)
from sglang.srt.mem_cache.pool_host.dsa import (  # noqa: E402
    DSAIndexerPoolHost,
    make_dsa_indexer_pool_decl,
)
from sglang.srt.mem_cache.pool_host.group import (  # noqa: E402
    HostPoolGroup,
    PoolEntry,
)
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import (  # noqa: E402
    AsymmetricMHATokenToKVPoolHost,
    MHATokenToKOnlyPoolHost,
    MHATokenToKVPoolHost,
)
from sglang.srt.mem_cache.pool_host.mha_mxfp8 import (  # noqa: E402
    MHATokenToKVPoolMXFP8Host,
)
from sglang.srt.mem_cache.pool_host.minimax_m3_nvfp4 import (  # noqa: E402
    MiniMaxM3Nvfp4IndexKPoolHost,
    MiniMaxM3Nvfp4MainKVPoolHost,
)
from sglang.srt.mem_cache.pool_host.mla import (  # noqa: E402
    MLAHostAllocation,
    MLATokenToKVPoolHost,
)
from sglang.srt.mem_cache.pool_host.qsa import QSAIndexerPoolHost  # noqa: E402

from ucm.integration.sglang.unifiedcache_store import UnifiedCacheStore  # noqa: E402
from ucm.store.pipeline.connector import UcmPipelineStore  # noqa: E402

ALL = PoolHitPolicy.ALL_PAGES
TRAILING = PoolHitPolicy.TRAILING_PAGES
LAYERS, PAGE, PAGES = 3, 4, 8

# ---- host pools, page_first and unpinned, PAGES pages each unless said otherwise ----


def _pointers(tensors):
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64)


def mha_info(layers=LAYERS, heads=2, k_dim=8, v_dim=8, dtype=torch.bfloat16, page=PAGE):
    slots = 2 * page
    k = tuple(torch.zeros((slots, heads, k_dim), dtype=dtype) for _ in range(layers))
    v = tuple(torch.zeros((slots, heads, v_dim), dtype=dtype) for _ in range(layers))
    buffers = KVBuffers(
        k=k,
        v=v,
        k_data_ptrs=_pointers(k),
        v_data_ptrs=_pointers(v),
        layout=KVBufferLayout.NHD,
    )
    return MHABufferInfo(
        buffers=buffers,
        page_size=page,
        head_num=heads,
        head_dim=k_dim,
        v_head_dim=v_dim,
        dtype=dtype,
        device=torch.device("cpu"),
    )


def mha(
    cls=MHATokenToKVPoolHost,
    layout="page_first",
    page=PAGE,
    pages=PAGES,
    draft=(),
    **kw,
):
    info = mha_info(page=page, **kw)
    return cls(
        info,
        1.0,
        0,
        page,
        layout,
        device_capacity_tokens=page * pages,
        start_layer=0,
        end_layer=info.layer_num if hasattr(info, "layer_num") else LAYERS,
        pin_memory=False,
        **({"draft_buffer_infos": draft} if draft else {}),
    )


def asymmetric_mha(**kw):
    return mha(AsymmetricMHATokenToKVPoolHost, k_dim=12, v_dim=8, **kw)


def mla_info(layers=LAYERS, dim=20, dtype=torch.bfloat16, page=PAGE):
    rows = tuple(torch.zeros((2 * page, 1, dim), dtype=dtype) for _ in range(layers))
    return MLABufferInfo(
        buffers=rows,
        data_ptrs=_pointers(rows),
        layer_indices=tuple(range(layers)),
        device_layer_num=layers,
        page_size=page,
        kv_lora_rank=dim - 4,
        qk_rope_head_dim=4,
        kv_cache_dim=dim,
        dtype=dtype,
        device=torch.device("cpu"),
    )


def mla(info=None, layout="page_first", page=PAGE, pages=PAGES, **kw):
    return MLATokenToKVPoolHost(
        info or mla_info(page=page, **kw),
        1.0,
        0,
        page,
        layout,
        device_capacity_tokens=page * pages,
        start_layer=0,
        end_layer=LAYERS,
        target_layer_num=LAYERS,
        pin_memory=False,
    )


def paged(name, layers=LAYERS, row=64, page=PAGE, pages=PAGES, layout="page_first"):
    """A DeepSeek V4 pool: one component of layers x row bytes a page."""
    device = [torch.zeros((2, row), dtype=torch.uint8) for _ in range(layers)]
    return DeepSeekV4PagedHostPool(
        str(name), device, row, pages, page, layout=layout, pin_memory=False
    )


class _State:
    """The part of SGLang's compress state pool that its host pool reads."""

    def __init__(self, ring, width, page, dtype):
        self.ring_size, self.swa_page_size = ring, page
        scores = torch.zeros((2 * ring, width), dtype=dtype)
        self.kv_score_buffer = type("Scores", (), {"kv_score": scores})()


def state(name, layers=LAYERS, ring=2, width=8, page=PAGE, pages=PAGES):
    """A DeepSeek V4 state pool: layers x ring x width floats a page."""
    pools = [_State(ring, width, page, torch.float32) for _ in range(layers)]
    return DeepSeekV4StateHostPool(
        str(name), pools, pages, page, layout="page_first", pin_memory=False
    )


# DeepSeek V4 Flash: layers, bytes of a layer's row in a page, ring of a state pool.
V4_FLASH = {
    "swa": (44, 149760, 0),
    "deepseek_v4_c4": (21, 37440, 0),
    "deepseek_v4_c4_indexer": (21, 8448, 0),
    "deepseek_v4_c4_state": (21, 131072, 8),
    "deepseek_v4_c4_indexer_state": (21, 32768, 8),
    "deepseek_v4_c128": (20, 1728, 0),
}


def v4_pools(scale=1, pages=PAGES, page=PAGE):
    """The six pools by name; pages of 1/scale of their bytes."""
    made = {}
    for name, (layers, size, ring) in V4_FLASH.items():
        row, shape = size // scale, {"layers": layers, "page": page, "pages": pages}
        if ring:
            made[name] = state(name, ring=ring, width=row // ring // 4, **shape)
        else:
            made[name] = paged(name, row=row, **shape)
    return made


def mamba(
    temporal=(2, 3, 5), convs=((6, 3), (4, 3)), side_states=(), layers=2, pages=PAGES
):
    """Recurrent state: one slot a page, components of unequal size."""
    info = MambaStateBufferInfo(
        temporal=torch.zeros((layers, pages + 1, *temporal), dtype=torch.float32),
        conv=tuple(
            torch.zeros((layers, pages + 1, *shape), dtype=torch.bfloat16)
            for shape in convs
        ),
        extra_checkpoint_buffers=tuple(
            torch.zeros((pages + 1, *shape), dtype=torch.int64) for shape in side_states
        ),
    )
    return MambaPoolHost(
        info, 1.0, 0, device_capacity=pages, pin_memory=False, layout="page_first"
    )


def logical(page=PAGE, pages=PAGES, layout="page_first"):
    return LogicalHostPool(page * pages, page, layout=layout)


def k_only():
    """Sparse index keys without values."""
    device = SimpleNamespace(
        store_dtype=torch.bfloat16,
        start_layer=0,
        end_layer=2,
        head_num=1,
        head_dim=8,
        layer_num=2,
        device="cpu",
        k_buffer=[torch.zeros(64, 1, 8, dtype=torch.bfloat16) for _ in range(2)],
    )
    return MHATokenToKOnlyPoolHost(device, mha(), "page_first", pin_memory=False)


def page_rows(layers, row):
    slab = torch.zeros((layers, PAGES + 2, row), dtype=torch.uint8)
    return PageRowBufferInfo(
        slab=slab,
        rows=tuple(slab),
        row_bytes=row,
        page_size=PAGE,
        num_pages=PAGES + 2,
    )


def nvfp4_main(layers, row=64):
    """Layers in two halves: equal ones for an even number of layers only."""
    return MiniMaxM3Nvfp4MainKVPoolHost(
        page_rows(layers, row),
        2.0,
        0,
        PAGE,
        "page_first",
        device_capacity_tokens=PAGE * PAGES,
        start_layer=0,
        end_layer=layers,
        pin_memory=False,
    )


def nvfp4_index():
    options = {"pin_memory": False, "start_layer": 0, "end_layer": 2}
    rows = page_rows(2, 32)
    return MiniMaxM3Nvfp4IndexKPoolHost(rows, mha(), "page_first", **options)


def dsa_indexer():
    device = SimpleNamespace(
        index_page_size=PAGE,
        index_head_dim=128,
        quant_block_size=128,
        page_size=PAGE,
        skip_topk_layers=[False, True, False],
        device="cpu",
        store_dtype=torch.uint8,
        start_layer=0,
        end_layer=3,
        layer_num=3,
        layer_shard_enabled=False,
        index_k_with_scale_buffer=[
            torch.zeros((16, PAGE * 132), dtype=torch.uint8) for _ in range(3)
        ],
    )
    return DSAIndexerPoolHost(
        make_dsa_indexer_pool_decl(device), mla(), pin_memory=False
    )


def qsa_indexer():
    device = SimpleNamespace(
        qsa_compress_ratio=2,
        qsa_compressed_k_buffer_pool=[
            torch.zeros((32, 1, 8), dtype=torch.bfloat16) for _ in range(2)
        ],
    )
    anchor = mha()
    anchor.pin_memory = False
    return QSAIndexerPoolHost(device, anchor)


def mxfp8():
    """A class that needs CUDA to be built; its page calls all raise."""
    pool = object.__new__(MHATokenToKVPoolMXFP8Host)
    pool.layout, pool.page_size, pool.size = "page_first", PAGE, PAGE * PAGES
    return pool


def page_unified():
    return mha(layout="page_unified")


def aligned(pool):
    """The pool with its buffer moved to a 4096-byte border."""
    size = pool.kv_buffer.numel() * pool.kv_buffer.element_size()
    raw = torch.zeros(size + 4096, dtype=torch.uint8)
    start = -raw.data_ptr() % 4096
    moved = raw[start : start + size].view(pool.kv_buffer.dtype)
    pool.kv_buffer = moved.reshape(pool.kv_buffer.shape)
    return pool


def mla_dummy():
    """What SGLang gives ranks that share another rank's MLA pages: slots without a buffer."""
    sizes = MLAHostAllocation(
        dtype=torch.uint8,
        kv_lora_rank=16,
        qk_rope_head_dim=4,
        kv_cache_dim=20,
        size_per_token=60,
    )
    return mla(sizes)


def group(anchor, **sidecars):
    """The wrapper in which SGLang up to 0.5.18 registers the anchor."""
    entries = [PoolEntry(PoolName.KV, anchor, None, lambda i: i, True)]
    entries += [PoolEntry(n, p, None, lambda i: i) for n, p in sidecars.items()]
    return HostPoolGroup(entries)


class Meta:
    """A pool that answers with this page metadata and nothing else; for malformed ones."""

    layout, page_size, size, kv_buffer = "page_first", PAGE, PAGE * PAGES, ()

    def __init__(self, meta):
        self.meta = meta

    def get_page_buffer_meta(self, indices):
        return self.meta


def huge(size, count=1):
    """Metadata of one page with components of this size, which nobody could allocate."""
    return Meta(([4096] * count, [size] * count))


def huge_flat():
    """A flat page of 2 GiB that takes one byte of memory."""
    page = torch.zeros(1, dtype=torch.uint8).expand(2**31)
    pool = Meta(None)
    pool.get_dummy_flat_data_page = lambda: page
    pool.get_data_page = lambda index, flat: page
    return pool


class Pages:
    """A real pool behind its page calls alone: no buffer of any name."""

    layout = "page_first"

    def __init__(self, pool):
        self._pool, self.page_size = pool, pool.page_size

    def get_page_buffer_meta(self, indices):
        return self._pool.get_page_buffer_meta(indices)

    def get_dummy_flat_data_page(self):
        return self._pool.get_dummy_flat_data_page()

    def get_data_page(self, index, flat=True):
        return self._pool.get_data_page(index, flat)

    def set_from_flat_data_page(self, index, page):
        return self._pool.set_from_flat_data_page(index, page)


# ---- pages ----


def write(pool, page, data):
    """Fill one page with these bytes (uint8)."""
    flat = data.view(pool.get_dummy_flat_data_page().dtype)
    pool.set_from_flat_data_page(page * pool.page_size, flat)


def read(pool, page):
    flat = pool.get_data_page(page * pool.page_size, flat=True)
    return flat.contiguous().reshape(-1).view(torch.uint8).clone()


def page_bytes(pool):
    dummy = pool.get_dummy_flat_data_page()
    return dummy.numel() * dummy.element_size()


def fill(pool, pages, seed=0):
    """Random bytes into these pages; returns them."""
    generator = torch.Generator().manual_seed(seed)
    size = (len(pages), page_bytes(pool))
    data = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
    for page, content in zip(pages, data, strict=True):
        write(pool, page, content)
    return data


def poison(pool, pages, value=0xEE):
    for page in pages:
        write(pool, page, torch.full((page_bytes(pool),), value, dtype=torch.uint8))


def contents(pool, pages):
    return torch.stack([read(pool, page) for page in pages])


def slots(pool, pages):
    """The host indices of these pages."""
    starts = torch.tensor(list(pages), dtype=torch.int64)[:, None] * pool.page_size
    return (starts + torch.arange(pool.page_size)).reshape(-1)


def keys(count, tag=""):
    """Page hashes as SGLang makes them: 64 hex digits."""
    return [
        f"{tag}{i:064x}"[-64:] if not tag else f"{tag}-{i:063x}"
        for i in range(1, count + 1)
    ]


def transfer(name, pool, keys, pages, **kw):
    return PoolTransfer(name=name, keys=keys, host_indices=slots(pool, pages), **kw)


def query(name, policy=ALL, window=None, **kw):
    """A pool as batch_exists_v2 gets it: only the number of placeholder keys counts."""
    placeholders = None if window is None else ["placeholder"] * window
    return PoolTransfer(name=name, keys=placeholders, hit_policy=policy, **kw)


def extra_info(prefix_keys=None):
    return HiCacheStorageExtraInfo(prefix_keys=prefix_keys)


# ---- stores ----


class FaultStore(UcmPipelineStore):
    """The real store; faults[call] runs first, given the store, and may raise."""

    faults = {}

    def __init__(self, config):
        self._meet("create")
        super().__init__(config)
        self._meet("created")

    def _meet(self, call):
        fault = self.faults.get(call)
        if fault is not None:
            fault(self)

    def lookup(self, block_ids):
        self._meet("lookup")
        return super().lookup(block_ids)

    def lookup_on_prefix(self, block_ids):
        self._meet("lookup")
        return super().lookup_on_prefix(block_ids)

    def load_data(self, *args):
        self._meet("load")
        return super().load_data(*args)

    def dump_data(self, *args):
        self._meet("dump")
        return super().dump_data(*args)

    def wait(self, task):
        self._meet("wait")
        return super().wait(task)

    def wait_blocks(self, task):
        self._meet("wait")
        return super().wait_blocks(task)


if not hasattr(UcmPipelineStore, "wait_blocks"):
    del FaultStore.wait_blocks
WAIT = "wait_blocks" if hasattr(UcmPipelineStore, "wait_blocks") else "wait"


class Site:
    """Where a test keeps its stores."""

    def __init__(self, root: Path):
        self.root = root
        self.backends = [root / "a", root / "b"]
        for path in self.backends:
            path.mkdir(parents=True, exist_ok=True)
        self._attached = []

    @classmethod
    @contextmanager
    def temporary(cls):
        """In memory where possible: stores make many folders."""
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        root = Path(tempfile.mkdtemp(prefix="hicache-", dir=memory))
        site = cls(root)
        try:
            yield site
        finally:
            site.close()
            shutil.rmtree(root)

    def config(self, backends=1, mla=False, tp=(0, 1), model="org/model", **options):
        """HiCacheStorageConfig; options not among its fields go to ucm_connector_config."""
        chosen = {
            "storage_backends": [str(p) for p in self.backends[:backends]],
            "timeout_ms": 10000,
            "data_dir_shard_bytes": 1,
        }
        known = {f.name for f in dataclasses.fields(HiCacheStorageConfig)}
        fields = {
            "tp_rank": tp[0],
            "tp_size": tp[1],
            "pp_rank": 0,
            "pp_size": 1,
            "attn_cp_rank": 0,
            "attn_cp_size": 1,
            "is_mla_model": mla,
            "enable_storage_metrics": False,
            "is_page_first_layout": True,
            "model_name": model,
        }
        fields |= {k: v for k, v in options.items() if k in known}
        chosen |= {k: v for k, v in options.items() if k not in known}
        extra = {
            "interface_v1": True,
            "backend_name": "ucm",
            "module_path": "ucm.integration.sglang.unifiedcache_store",
            "class_name": "UnifiedCacheStore",
            "kv_connector_extra_config": {
                "ucm_connector_name": "FaultStore",
                "ucm_connector_module_path": "hicache_kit",
                "ucm_connector_config": chosen,
            },
        }
        fields.setdefault("extra_config", extra)
        return HiCacheStorageConfig(**{k: v for k, v in fields.items() if k in known})

    def attach(self, anchor, pools=None, config=None, **kw):
        """A backend with these pools registered, the way SGLang attaches one."""
        store = UnifiedCacheStore(config or self.config(**kw), {})
        self._attached.append(store)
        store.register_mem_pool_host(anchor)
        store.register_mem_host_pool_v2(anchor, PoolName.KV)
        for name, pool in (pools or {}).items():
            store.register_mem_host_pool_v2(pool, name)
        return store

    def close(self):
        for store in self._attached:
            store.close()
        gc.collect()  # the next test counts threads; a traceback may still hold a store

    def files(self):
        """Every block under the backends, by path."""
        found = [Path(d) / f for d, _, names in os.walk(self.root) for f in names]
        return sorted(p for p in found if ".layout" not in p.parts)

    def everything(self):
        return sorted(self.root.rglob("*"))


def engine_works(site, options):
    """Whether the store under test accepts these I/O options for an aligned pool."""
    try:
        pool = aligned(paged("probe", layers=1, row=4096))
        site.attach(logical(), {"probe": pool}, namespace="probe", **options).close()
    except ValueError as e:
        assert "aio" in str(e)
        return False
    finally:
        shutil.rmtree(site.backends[0] / "ns-probe", ignore_errors=True)
    return True


def threads():
    """Threads of this process, once those that clean up after a start have ended."""
    counts = [0, 1]
    while counts[-1] != counts[-2]:
        counts.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.05)
    return counts[-1]


def open_stores():
    """Native stores of this process that nobody has dropped yet."""
    return sum(type(thing) is FaultStore for thing in gc.get_objects())


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def bytes_at(address, count):
    return (ctypes.c_uint8 * count).from_address(int(address))


def edit(extra, path, value):
    """Set one key of an extra config, in place; remove it for ..."""
    section = extra
    for part in path[:-1]:
        section = section[part]
    if value is ...:
        del section[path[-1]]
    else:
        section[path[-1]] = value
    return extra


def block_of(site, store, name, key):
    """The file of one key."""
    connector = store.connector
    pool = connector._anchor if name == "kv" else connector.pools.get(name)
    (block,) = pool.ids([key])
    return next(p for p in site.files() if p.name == block.hex())


def put(store, name, pool, names, pages):
    """Store these pages under these keys; all of it must succeed."""
    done = store.batch_set_v2([transfer(name, pool, names, pages)])
    assert done == {name: [True] * len(names)}


def put_kv(store, anchor, names, pages):
    assert store.batch_set_v1(names, slots(anchor, pages)) == [True] * len(names)
