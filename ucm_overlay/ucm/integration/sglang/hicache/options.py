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
"""Print every key of the configuration: default, unit, meaning; a table for docs/.

Keys that the connector sets itself are not listed.
"""

import argparse

from ucm.integration.sglang.hicache._report import show
from ucm.integration.sglang.hicache_options import CONNECTOR, OPTIONS, SGLANG, STORE

_TITLES = {
    SGLANG: "key of `--hicache-storage-backend-extra-config`",
    CONNECTOR: f"key in `{CONNECTOR}`",
    STORE: f"key in `{STORE}`",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    listed = [option for option in OPTIONS if not option.by_page]
    data = [
        {
            "place": option.place,
            "name": option.name,
            "default": option.default_text,
            "unit": option.unit,
            "meaning": option.meaning,
        }
        for option in listed
    ]
    lines = []
    for place, title in _TITLES.items():
        rows = [option for option in listed if option.place == place]
        lines += [f"| {title} | default | unit | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{o.name}` | {o.default_text} | {o.unit} | {o.meaning} |" for o in rows
        ] + [""]
    show(args, data, lines[:-1])
    return 0
