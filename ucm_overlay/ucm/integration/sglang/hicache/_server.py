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
"""The server arguments on which the cache depends."""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from ucm.integration.sglang.hicache._finding import ERROR, NOTE, WARNING, Finding


@dataclass(frozen=True)
class ServerArgs:
    """Those of them that were given; given is False where there was nothing to look at."""

    given: bool = False
    enable_hierarchical_cache: bool = False
    hicache_storage_backend: str = ""
    hicache_mem_layout: str = ""
    hicache_io_backend: str = ""
    enable_dp_attention: bool = False
    nnodes: int = 1
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    dcp_size: int = 1

    @classmethod
    def parse(cls, args: Sequence[str] | None) -> "ServerArgs":
        """SGLang's other arguments are passed over; a bad value ends the program.

        One argument may hold them all, quoted as for a shell.
        """
        given = list(args or [])
        given = shlex.split(given[0]) if len(given) == 1 else given
        known, _ = cls.parser().parse_known_args(given)
        return cls(given=args is not None, **vars(known))

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """With every name that SGLang has for them."""
        parser = argparse.ArgumentParser(
            prog="--sglang-args", add_help=False, allow_abbrev=False
        )
        long = {
            "tp": "tensor",
            "pp": "pipeline",
            "dp": "data",
            "dcp": "decode-context",
        }
        for field in fields(cls)[1:]:
            flags = ["--" + field.name.replace("_", "-")]
            if field.name == "enable_hierarchical_cache":
                flags.append("--enable-hicache")
            if field.type is bool:
                parser.add_argument(*flags, action="store_true")
                continue
            short = field.name.removesuffix("_size")
            if short in long:
                flags += [f"--{short}", f"--{long[short]}-parallel-size"]
            kind = _count if field.type is int else field.type
            parser.add_argument(
                *flags, dest=field.name, type=kind, default=field.default
            )
        return parser

    @property
    def ranks_a_node(self) -> int:
        """Processes of one node that open the stores."""
        replicas = 1 if self.enable_dp_attention else self.dp_size
        return max(1, self.tp_size * self.pp_size * replicas // self.nnodes)

    @property
    def tp_spans_nodes(self) -> bool:
        """Whether ranks that share pages, one of them writing for all, are on several nodes."""
        groups = self.dp_size if self.enable_dp_attention else 1
        return self.nnodes > 1 and self.tp_size // groups > self.ranks_a_node


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def check_server(server: ServerArgs) -> Iterator[Finding]:
    if not server.given:
        text = "the server's arguments were not checked"
        yield Finding(NOTE, text, "give them after --sglang-args")
        return
    if not server.enable_hierarchical_cache:
        text = "without --enable-hierarchical-cache there is no HiCache"
        yield Finding(ERROR, text, "add --enable-hierarchical-cache")
    if server.hicache_storage_backend != "dynamic":
        text = f"--hicache-storage-backend is {server.hicache_storage_backend or 'missing'}"
        yield Finding(ERROR, text, "--hicache-storage-backend dynamic")
    yield from _check_layout(server)


def _check_layout(server: ServerArgs) -> Iterator[Finding]:
    fix = "--hicache-mem-layout page_first"
    if not server.hicache_mem_layout:
        text = "--hicache-mem-layout is missing, and its default depends on the release"
        yield Finding(WARNING, text, fix)
    elif server.hicache_mem_layout != "page_first":
        text = f"--hicache-mem-layout is {server.hicache_mem_layout}: pools are refused"
        yield Finding(ERROR, text, fix)
    if server.hicache_io_backend == "direct":
        text = "--hicache-io-backend direct turns the layout into page_first_direct: refused"
        yield Finding(ERROR, text, "--hicache-io-backend kernel")
