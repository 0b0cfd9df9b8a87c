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
"""Check a configuration before a server starts with it: each finding with its fix.

FILE holds what --hicache-storage-backend-extra-config gets, as JSON or YAML, or is the YAML file
that UNIFIEDCACHE_CONFIG_FILE names. Give the server's own arguments after --sglang-args to have
them checked too. Run it where the server runs, as the server's user.
"""

import argparse
import copy
import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import yaml

from ucm.integration.sglang.hicache import _host
from ucm.integration.sglang.hicache._finding import (
    ERROR,
    LEVELS,
    NOTE,
    WARNING,
    Finding,
)
from ucm.integration.sglang.hicache._report import show
from ucm.integration.sglang.hicache._server import ServerArgs, check_server
from ucm.integration.sglang.hicache_config import (
    HicacheConfig,
    check_interface,
    connector_section,
    load_config,
    split_backends,
)
from ucm.integration.sglang.hicache_options import CONNECTOR, SGLANG, STORE, find, names

_STORE_CLASS = "UcmPipelineStore"
# What that class does with the pipeline "Posix"; by itself it would want torch.
_TRIAL = """
import json, pathlib, sys
from ucm.store.pipeline import ucmpipelinestore as native
library = pathlib.Path(native.__file__).parents[1] / "posix" / "libposixstore.so"
for options in json.load(sys.stdin):
    native.PipelineStore().Stack("Posix", str(library), options)
"""
_TRIAL_TIMEOUT_S = 60
_NO_TRIAL = ("ImportError", "ModuleNotFoundError", "OSError", "TimeoutExpired")
_CLASS = {
    "module_path": "ucm.integration.sglang.unifiedcache_store",
    "class_name": "UnifiedCacheStore",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="FILE")
    parser.add_argument(
        "--sglang-args",
        nargs=argparse.REMAINDER,
        metavar="ARG",
        help="the arguments of sglang.launch_server; must come last",
    )


def run(args: argparse.Namespace) -> int:
    """1 when there is an error."""
    findings = sorted(_examine(args), key=lambda found: LEVELS.index(found.level))
    errors = sum(finding.level == ERROR for finding in findings)
    lines = [line for finding in findings for line in finding.lines()]
    lines.append(f"{errors} errors, {len(findings) - errors} other findings")
    show(args, [asdict(finding) for finding in findings], lines)
    return 1 if errors else 0


def _examine(args: argparse.Namespace) -> Iterator[Finding]:
    extra = _read(args.config)
    server = ServerArgs.parse(args.sglang_args)
    yield from check_server(server)
    yield from _check_keys(extra)
    usable = copy.deepcopy(extra)
    yield from _mend_interface(usable)
    missing = list(_mend_backends(usable))
    yield from missing
    try:
        storage = SimpleNamespace(extra_config=usable, dcp_size=server.dcp_size)
        config = load_config(storage, device_id=0)
    except ValueError as e:
        if not missing or "storage_backends" not in str(e):
            yield Finding(ERROR, str(e), "as it says; then run this again")
        return
    yield from _check_values(config)
    yield from _check_gc(config)
    yield from _host.check_folders(config, server)
    yield from _host.check_capacity(config)
    yield from _host.check_limits(config, server)


def _read(path: str) -> dict[str, Any]:
    """The extra config; ValueError for a file that holds no object."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as e:
            raise ValueError(f"{path} is neither JSON nor YAML: {e}") from e
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds {type(found).__name__}, not an object")
    return found


def _is_yaml_part(extra: dict[str, Any]) -> bool:
    """Whether this is the file of UNIFIEDCACHE_CONFIG_FILE, which holds UCM's part alone."""
    return CONNECTOR in extra and not {*_CLASS, "backend_name", "interface_v1"} & set(
        extra
    )


def _check_keys(extra: dict[str, Any]) -> Iterator[Finding]:
    """Keys that nobody reads, and those that SGLang needs to find the backend."""
    yield from _unknown(SGLANG, extra)
    section = extra.get(CONNECTOR)
    if isinstance(section, dict):
        yield from _unknown(CONNECTOR, section)
        if isinstance(section.get(STORE), dict):
            yield from _unknown(STORE, section[STORE])
    if _is_yaml_part(extra):
        return
    if not extra.get("backend_name"):
        yield Finding(ERROR, "backend_name is missing", 'add "backend_name": "ucm"')
    for key, value in _CLASS.items():
        if not extra.get(key):
            yield Finding(ERROR, f"{key} is missing", f'add "{key}": "{value}"')
        elif extra[key] != value:
            text = f"{key} is {extra[key]!r}: not the backend that this tool knows"
            yield Finding(WARNING, text, f"this one is {value!r}")


