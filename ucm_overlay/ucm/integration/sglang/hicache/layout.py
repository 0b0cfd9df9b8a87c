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
"""Describe how the blocks below a storage backend are named, for a router that looks them up.

Read from the format markers, so it holds for exactly what is stored there: one entry for each
model, with the pools and key suffixes of all its ranks, in the words of SGLang's own
description of a storage backend's objects. A block's name is
md5(page hash + suffix), 32 hex digits, below the pool's folder.
"""

import argparse

from ucm.integration.sglang.block_files import Marker, StoreFolder
from ucm.integration.sglang.hicache._folders import Unread, distinct
from ucm.integration.sglang.hicache._report import show, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("roots", nargs="+", metavar="ROOT", help="a storage backend")


def run(args: argparse.Namespace) -> int:
    models: dict[tuple[str, str], dict] = {}
    unread = Unread()
    for folder in distinct(args.roots, unread):
        for marker in folder.markers(unread)[0]:
            _add(models, folder, marker)
    data = [models[key] for key in sorted(models)]
    rows = [
        (
            model["model"],
            pool["pool"],
            pool["page_tokens"],
            pool["page_bytes"],
            suffix,
        )
        for model in data
        for pool in model["hicache_object_layout"]["pools"]
        for suffix in pool["suffixes"]
    ]
    header = ("model", "pool", "tokens", "bytes", "key suffix")
    show(args, data, table(header, rows) if rows else ["no format markers"])
    return 1 if unread.paths else 0


def _add(models: dict, folder: StoreFolder, marker: Marker) -> None:
    """One marker stands for one pool of one rank of one model."""
    model = models.setdefault(
        (folder.deployment, marker.format.model),
        {
            "backend": "ucm",
            "model": marker.format.model,
            "namespace": folder.deployment,
            "hicache_object_layout": {"key_prefix": "", "pools": []},
        },
    )
    pools = model["hicache_object_layout"]["pools"]
    pool = {
        "pool": folder.pool,
        "page_tokens": marker.format.page_tokens,
        "page_bytes": sum(marker.format.component_sizes),
        "dtype": marker.format.dtype,
    }
    same = (p for p in pools if pool.items() <= p.items())
    known = next(same, None)
    if known is None:
        pools.append(known := {**pool, "suffixes": [], "folders": []})
    known["suffixes"] = sorted({*known["suffixes"], marker.keys})
    known["folders"] = sorted({*known["folders"], folder.path})
