"""The key text, byte for byte, and which pools one rank writes for all."""

import hashlib
import subprocess
import sys

import pytest
from hicache_kit import PoolName
from hypothesis import given, settings
from hypothesis import strategies as st

from ucm.integration.sglang.hicache_keys import (
    KeyScheme,
    block_ids,
    block_ids_in_python,
    index_source,
    is_replicated_pool,
    pool_name,
)


def scheme(mla=False, tp=(0, 1), pp=(0, 1), cp=(0, 1), model="org/model"):
    return KeyScheme(model, mla, *tp, *pp, *cp)


V1 = {
    "_org-model_0_1": scheme(),
    "_org-model_1_2": scheme(tp=(1, 2)),
    "_org-model": scheme(mla=True, tp=(1, 2)),
    "__0_1": scheme(model=""),
    "_org-model_0_2__pp_1_2": scheme(tp=(0, 2), pp=(1, 2)),
    "_org-model__cp_1_4": scheme(mla=True, cp=(1, 4)),
    "_org-model__pp_0_2__cp_3_4": scheme(mla=True, pp=(0, 2), cp=(3, 4)),
}
V2 = {
    "_org-model_0_1__v2_tp_0_1__pool_swa__component_0": (scheme(), "swa", False),
    "_org-model_1_2__v2_tp_1_2__pool_swa__component_0": (
        scheme(tp=(1, 2)),
        "swa",
        False,
    ),
    "_org-model__v2_tp_0_2__pool_swa__component_0": (
        scheme(mla=True, tp=(1, 2)),
        "swa",
        True,
    ),
    "_org-model__v2_tp_1_2__pool_mamba__component_0": (
        scheme(mla=True, tp=(1, 2)),
        "mamba",
        False,
    ),
    "_org-model__v2_tp_0_1__pool_deepseek_v4_c4__component_0__pp_1_2__cp_0_2": (
        scheme(mla=True, pp=(1, 2), cp=(0, 2)),
        "deepseek_v4_c4",
        True,
    ),
}


@pytest.mark.parametrize("text", V1)
def test_golden_anchor_suffix(text):
    assert V1[text].anchor_suffix() == text


@pytest.mark.parametrize("text", V2)
def test_golden_sidecar_suffix(text):
    keys, name, replicated = V2[text]
    assert keys.sidecar_suffix(name, replicated) == text


def test_golden_block_ids():
    """The id is the MD5 of key and suffix; two keys may share any prefix."""
    ids = block_ids(["a" * 64, "a" * 63 + "b"], "_m_0_1")
    assert ids[0] == hashlib.md5(b"a" * 64 + b"_m_0_1").digest()
    assert [i.hex() for i in ids] == [
        "123f7a5b431eb9f7d15f5d5155808a87",
        "d5d0b22489455e099a61d073860fbf9b",
    ]


@given(
    keys=st.lists(st.text(max_size=140), max_size=11),
    suffix=st.text(alphabet="_ab0", max_size=80),
)
@settings(max_examples=300, deadline=None)
def test_block_ids_are_those_of_python(keys, suffix):
    """Every length around MD5's block borders, mixed in a batch, and any text."""
    assert block_ids(keys, suffix) == block_ids_in_python(keys, suffix)


def test_block_ids_come_from_native_code():
    from ucm.integration.sglang import hicache_keys

    assert hicache_keys._md5_digests is not None
    with pytest.raises(UnicodeEncodeError):
        block_ids(["\ud800"], "")
    with pytest.raises(UnicodeEncodeError):
        block_ids_in_python(["\ud800"], "")


def test_suffixes_of_all_ranks_differ():
    """Every rank, stage and pool has keys of its own, for v1 and for v2."""
    ranks = [
        scheme(tp=(t, 2), pp=(p, 2), cp=(c, 2))
        for t in range(2)
        for p in range(2)
        for c in range(2)
    ]
    texts = [r.anchor_suffix() for r in ranks]
    texts += [r.sidecar_suffix(n, False) for r in ranks for n in ("swa", "mamba")]
    assert len(set(texts)) == len(texts) == 24


YES, NO = True, False
# name: (anchor sharded, anchor replicated, the same with MLA pages)
REPLICATED = {
    "indexer": (NO, YES, YES),
    "draft_indexer": (NO, YES, YES),
    "swa": (NO, YES, YES),
    "deepseek_v4_c4": (NO, YES, YES),
    "deepseek_v4_c4_state": (NO, YES, YES),
    "deepseek_v4_c128_rope": (NO, YES, YES),
    "draft": (NO, NO, YES),
    "draft_swa": (NO, NO, YES),
    "mamba": (NO, NO, NO),
    "auxiliary_swa": (NO, NO, NO),
    "brand_new_pool": (NO, NO, NO),
}


@pytest.mark.parametrize("name", REPLICATED)
def test_replicated_pools(name):
    assert REPLICATED[name] == (
        is_replicated_pool(name, anchor_replicated=False, mla_pages=True),
        is_replicated_pool(name, anchor_replicated=True, mla_pages=False),
        is_replicated_pool(name, anchor_replicated=True, mla_pages=True),
    )


def test_every_pool_name_of_this_release_is_decided():
    """A name that SGLang adds shows up here, and is keyed by rank until it is decided."""
    undecided = {"kv", "auxiliary_swa"}
    names = {n.value for n in PoolName} - undecided
    assert names - set(REPLICATED) <= {n for n in names if n.startswith("deepseek_v4_")}


def test_whose_slots_a_pool_uses():
    names = [
        "indexer",
        "deepseek_v4_c4",
        "deepseek_v4_c128",
        "deepseek_v4_c4_indexer_scale",
    ]
    assert {index_source(n) for n in names} == {"kv"}
    names = ["deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state", "draft_swa"]
    assert {index_source(n) for n in names} == {"swa"}
    assert {index_source(n) for n in ("swa", "mamba", "new")} == {None}


def test_names_that_are_no_folder():
    for bad in ("", ".", "..", "a/b", "../x", "a b", None, 3):
        with pytest.raises(ValueError):
            pool_name(bad)
    assert pool_name(PoolName.SWA) == pool_name("swa") == "swa"


def test_keys_need_no_framework():
    """The key scheme is readable and testable without torch or SGLang."""
    import ucm.integration.sglang.hicache_keys as module

    code = f"""
import runpy, sys
found = runpy.run_path({module.__file__!r})
assert not {{"torch", "sglang", "numpy"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_storage_config_fields(site):
    """What is read from SGLang's configuration; releases without a field count as size 1."""
    config = site.config(
        mla=True, tp=(1, 4), pp_rank=1, pp_size=2, attn_cp_rank=3, attn_cp_size=4
    )
    assert KeyScheme.from_storage_config(config) == scheme(True, (1, 4), (1, 2), (3, 4))
    old = type(
        "Config", (), dict(model_name=None, is_mla_model=False, tp_rank=0, tp_size=1)
    )
    assert KeyScheme.from_storage_config(old) == scheme(model="")
