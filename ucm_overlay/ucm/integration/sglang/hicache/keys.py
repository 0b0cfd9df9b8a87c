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
"""Tell the key text, the digest and the path of a page's block.

KEY is a page's hash as SGLang hands it to a storage backend: 64 hex digits. The path is
below the pool's folder; with --root the files themselves are looked for.
"""

import argparse
import os
from collections.abc import Iterator

from ucm.integration.sglang.block_files import (
    PRIMARY_POOL,
    StoreFolder,
    block_path,
    store_folders,
)
from ucm.integration.sglang.hicache._folders import Unread
from ucm.integration.sglang.hicache._report import show
from ucm.integration.sglang.hicache_config import SIDECAR_DEFAULTS
from ucm.integration.sglang.hicache_keys import (
    KeyScheme,
    block_ids,
    is_replicated_pool,
    pool_name,
)
from ucm.integration.sglang.hicache_options import STORE, find

_DIGITS = "data_dir_shard_bytes"
_MOST_DIGITS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="+", metavar="KEY")
    parser.add_argument(
        "--model",
        required=True,
        help="as SGLang calls it: --served-model-name, else --model-path",
    )
    parser.add_argument("--pool", default=PRIMARY_POOL, help="default: kv")
    for name in ("tp", "pp", "cp"):
        parser.add_argument(f"--{name}-rank", type=int, default=0, metavar="N")
        parser.add_argument(f"--{name}-size", type=int, default=1, metavar="N")
    parser.add_argument(
        "--replicated",
        action="store_true",
        help="all TP ranks hold the same KV: MLA and DeepSeek V4",
    )
    parser.add_argument(
        "--mla-draft",
        action="store_true",
        help="for the pools draft and draft_swa: the draft model is MLA or DeepSeek V4 too",
    )
    parser.add_argument(
        "--shard-digits",
        type=int,
        choices=range(_MOST_DIGITS + 1),
        help=f"the option {_DIGITS}, where the configuration sets it",
    )
    parser.add_argument("--root", action="append", default=[], help="a storage backend")


def run(args: argparse.Namespace) -> int:
    """1 when --root was given and a block was not found there."""
    suffix = _suffix(args)
    found_all, data, unread = True, [], Unread()
    for key, block in zip(args.keys, block_ids(args.keys, suffix), strict=True):
        files = list(_files(args, block, unread))
        found_all = found_all and bool(files or not args.root)
        data.append(
            {
                "key": key,
                "text": key + suffix,
                "digest": block.hex(),
                "path": block_path(block, _shard_digits(args)),
                "files": files,
            }
        )
    show(args, data, [line for entry in data for line in _lines(args, entry)])
    return 0 if found_all else 1


def _suffix(args: argparse.Namespace) -> str:
    for name in ("tp", "pp", "cp"):
        rank, size = getattr(args, f"{name}_rank"), getattr(args, f"{name}_size")
        if not 0 <= rank < size:
            raise ValueError(f"--{name}-rank {rank} is not in 0 to {size - 1}")
    ranks = (args.tp_rank, args.tp_size, args.pp_rank, args.pp_size)
    keys = KeyScheme(args.model, args.replicated, *ranks, args.cp_rank, args.cp_size)
    name = pool_name(args.pool)
    if name == PRIMARY_POOL:
        return keys.anchor_suffix()
    replicated = is_replicated_pool(name, args.replicated, args.mla_draft)
    return keys.sidecar_suffix(name, replicated)


def _shard_digits(args: argparse.Namespace) -> int:
    if args.shard_digits is not None:
        return args.shard_digits
    default = find(STORE, _DIGITS).default
    return default if args.pool == PRIMARY_POOL else SIDECAR_DEFAULTS[_DIGITS]


def _files(
    args: argparse.Namespace, block: bytes, unread: Unread
) -> Iterator[dict[str, object]]:
    """The block's files in every folder of its pool, whatever their number of digits."""
    for folder in _folders(args, unread):
        for digits in range(_MOST_DIGITS + 1):
            path = os.path.join(folder.path, block_path(block, digits))
            if os.path.isfile(path):
                size = os.path.getsize(path)
                whole = size in (folder.block_sizes(unread) or [size])
                yield {"path": path, "bytes": size, "whole": whole}


def _folders(args: argparse.Namespace, unread: Unread) -> Iterator[StoreFolder]:
    for root in args.root:
        yield from (f for f in store_folders(root, unread) if f.pool == args.pool)


def _lines(args: argparse.Namespace, entry: dict) -> Iterator[str]:
    yield f"key     {entry['text']}"
    yield f"digest  {entry['digest']}"
    yield f"path    {entry['path']}"
    for file in entry["files"]:
        state = "" if file["whole"] else ", not whole: a miss"
        yield f"file    {file['path']} ({file['bytes']:,} bytes{state})"
    if args.root and not entry["files"]:
        yield "file    none"
