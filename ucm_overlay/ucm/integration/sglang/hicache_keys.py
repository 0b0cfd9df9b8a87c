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
"""The key scheme: the text a page is stored under, before MD5.

    anchor (v1)   {key}{model}{topology}
    sidecar (v2)  {key}{model}__v2_tp_{owner}_{tp_size}__pool_{name}__component_0{topology}

    {model}       _{model name}, then _{tp_rank}_{tp_size} unless ranks are replicated
    {owner}       the TP rank that writes the page: 0 for a replicated pool, else the rank itself
    {topology}    __pp_{rank}_{size}, then __cp_{rank}_{size}; each only for a size above 1

Pure functions and one record; nothing here touches a pool, a store or SGLang.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

try:
    from ucm.store.pipeline.ucmpipelinestore import Md5Digests as _md5_digests
except ImportError:  # keys can be told without the native library
    _md5_digests = None

# Pools that every TP rank holds whole when the anchor is replicated (MLA, DeepSeek V4).
_REPLICATED_POOLS = frozenset({"indexer", "draft_indexer", "swa"})
_REPLICATED_PREFIX = "deepseek_v4_"
# Replicated only when their own host pool is built from MLA or DeepSeek V4 pages.
_REPLICATED_IF_MLA_PAGES = frozenset({"draft", "draft_swa"})
# Recurrent state is split over the TP ranks whatever the anchor is.
_SHARDED_POOLS = frozenset({"mamba"})

_POOL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def text(name: object) -> str:
    """The text of one of SGLang's enumerations, or of a string.

    Formatting the member itself depends on the releases of Python and SGLang.
    """
    return getattr(name, "value", name)


def pool_name(name: object) -> str:
    """A pool's name as text; ValueError for one that cannot be a folder name."""
    found = text(name)
    if not isinstance(found, str) or not _POOL_NAME.fullmatch(found):
        raise ValueError(f"pool name {found!r} is not letters, digits, '_', '.' or '-'")
    return found


def is_known_pool(name: str) -> bool:
    """Whether the table below says on purpose how this pool is spread over ranks."""
    return (
        name in _REPLICATED_POOLS | _REPLICATED_IF_MLA_PAGES | _SHARDED_POOLS
        or name.startswith(_REPLICATED_PREFIX)
    )


def is_replicated_pool(name: str, anchor_replicated: bool, mla_pages: bool) -> bool:
    """Whether all TP ranks hold the same bytes of this pool, so that one writes for all.

    An allow-list: a pool that is not on it is keyed by rank, which can cost hits but
    can never serve the shard of another rank.
    """
    if not anchor_replicated:
        return False
    if name in _REPLICATED_IF_MLA_PAGES:
        return mla_pages
    return name in _REPLICATED_POOLS or name.startswith(_REPLICATED_PREFIX)


def index_source(name: str) -> str | None:
    """The pool whose slots this one uses ("kv" or "swa"), where its name tells."""
    if name.endswith("_state") or name == "draft_swa":
        return "swa"
    if name == "indexer" or name.startswith(_REPLICATED_PREFIX + "c"):
        return "kv"
    return None


@dataclass(frozen=True)
class KeyScheme:
    """What tells this rank's pages from those of other models and ranks."""

    model_name: str
    replicated: bool
    tp_rank: int
    tp_size: int
    pp_rank: int = 0
    pp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1

    @classmethod
    def from_storage_config(cls, config: object) -> "KeyScheme":
        """Read SGLang's HiCacheStorageConfig; fields that a release lacks count as size 1."""
        return cls(
            model_name=config.model_name or "",
            replicated=bool(config.is_mla_model),
            tp_rank=config.tp_rank,
            tp_size=config.tp_size,
            pp_rank=getattr(config, "pp_rank", 0) or 0,
            pp_size=getattr(config, "pp_size", 1) or 1,
            cp_rank=getattr(config, "attn_cp_rank", 0) or 0,
            cp_size=getattr(config, "attn_cp_size", 1) or 1,
        )

    @property
    def model(self) -> str:
        name = "_" + self.model_name.replace("/", "-")
        return name if self.replicated else f"{name}_{self.tp_rank}_{self.tp_size}"

    @property
    def topology(self) -> str:
        pp = f"__pp_{self.pp_rank}_{self.pp_size}" if self.pp_size > 1 else ""
        cp = f"__cp_{self.cp_rank}_{self.cp_size}" if self.cp_size > 1 else ""
        return pp + cp

    def anchor_suffix(self) -> str:
        return self.model + self.topology

    def owner(self, replicated: bool) -> int:
        """The TP rank that writes the pages this rank reads."""
        return 0 if replicated else self.tp_rank

    def sidecar_suffix(self, name: str, replicated: bool) -> str:
        return (
            f"{self.model}__v2_tp_{self.owner(replicated)}_{self.tp_size}"
            f"__pool_{name}__component_0{self.topology}"
        )


def block_ids(keys: Sequence[str], suffix: str) -> list[bytes]:
    """One 16-byte block id per logical key."""
    if _md5_digests is None:
        return block_ids_in_python(keys, suffix)
    return _md5_digests(keys, suffix)


def block_ids_in_python(keys: Sequence[str], suffix: str) -> list[bytes]:
    """What block_ids() is defined by; a long prefix takes it ten times longer."""
    tail = suffix.encode("utf-8")
    md5 = hashlib.md5
    return [
        md5(key.encode("utf-8") + tail, usedforsecurity=False).digest() for key in keys
    ]
