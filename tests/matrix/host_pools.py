"""SGLang's own host pools on the CPU, built the way the release on the path builds them."""

import importlib
import inspect
from types import SimpleNamespace

import torch

LAYERS, PAGE, PAGES = 3, 4, 24
LAYOUT = "page_first"
_MODULES = ("memory_pool_host", "pool_host", "pool_host.mha", "pool_host.mla")
_MODULES += ("pool_host.mamba", "pool_host.dsa", "pool_host.group")


def find(*names):
    """The first of these classes that the release has, wherever it keeps it; None if none."""
    for module in _MODULES:
        try:
            loaded = importlib.import_module(f"sglang.srt.mem_cache.{module}")
        except ModuleNotFoundError:
            continue
        for name in names:
            if hasattr(loaded, name):
                return getattr(loaded, name)
    return None


def accepted(callable_, **options):
    """Those options that the callable takes."""
    known = inspect.signature(callable_).parameters
    return {name: value for name, value in options.items() if name in known}


def _device_buffers(count, shape, dtype):
    return [torch.zeros(shape, dtype=dtype) for _ in range(count)]


def _records():
    """The records from which 0.5.22 and 0.5.23 build host pools, or None."""
    try:
        return importlib.import_module("sglang.srt.mem_cache.device_pool_info")
    except ModuleNotFoundError:
        return None


def _pointers(tensors):
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64)


def _device(**fields):
    """What a host pool reads of the device pool that it mirrors."""
    common = {
        "device": "cpu",
        "size": PAGE * (PAGES - 1),
        "page_size": PAGE,
        "start_layer": 0,
        "end_layer": LAYERS,
        "layer_num": LAYERS,
        "host_capacity_tokens": None,
    }
    return SimpleNamespace(**{**common, **fields})


def mha(dtype=torch.bfloat16, heads=2, dim=8):
    """K and V: two components a page."""
    cls = find("MHATokenToKVPoolHost")
    shape = (2 * PAGE, heads, dim)
    k, v = (_device_buffers(LAYERS, shape, dtype) for _ in range(2))
    records = _records()
    if "buffer_info" in inspect.signature(cls).parameters:
        buffers = records.KVBuffers(
            k=tuple(k),
            v=tuple(v),
            k_data_ptrs=_pointers(k),
            v_data_ptrs=_pointers(v),
            layout=records.KVBufferLayout.NHD,
        )
        source = records.MHABufferInfo(
            buffers=buffers,
            page_size=PAGE,
            head_num=heads,
            head_dim=dim,
            v_head_dim=dim,
            dtype=dtype,
            device=torch.device("cpu"),
        )
    else:
        source = _device(
            store_dtype=dtype,
            dtype=dtype,
            head_num=heads,
            head_dim=dim,
            v_head_dim=dim,
            row_dim=heads * dim,
            v_row_dim=heads * dim,
            k_buffer=k,
            v_buffer=v,
            k_data_ptrs=_pointers(k),
            v_data_ptrs=_pointers(v),
        )
    return _anchor(cls, source)


def _mla_device(dim, dtype, cls):
    rows = _device_buffers(LAYERS, (2 * PAGE, 1, dim), dtype)
    records = _records()
    if "buffer_info" in inspect.signature(cls).parameters:
        return records.MLABufferInfo(
            buffers=tuple(rows),
            data_ptrs=_pointers(rows),
            layer_indices=tuple(range(LAYERS)),
            device_layer_num=LAYERS,
            page_size=PAGE,
            kv_lora_rank=dim - 4,
            qk_rope_head_dim=4,
            kv_cache_dim=dim,
            dtype=dtype,
            device=torch.device("cpu"),
        )
    return _device(
        store_dtype=dtype,
        dtype=dtype,
        kv_lora_rank=dim - 4,
        qk_rope_head_dim=4,
        kv_cache_dim=dim,
        kv_buffer=rows,
        data_ptrs=_pointers(rows),
        layer_shard_enabled=False,
    )


def mla(dim=20, dtype=torch.bfloat16):
    """Latent KV: one component a page."""
    cls = find("MLATokenToKVPoolHost")
    return _anchor(cls, _mla_device(dim, dtype, cls))


def _anchor(cls, source):
    options = accepted(
        cls,
        device_capacity_tokens=PAGE * (PAGES - 1),
        start_layer=0,
        end_layer=LAYERS,
        target_layer_num=LAYERS,
    )
    return cls(source, 1.0, 0, PAGE, LAYOUT, pin_memory=False, **options)


