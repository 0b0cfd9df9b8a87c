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
"""The one place that reads and checks the operator's configuration.

    extra_config                                --hicache-storage-backend-extra-config
      interface_v1: true                        needed by SGLang to use the zero-copy calls
      kv_connector_extra_config                 or from the YAML file UNIFIEDCACHE_CONFIG_FILE
        ucm_connector_name, ucm_connector_module_path
        metrics_config_path                     optional: UCM's own metrics, as with vLLM
        ucm_connector_config
          storage_backends                      "/mnt/a:/mnt/b" or ["/mnt/a", "/mnt/b"]
          namespace                             optional: keeps deployments apart
          sidecar_capacity_gb                   optional: for all sidecar pools together
          ...                                   anything else goes to the store as it is
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:  # the tool for operators needs no torch
    from ucm.integration.sglang.page_layout import PageLayout

logger = logging.getLogger(__name__)

SIDECAR_FOLDER = "sglang_v2"
# Keeps the folder of a namespace apart from the v1 store's hexadecimal ones.
DEPLOYMENT_PREFIX = "ns-"
# Threads are shared by all stores of the process: the largest number counts for all.
ANCHOR_DEFAULTS = {
    "posix_data_trans_concurrency": 24,
    "posix_open_concurrency": 8,
}
SIDECAR_DEFAULTS = {
    "posix_data_trans_concurrency": 8,
    "posix_open_concurrency": 8,
    "posix_lookup_concurrency": 4,
    "data_dir_shard_bytes": 2,
    "data_dir_on_demand": True,
}
# One capacity for the whole folder of sidecar pools, whichever store collects there.
SIDECAR_CAPACITY = "sidecar_capacity_gb"
SIDECAR_GC = {
    "posix_gc_enable": True,
    "posix_gc_siblings": True,
    "posix_gc_trigger_threshold_ratio": 0.95,
    "posix_gc_recycle_percent": 0.05,
}
# Lower case: two namespaces must not meet in one folder where a file system folds case.
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_SIDECAR_NAME = re.compile(r"(.+)_([1-9]\d*)x([1-9]\d*)")


@dataclass(frozen=True)
class HicacheConfig:
    """Checked configuration. backends: folders of this namespace, one per storage backend.

    namespace: "" where folders are shared with every other deployment.
    """

    connector_name: str
    module_path: str | None
    backends: list[str]
    options: dict[str, Any]
    device_id: int = 0
    namespace: str = ""
    metrics_config_path: str = ""

    def anchor_store(self, layout: PageLayout) -> dict[str, Any]:
        """Options of the primary store: the operator's own, with the sizes of a page."""
        # A UCM without the series makes the folders of one backend itself, but insists on
        # finding those of a second one.
        on_demand = {"data_dir_on_demand": len(self.backends) == 1}
        options = {**ANCHOR_DEFAULTS, **on_demand, **self.options}
        options.pop(SIDECAR_CAPACITY, None)
        return self._store(options, "kv", layout, self.backends)

    def sidecar_store(self, name: str, layout: PageLayout) -> dict[str, Any]:
        """Options of one sidecar pool's store, below its own folders."""
        options = {k: v for k, v in self.options.items() if not is_gc_option(k)}
        options = {**SIDECAR_DEFAULTS, **options, "posix_gc_enable": False}
        capacity = options.pop(SIDECAR_CAPACITY, 0)
        if capacity:
            options |= {**SIDECAR_GC, "posix_capacity_gb": capacity}
        return self._store(options, name, layout, self.sidecar_folders(name, layout))

    def sidecar_folders(self, name: str, layout: PageLayout) -> list[str]:
        folder = sidecar_folder(name, layout.component_size, layout.component_count)
        return [os.path.join(path, SIDECAR_FOLDER, folder) for path in self.backends]

    @property
    def gc_options(self) -> list[str]:
        return sorted(key for key in self.options if is_gc_option(key))

    def _store(
        self,
        options: dict[str, Any],
        name: str,
        layout: PageLayout,
        folders: list[str],
    ) -> dict[str, Any]:
        return {
            **_io_for_layout(options, name, layout),
            "store_pipeline": "Posix",
            "storage_backends": folders,
            "device_id": self.device_id,
            "tensor_size": layout.component_size,
            "shard_size": layout.page_bytes,
            "block_size": layout.page_bytes,
            "stream_number": 8,
        }


def sidecar_folder(pool: str, size: int, count: int) -> str:
    """The folder of a pool whose pages have this many components of this many bytes."""
    return f"{pool}_{size}x{count}"


def parse_sidecar_folder(name: str) -> tuple[str, int, int] | None:
    """Pool, component bytes and count; None for another folder."""
    found = _SIDECAR_NAME.fullmatch(name)
    return (found[1], int(found[2]), int(found[3])) if found else None


def wants_direct_io(options: dict[str, Any]) -> bool:
    return bool(options.get("io_direct")) or options.get("posix_io_engine") == "aio"


def load_config(storage_config: Any, device_id: int | None = None) -> HicacheConfig:
    """Read and check everything; ValueError names the key, its form and an example.

    device_id: None asks SGLang for it, which imports SGLang.
    """
    extra = dict(getattr(storage_config, "extra_config", None) or {})
    check_interface(extra)
    _check_ranks(storage_config)
    section = connector_section(extra)
    options = section.get("ucm_connector_config")
    if not isinstance(options, dict):
        raise _bad(
            "kv_connector_extra_config.ucm_connector_config",
            options,
            "an object",
            '{"storage_backends": "/mnt/ucm"}',
        )
    name = section.get("ucm_connector_name")
    if not isinstance(name, str) or not name:
        raise _bad(
            "kv_connector_extra_config.ucm_connector_name",
            name,
            "a store class",
            '"UcmPipelineStore"',
        )
    options = dict(options)
    backends = _backends(options.pop("storage_backends", None))
    namespace = _namespace(options.pop("namespace", None))
    _check_capacity(options.get(SIDECAR_CAPACITY, 0))
    if namespace:
        backends = [
            os.path.join(path, DEPLOYMENT_PREFIX + namespace) for path in backends
        ]
    module_path = section.get("ucm_connector_module_path")
    return HicacheConfig(
        name,
        module_path,
        backends,
        options,
        _local_rank() if device_id is None else device_id,
        namespace,
        _metrics_config(section.get("metrics_config_path")),
    )


