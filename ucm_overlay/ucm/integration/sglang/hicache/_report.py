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
"""What the commands share: output as text or JSON, sizes, ages, a progress bar."""

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

try:
    from tqdm import tqdm
except ImportError:  # it comes with SGLang, which this tool does without
    tqdm = None

Item = TypeVar("Item")

_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def show(args: argparse.Namespace, data: Any, lines: Iterable[str]) -> None:
    if args.json:
        print(json.dumps(data, indent=1))
    else:
        for line in lines:
            print(printable(line))


def printable(text: str) -> str:
    """Names of files are anybody's: none may stop the command or command the terminal."""
    escaped = (c if c.isprintable() else repr(c)[1:-1] for c in text)
    return "".join(escaped)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as they need; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [text.replace(",", "").isdigit() for text in cells[-1]]
    return [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def progress(items: Iterable[Item], name: str, unit: str = " files") -> Iterable[Item]:
    """A bar on stderr while it is a terminal."""
    if tqdm is None:
        return items
    return tqdm(items, desc=name, unit=unit, disable=None, leave=False)


def size_text(count: int) -> str:
    """3 significant digits: 1.25 MiB."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return (
        f"{value:.3g} {_UNITS[unit]}" if value < 100 else f"{value:.0f} {_UNITS[unit]}"
    )


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def parse_size(text: str) -> int:
    """Bytes of 500G, 1.5TiB or 4096; powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B)?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 500G or 1.5TiB")
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2].upper() or " "))


def parse_age(text: str) -> float:
    """Seconds of 90s, 30m, 12h, 7d or 2w."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no age: write 30m, 12h or 7d")
    return float(found[1]) * _SECONDS[found[2]]
