#
# MIT License
#
# Copyright (c) 2026 the UCM HiCache v2 contributors
#
#
# Permission is hereby granted, free of charge, to any person obtaining a copy
# of this software and associated documentation files (the "Software"), to deal
# in the Software without restriction, including without limitation the rights
# to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
# copies of the Software, and to permit persons to whom the Software is
# furnished to do so, subject to the following conditions:
#
# The above copyright notice and this permission notice shall be included in all
# copies or substantial portions of the Software.
#
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
# IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
# FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
# AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
# LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
# OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
# SOFTWARE.
#
"""HiCache v2 on the real PosixStore with SGLang's real host pools; no GPU needed.

python -m pytest test/test_sglang_hicache_v2.py
"""

import hashlib

import pytest
import torch

hicache_storage = pytest.importorskip("sglang.srt.mem_cache.hicache_storage")
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.memory_pool_host import (  # noqa: E402
    DeepSeekV4PagedHostPool,
    LogicalHostPool,
)

from ucm.integration.sglang.hicache_keys import KeyScheme, block_ids  # noqa: E402
from ucm.integration.sglang.hit_policy import PoolPresence, judge  # noqa: E402
from ucm.integration.sglang.unifiedcache_store import UnifiedCacheStore  # noqa: E402

PAGE, PAGES = 4, 8
SWA, C4, MAMBA = PoolName.SWA, PoolName.DEEPSEEK_V4_C4, PoolName.MAMBA
KEYS = [f"{i:064x}" for i in range(4)]


def paged(name, row=64):
    device = [torch.zeros((2, row), dtype=torch.uint8) for _ in range(3)]
    pool = DeepSeekV4PagedHostPool(
        str(name), device, row, PAGES, PAGE, layout="page_first", pin_memory=False
    )
    pool.kv_buffer.random_(0, 256)
    return pool


class Unequal:
    """The page metadata of a pool with asymmetric K and V."""

    layout, page_size, size = "page_first", PAGE, PAGE * PAGES

    def get_page_buffer_meta(self, indices):
        return [4096, 8192], [192, 128]


class State:
    """Recurrent state of unequal components: flat pages only."""

    layout, page_size, size = "page_first", 1, PAGES

    def __init__(self):
        self.slots = torch.randint(0, 256, (PAGES, 360), dtype=torch.uint8)

    def get_data_page(self, index, flat=True):
        return self.slots[index].clone()

    def get_dummy_flat_data_page(self):
        return torch.zeros(360, dtype=torch.uint8)

    def set_from_flat_data_page(self, index, page):
        self.slots[index] = page


def attach(path, pools):
    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=True,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="org/model",
        extra_config={
            "interface_v1": True,
            "kv_connector_extra_config": {
                "ucm_connector_name": "UcmPipelineStore",
                "ucm_connector_config": {"storage_backends": str(path)},
            },
        },
    )
    anchor = LogicalHostPool(PAGE * PAGES, PAGE, layout="page_first")
    store = UnifiedCacheStore(config, {})
    store.register_mem_pool_host(anchor)
    store.register_mem_host_pool_v2(anchor, PoolName.KV)
    for name, pool in pools.items():
        store.register_mem_host_pool_v2(pool, name)
    return store


def transfer(name, pool, keys, pages):
    starts = torch.tensor(pages)[:, None] * pool.page_size
    indices = (starts + torch.arange(pool.page_size)).reshape(-1)
    return PoolTransfer(name=name, keys=keys, host_indices=indices)


def test_pages_come_back_in_another_process_life(tmp_path):
    pools = {SWA: paged("swa"), C4: paged("c4"), MAMBA: State()}
    store = attach(tmp_path, pools)
    first = [transfer(n, p, KEYS, [0, 1, 2, 3]) for n, p in pools.items()]
    assert store.batch_set_v2(first) == dict.fromkeys(pools, [True] * 4)
    names = {path.name for path in (tmp_path / "sglang_v2").iterdir()}
    assert names == {"swa_192x1", "deepseek_v4_c4_192x1", "mamba_360x1"}
    store.close()

    store = attach(tmp_path, pools)
    kept = {n: p.get_data_page(0).clone() for n, p in pools.items()}
    again = [transfer(n, p, KEYS[:1], [7]) for n, p in pools.items()]
    assert store.batch_get_v2(again) == dict.fromkeys(pools, [True])
    for name, pool in pools.items():
        page = pool.get_data_page(7 * pool.page_size)
        assert torch.equal(page.reshape(-1), kept[name].reshape(-1))
    store.close()
    assert store.batch_get_v2(again) == dict.fromkeys(pools, [False])


def test_a_prefix_needs_every_listed_pool(tmp_path):
    pools = {SWA: paged("swa"), C4: paged("c4")}
    store = attach(tmp_path, pools)
    store.batch_set_v2([transfer(C4, pools[C4], KEYS[:3], [0, 1, 2])])
    store.batch_set_v2([transfer(SWA, pools[SWA], KEYS[2:3], [2])])
    window = PoolTransfer(SWA, keys=["x"], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    hit = store.batch_exists_v2(KEYS, [window, PoolTransfer(C4)])
    assert hit.kv_hit_pages == 3
    assert hit.extra_pool_hit_pages == {SWA: 3, C4: 3}
    assert store.batch_exists_v2(KEYS, [PoolTransfer(SWA)]).kv_hit_pages == 0
    assert store.batch_exists_v2(KEYS, [PoolTransfer("absent")]).kv_hit_pages == 0
    assert store.batch_exists_v2(KEYS).kv_hit_pages == 0
    assert store.batch_exists(KEYS) == 3
    store.close()


def test_unequal_components_are_refused(tmp_path):
    store = attach(tmp_path, {})
    with pytest.raises(ValueError, match=r"'swa'.*\[192, 128\]"):
        store.register_mem_host_pool_v2(Unequal(), SWA)
    assert not list(tmp_path.iterdir())
    store.close()


def test_legal_ends_meet_or_miss():
    def ends(*rows):
        pools = [
            PoolPresence(str(i), torch.tensor(row).bool().numpy(), "trailing_pages")
            for i, row in enumerate(rows)
        ]
        return judge(3, pools).restorable

    assert ends([0, 0, 1], [0, 1, 0]) == []
    assert ends([1, 0, 1], [1, 1, 0]) == [1]


def test_key_text():
    keys = KeyScheme("org/model", False, 1, 2, pp_rank=1, pp_size=2)
    suffix = "_org-model_1_2__v2_tp_1_2__pool_swa__component_0__pp_1_2"
    assert keys.sidecar_suffix("swa", replicated=False) == suffix
    assert keys.anchor_suffix() == "_org-model_1_2__pp_1_2"
    assert block_ids(["k"], suffix) == [hashlib.md5(b"k" + suffix.encode()).digest()]