def _bad(key: str, found: Any, form: str, example: str) -> ValueError:
    return ValueError(f"{key} must be {form}, for example {example}; found {found!r}")


def check_interface(extra: dict[str, Any]) -> None:
    flag = extra.get("interface_v1")
    if not flag:
        raise _bad(
            "interface_v1 in --hicache-storage-backend-extra-config",
            flag,
            "true, else SGLang copies pages through calls this backend does not serve",
            '{"interface_v1": true}',
        )
    if flag not in (True, 1):
        logger.warning("interface_v1 is %r; SGLang takes it as true. Write true.", flag)


def _check_ranks(storage_config: Any) -> None:
    dcp_size = getattr(storage_config, "dcp_size", 1) or 1
    if dcp_size > 1:
        raise ValueError(
            f"dcp_size is {dcp_size}: decode context parallelism is not supported by "
            "UnifiedCacheStore; run with a DCP size of 1"
        )


def connector_section(extra: dict[str, Any]) -> dict[str, Any]:
    section = extra.get("kv_connector_extra_config")
    if section is None:
        section = _yaml_config().get("kv_connector_extra_config")
    if not isinstance(section, dict):
        raise _bad(
            "kv_connector_extra_config",
            section,
            "an object in extra_config or in the file of UNIFIEDCACHE_CONFIG_FILE",
            '{"ucm_connector_name": "UcmPipelineStore", "ucm_connector_config": {...}}',
        )
    return section


def _yaml_config() -> dict[str, Any]:
    path = os.environ.get("UNIFIEDCACHE_CONFIG_FILE")
    if not path:
        return {}
    if not Path(path).is_file():
        raise ValueError(f"UNIFIEDCACHE_CONFIG_FILE names no file: {path!r}")
    try:
        with open(path, encoding="utf-8") as f:
            data = yaml.safe_load(f) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ValueError(f"UNIFIEDCACHE_CONFIG_FILE: {path!r} is no YAML: {e}") from e
    if not isinstance(data, dict):
        raise ValueError(
            f"UNIFIEDCACHE_CONFIG_FILE: {path!r} must hold a mapping, "
            f"found {type(data).__name__}"
        )
    return data


def _backends(value: Any) -> list[str]:
    """Absolute paths of existing folders."""
    paths = split_backends(value)
    for path in paths:
        if not os.path.isdir(path):
            raise _bad(
                "ucm_connector_config.storage_backends",
                value,
                f"folders that exist, and {path!r} does not",
                '["/mnt/a", "/mnt/b"]',
            )
    return [os.path.abspath(path) for path in paths]


def split_backends(value: Any) -> list[str]:
    """The paths, existing or not; a string separates them by colons."""
    paths = value.split(":") if isinstance(value, str) else value
    if (
        not isinstance(paths, (list, tuple))
        or not paths
        or not all(isinstance(path, str) and path for path in paths)
    ):
        raise _bad(
            "ucm_connector_config.storage_backends",
            value,
            "one or more folders, as a list or separated by ':' "
            "(a path that holds a ':' needs the list)",
            '"/mnt/a:/mnt/b" or ["/mnt/a", "/mnt/b"]',
        )
    return list(paths)


def _namespace(value: Any) -> str:
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or not _NAMESPACE.fullmatch(value):
        raise _bad(
            "ucm_connector_config.namespace",
            value,
            "up to 100 lower-case letters, digits, '_', '.' or '-'",
            '"llama-rev2-fp8"',
        )
    return value


def _metrics_config(value: Any) -> str:
    if not value:
        return ""
    if not isinstance(value, str) or not os.path.isfile(value):
        raise _bad(
            "kv_connector_extra_config.metrics_config_path",
            value,
            "a YAML file that names metrics",
            '"examples/metrics/sglang_hicache_metrics.yaml"',
        )
    return value


def _check_capacity(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _bad(
            f"ucm_connector_config.{SIDECAR_CAPACITY}",
            value,
            "a number of GiB, 0 for no limit",
            "2000",
        )


def is_gc_option(key: str) -> bool:
    return key.startswith("posix_gc_") or key == "posix_capacity_gb"


def _io_for_layout(
    options: dict[str, Any], name: str, layout: PageLayout
) -> dict[str, Any]:
    """Buffered I/O for a pool that direct I/O cannot serve, said once per pool."""
    if not wants_direct_io(options) or layout.aligned:
        return options
    logger.warning(
        "pool %s: pages of %d x %d bytes are not aligned to 4096; "
        "this pool uses buffered psync instead of aio or direct I/O",
        name,
        layout.component_count,
        layout.component_size,
    )
    return {**options, "io_direct": False, "posix_io_engine": "psync"}


def _local_rank() -> int:
    """The device of this process; 0 where SGLang's process groups do not exist.

    Their absence is an AssertionError or, from 0.5.22 on, a RuntimeError.
    """
    try:
        from sglang.srt.distributed.parallel_state import get_world_group

        return get_world_group().local_rank
    except (ImportError, AssertionError, RuntimeError):
        return 0
