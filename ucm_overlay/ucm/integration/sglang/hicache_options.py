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
"""Every key of the operator's configuration, with its default, unit and meaning.

The one list of them: the tool's `options` prints it, docs show what that prints, and `doctor`
takes a key that is not here for a slip of the pen.
"""

from dataclasses import dataclass

from ucm.integration.sglang.hicache_config import ANCHOR_DEFAULTS, SIDECAR_DEFAULTS

SGLANG = "extra config"
CONNECTOR = "kv_connector_extra_config"
STORE = "ucm_connector_config"


@dataclass(frozen=True)
class Option:
    """One key. default: PosixStore's own, where the key reaches it and nobody sets another.

    by_page: the connector sets it from the pages of a pool, so that an operator's value is lost.
    """

    place: str
    name: str
    default: object
    unit: str
    meaning: str
    by_page: bool = False

    @property
    def default_text(self) -> str:
        """What an operator gets who does not set it."""
        if isinstance(self.default, str):
            return self.default
        anchor = ANCHOR_DEFAULTS.get(self.name, self.default)
        sidecar = SIDECAR_DEFAULTS.get(self.name, self.default)
        texts = [str(value).lower() for value in (anchor, sidecar)]
        return texts[0] if texts[0] == texts[1] else f"{texts[0]}; sidecar {texts[1]}"


def find(place: str, name: str) -> Option | None:
    return next((o for o in OPTIONS if (o.place, o.name) == (place, name)), None)


def names(place: str) -> list[str]:
    return [option.name for option in OPTIONS if option.place == place]


def _sglang(name: str, default: object, unit: str, meaning: str) -> Option:
    return Option(SGLANG, name, default, unit, meaning)


def _store(name: str, default: object, unit: str, meaning: str, **kw: bool) -> Option:
    return Option(STORE, name, default, unit, meaning, **kw)


_GC = "garbage collection of the primary pool: "
_SIDECAR_GC = "garbage collection of all sidecar pools together: "
_PAGE = "set from the pages of each pool"

OPTIONS: tuple[Option, ...] = (
    _sglang("backend_name", "required", "", "any name; SGLang shows it in messages"),
    _sglang(
        "module_path", "required", "", "`ucm.integration.sglang.unifiedcache_store`"
    ),
    _sglang("class_name", "required", "", "`UnifiedCacheStore`"),
    _sglang("interface_v1", "required", "", "`true`: pages move without a copy"),
    _sglang(CONNECTOR, "required", "", "an object, below; or from the YAML file"),
    _sglang("prefetch_threshold", 256, "tokens", "SGLang's: shorter hits stay on disk"),
    _sglang(
        "prefetch_timeout_base", 1, "s", "SGLang's: time that each prefetch may take"
    ),
    _sglang(
        "prefetch_timeout_per_ki_token", 0.25, "s", "SGLang's: and for 1024 tokens"
    ),
    _sglang(
        "hicache_storage_pass_prefix_keys", False, "", "SGLang's; has no effect here"
    ),
    _sglang("tp_lcm_size", "none", "ranks", "SGLang's; has no effect here"),
    Option(CONNECTOR, "ucm_connector_name", "required", "", "`UcmPipelineStore`"),
    Option(
        CONNECTOR, "ucm_connector_module_path", "none", "", "module of another store"
    ),
    Option(
        CONNECTOR,
        "metrics_config_path",
        "none",
        "",
        "a YAML file that names UCM's own metrics, which are then filled",
    ),
    Option(CONNECTOR, STORE, "required", "", "an object, below"),
    _store(
        "storage_backends",
        "required",
        "folders",
        "existing folders, joined by `:` or as a list; blocks spread over them by hash",
    ),
    _store(
        "namespace",
        "none",
        "",
        "keeps a deployment apart: everything goes below `ns-<namespace>`",
    ),
    _store(
        "timeout_ms",
        30000,
        "ms",
        "past it a transfer counts as hung: new work is refused at once, and accepted again "
        "when the I/O ends",
    ),
    _store(
        "io_direct",
        False,
        "",
        "O_DIRECT; pools whose page is not a multiple of 4096 bytes fall back to buffered "
        "I/O and say so once",
    ),
    _store("posix_io_engine", "psync", "", "`psync` or `aio`"),
    _store(
        "posix_sync",
        "none",
        "",
        "`none`, `data` or `full`: what is synced before a block appears",
    ),
    _store(
        "posix_data_trans_concurrency",
        128,
        "threads",
        "`psync`: blocks of a pool that are loaded at once, and dumped at once; raise it for "
        "storage with a long latency",
    ),
    _store("posix_open_concurrency", 32, "threads", "`aio`: files opened at once"),
    _store("posix_commit_concurrency", 4, "threads", "`aio`: files published at once"),
    _store(
        "posix_aio_queue_depth",
        64,
        "requests",
        "`aio`: in flight at once, of loads and of dumps each",
    ),
    _store(
        "posix_lookup_concurrency",
        16,
        "threads",
        "that help with large or slow lookups",
    ),
    _store(
        "cpu_affinity_cores", "all", "cores", "a list: the only ones for I/O threads"
    ),
    _store(
        "data_dir_shard_bytes",
        3,
        "hex digits",
        "of a block's name that name its folder, 0 to 5; another number hides what is stored",
    ),
    _store(
        "data_dir_on_demand",
        "true; false for a primary pool on two backends or more",
        "",
        "a shard folder is made with its first block, not at the start",
    ),
    _store("posix_gc_enable", True, "", _GC + "whether there is any"),
    _store("posix_capacity_gb", 0, "GiB", _GC + "what it may keep; 0: no collection"),
    _store(
        "posix_gc_trigger_threshold_ratio",
        0.7,
        "of the capacity",
        _GC + "begins above it",
    ),
    _store(
        "posix_gc_recycle_percent", 0.1, "of that", _GC + "how far it goes below that"
    ),
    _store(
        "posix_gc_max_recycle_count_per_shard",
        50000,
        "blocks",
        _GC + "deleted in a round and folder",
    ),
    _store(
        "posix_gc_shard_sample_ratio", 0.1, "of the folders", _GC + "counted to judge"
    ),
    _store("posix_gc_check_interval_sec", 30, "s", _GC + "time between two judgements"),
    _store("posix_gc_concurrency", 16, "threads", _GC + "that count and delete"),
    _store(
        "sidecar_capacity_gb",
        0,
        "GiB",
        _SIDECAR_GC + "what they may keep; 0: no collection",
    ),
    _store(
        "posix_gc_siblings", False, "", "set where sidecars are collected", by_page=True
    ),
    _store("device_id", -1, "", "set to the rank on its node", by_page=True),
    _store("tensor_size", 0, "bytes", _PAGE, by_page=True),
    _store("shard_size", 0, "bytes", _PAGE, by_page=True),
    _store("block_size", 0, "bytes", _PAGE, by_page=True),
)