def indexer(anchor):
    """DSA's index keys beside an MLA anchor; the class was NSAIndexerPoolHost up to 0.5.12."""
    cls = find("DSAIndexerPoolHost", "NSAIndexerPoolHost")
    rows = _device_buffers(LAYERS, (16, PAGE * 132), torch.uint8)
    device = _device(
        store_dtype=torch.uint8,
        index_page_size=PAGE,
        index_head_dim=128,
        quant_block_size=128,
        skip_topk_layers=[False] * LAYERS,
        layer_shard_enabled=False,
        index_k_with_scale_buffer=rows,
    )
    if "decl" in inspect.signature(cls).parameters:
        module = importlib.import_module(cls.__module__)
        return cls(module.make_dsa_indexer_pool_decl(device), anchor, pin_memory=False)
    return cls(device, anchor, LAYOUT, pin_memory=False)


def mla_with_index_keys(dim=20):
    """0.5.10 keeps DSA's index keys beside the latent KV, in one host pool."""
    cls = find("NSATokenToKVPoolHost")
    device = _mla_device(dim, torch.bfloat16, cls)
    rows = _device_buffers(LAYERS, (16, PAGE * 132), torch.uint8)
    device.__dict__.update(index_head_dim=128, quant_block_size=128)
    device.index_k_with_scale_buffer = rows
    return _anchor(cls, device)


def mamba(temporal=(2, 3, 5), convs=((6, 3), (4, 3)), layers=2):
    """Recurrent state: one slot a page, components of unequal size."""
    cls = find("MambaPoolHost")
    slots = PAGES - 1
    state = torch.zeros((layers, slots + 1, *temporal), dtype=torch.float32)
    conv = [torch.zeros((layers, slots + 1, *c), dtype=torch.bfloat16) for c in convs]
    if "buffer_info" in inspect.signature(cls).parameters:
        source = _records().MambaStateBufferInfo(
            temporal=state, conv=tuple(conv), extra_checkpoint_buffers=()
        )
    else:
        cache = SimpleNamespace(temporal=state, conv=conv)
        source = _device(num_mamba_layers=layers, mamba_cache=cache, size=slots)
    options = accepted(cls, device_capacity=slots)
    return cls(source, 1.0, 0, pin_memory=False, layout=LAYOUT, **options)


def logical():
    """DeepSeek V4's primary KV: slot numbers without a buffer."""
    cls = find("LogicalHostPool")
    return cls(PAGE * PAGES, PAGE, **accepted(cls, layout=LAYOUT))


def paged(name, row):
    """A DeepSeek V4 pool: one component of LAYERS x row bytes a page."""
    cls = find("DeepSeekV4PagedHostPool")
    rows = _device_buffers(LAYERS, (2, row), torch.uint8)
    options = accepted(cls, layout=LAYOUT)
    return cls(name, rows, row, PAGES, PAGE, pin_memory=False, **options)


def state(name, ring=2, width=8):
    """A DeepSeek V4 state pool, addressed by the SWA pool's slots."""
    cls = find("DeepSeekV4StateHostPool")
    scores = [torch.zeros((2 * ring, width)) for _ in range(LAYERS)]
    pools = [
        SimpleNamespace(
            ring_size=ring,
            swa_page_size=PAGE,
            kv_score_buffer=SimpleNamespace(kv_score=score),
        )
        for score in scores
    ]
    options = accepted(cls, layout=LAYOUT)
    return cls(name, pools, PAGES, PAGE, pin_memory=False, **options)


# ---- pages ----


def page_bytes(pool):
    dummy = pool.get_dummy_flat_data_page()
    return dummy.numel() * dummy.element_size()


def write(pool, starts, data):
    """Put these rows of bytes into the pages that start at these slots."""
    dtype = pool.get_dummy_flat_data_page().dtype
    for start, page in zip(starts.tolist(), data, strict=True):
        pool.set_from_flat_data_page(start, page.clone().view(dtype))


def read(pool, starts):
    """The bytes of the pages that start at these slots, one row each."""
    pages = [pool.get_data_page(start, flat=True) for start in starts.tolist()]
    return torch.stack(
        [p.contiguous().reshape(-1).view(torch.uint8).clone() for p in pages]
    )


def random_pages(pool, count, seed):
    generator = torch.Generator().manual_seed(seed)
    size = (count, page_bytes(pool))
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