def _unknown(place: str, section: dict[str, Any]) -> Iterator[Finding]:
    for key in section:
        option = find(place, key)
        if option is None:
            near = difflib.get_close_matches(str(key), names(place), 1)
            fix = f"did you mean {near[0]}?" if near else "remove it"
            yield Finding(WARNING, f"nobody reads the key {key} in {place}", fix)
        elif option.by_page:
            text = f"{key} has no effect: it is {option.meaning}"
            yield Finding(WARNING, text, "remove it")


def _mend_interface(extra: dict[str, Any]) -> Iterator[Finding]:
    """What is wrong is told once, and put right so that the rest can be looked at."""
    if _is_yaml_part(extra):
        text = (
            "the file has UCM's part alone; interface_v1 and the class were not checked"
        )
        yield Finding(NOTE, text, "check what the server's extra config has")
    else:
        try:
            check_interface(extra)
        except ValueError as e:
            yield Finding(ERROR, str(e), 'add "interface_v1": true')
        else:
            if extra["interface_v1"] not in (True, 1):
                text = f"interface_v1 is {extra['interface_v1']!r}: SGLang takes it as true"
                yield Finding(WARNING, text, 'write "interface_v1": true')
    extra["interface_v1"] = True


def _mend_backends(extra: dict[str, Any]) -> Iterator[Finding]:
    """Folders that do not exist go, unless none is left."""
    try:
        extra[CONNECTOR] = connector_section(extra)
        options = extra[CONNECTOR][STORE]
        value = options["storage_backends"]
        paths = split_backends(value)
    except (KeyError, TypeError, ValueError):
        return  # load_config has words for it
    there = [path for path in paths if os.path.isdir(path)]
    if len(there) == len(paths):
        return
    if isinstance(value, str) and os.path.isdir(value):
        text = (
            f"storage_backends: the path {value!r} holds a ':', which separates paths"
        )
        yield Finding(ERROR, text, f'write it as a list: ["{value}"]')
        options["storage_backends"] = [value]
        return
    for path in paths:
        if path not in there:
            yield Finding(ERROR, f"there is no folder {path!r}", f"mkdir -p {path}")
    options["storage_backends"] = there or value


def _check_values(config: HicacheConfig) -> Iterator[Finding]:
    """What the store itself says to the options, in an empty folder and a process of its own."""
    if config.connector_name != _STORE_CLASS or config.module_path:
        text = (
            f"the options of another store, {config.connector_name}, were not checked"
        )
        yield Finding(NOTE, text)
        return
    options = {key: value for key, value in config.options.items() if find(STORE, key)}
    with tempfile.TemporaryDirectory() as folder:
        trial = replace(config, backends=[folder], options=options)
        pages = _host.PAGE
        stores = [trial.anchor_store(pages), trial.sidecar_store("trial", pages)]
        for store in stores:
            os.makedirs(store["storage_backends"][0], exist_ok=True)
        answer = _try(stores, folder)
    if answer.startswith(_NO_TRIAL):
        text = f"the options' values were not checked: {answer}"
        yield Finding(NOTE, text, "run this where the server runs")
    elif answer:
        yield Finding(ERROR, f"the store refuses: {answer}", "set that key as it says")


def _try(stores: list[dict[str, Any]], folder: str) -> str:
    """Why one of the stores cannot be opened, as an exception's last line; "" if all can."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "UC_LOGGER_LEVEL": "off",
        "UCM_LOG_PATH": folder,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRIAL],
            input=json.dumps(stores, default=str),
            env=env,
            text=True,
            capture_output=True,
            timeout=_TRIAL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as e:
        return f"TimeoutExpired: {e}"
    except OSError as e:
        return f"OSError: {e}"
    if done.returncode == 0:
        return ""
    return (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]


def _check_gc(config: HicacheConfig) -> Iterator[Finding]:
    if config.gc_options:
        yield Finding(
            WARNING,
            f"{', '.join(config.gc_options)}: for the primary pool only; no sidecar pool is "
            "bounded by them",
            "sidecar_capacity_gb bounds all sidecar pools together",
        )
    enabled = config.options.get("posix_gc_enable", True)
    if config.options.get("posix_capacity_gb"):
        if not enabled:
            text = "posix_gc_enable is false: posix_capacity_gb bounds nothing"
            yield Finding(WARNING, text, '"posix_gc_enable": true, or no capacity')
    elif enabled and config.gc_options:
        text = f"{', '.join(config.gc_options)}: no garbage is collected in the primary pool, "
        text += "as posix_capacity_gb is not set"
        yield Finding(WARNING, text, "set posix_capacity_gb, in GiB")
