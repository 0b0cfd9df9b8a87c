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
"""Which stores' folders a command looks at."""

import argparse
import os
import sys
from collections.abc import Iterable

from ucm.integration.sglang.block_files import StoreFolder, store_folders
from ucm.integration.sglang.hicache._report import printable


class Unread:
    """Names once, on stderr, what a command cannot read while it goes on with the rest."""

    def __init__(self) -> None:
        self.paths: set[str] = set()

    def __call__(self, error: OSError) -> None:
        if error.filename not in self.paths:
            self.paths.add(error.filename)
            text = f"not read: {error.filename}: {error.strerror}"
            print(printable(text), file=sys.stderr)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("roots", nargs="+", metavar="ROOT", help="a storage backend")
    parser.add_argument("--pool", help="only this pool; kv is the primary one")
    parser.add_argument(
        "--namespace", metavar="NAME", help="only this one; '' for what is in none"
    )


def distinct(roots: Iterable[str], unread: Unread) -> list[StoreFolder]:
    """Each folder once, however many roots lead to it, by the root that tells most of it."""
    folders: dict[tuple[int, int], StoreFolder] = {}
    for root in roots:
        for folder in store_folders(root, unread):
            try:
                found = os.stat(folder.path)
            except OSError as e:
                unread(e)
                continue
            same = found.st_dev, found.st_ino
            folders[same] = max(folders.get(same, folder), folder, key=_told)
    return list(folders.values())


def _told(folder: StoreFolder) -> tuple[bool, int]:
    return bool(folder.deployment), folder.page_bytes


def chosen(args: argparse.Namespace, unread: Unread) -> list[StoreFolder]:
    """ValueError where there is none: a slip must not look like an empty cache."""
    for root in args.roots:
        if not any(f.holds_store(unread) for f in store_folders(root, unread)):
            raise ValueError(f"{root} holds no store: name a storage backend")
    folders = distinct(args.roots, unread)
    for key, field in (("namespace", "deployment"), ("pool", "pool")):
        wanted = getattr(args, key)
        there = {getattr(folder, field) for folder in folders}
        if wanted not in (None, *there):
            names = ", ".join(map(repr, sorted(there)))
            raise ValueError(f"no {key} {wanted!r} here; there are: {names}")
        folders = [f for f in folders if wanted in (None, getattr(f, field))]
    return folders
