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
"""A small file per key family that says which page format its blocks have.

Two formats can have pages of one size (fp8 e4m3 and e5m2, bf16 and fp16), and keys do not
tell them apart. The marker does: <folder>/.layout/<key suffix and sizes, hashed>.json.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import stat
import uuid
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

from ucm.integration.sglang.sglang_release import fp8_element_type

if TYPE_CHECKING:  # the tool for operators needs no torch
    from ucm.integration.sglang.page_layout import PageLayout

logger = logging.getLogger(__name__)

MARKER_FOLDER = ".layout"
_LONGEST = 65536
# Those of the store's own files: the group shares them whatever the umask.
_FOLDER_MODE, _FILE_MODE = 0o774, 0o640


class EmptyMarkerError(ValueError):
    """Its writer has not come to the text, or was killed before."""


@dataclass(frozen=True)
class PageFormat:
    """What gives a page's bytes their meaning.

    element_type: the fp8 kind behind a pool that only knows uint8; "" where unknown.
    """

    model: str
    dtype: str
    page_tokens: int
    layers: int
    host_layout: str
    component_sizes: tuple[int, ...]
    element_type: str = ""

    @classmethod
    def of(cls, pool: Any, layout: PageLayout, model: str) -> PageFormat:
        return cls(
            model=model,
            dtype=_dtype(pool),
            page_tokens=layout.tokens,
            layers=getattr(pool, "layer_num", getattr(pool, "num_mamba_layers", 0)),
            host_layout=getattr(pool, "layout", "page_first"),
            component_sizes=tuple(size for size in layout.sizes if size),
            element_type=fp8_element_type(),
        )

    def changes(self, other: PageFormat) -> dict[str, tuple[Any, Any]]:
        """Fields that differ, with both values. An unknown element type differs from none."""
        ours, theirs = asdict(self), asdict(other)
        if not (self.element_type and other.element_type):
            ours.pop("element_type")
        return {k: (v, theirs[k]) for k, v in ours.items() if v != theirs[k]}


def _dtype(pool: Any) -> str:
    """The element types of a page, as text."""
    fields = ("dtype", "temporal_dtype", "conv_dtype")
    types = [str(getattr(pool, name)) for name in fields if hasattr(pool, name)]
    return " ".join(types)


def marker_paths(folders: list[str], suffix: str, page_format: PageFormat) -> list[str]:
    """The marker in each of these folders."""
    family = f"{suffix}\n{sum(page_format.component_sizes)}".encode()
    name = hashlib.md5(family, usedforsecurity=False).hexdigest()
    return [os.path.join(folder, MARKER_FOLDER, f"{name}.json") for folder in folders]


class Marked:
    """Keeps the markers that a store has: they can be removed under a running server."""

    def __init__(self, folders: list[str], suffix: str, page_format: PageFormat):
        rows = zip(marker_paths(folders, suffix, page_format), folders, strict=True)
        self._format = suffix, page_format
        self._marked = {row: _identity(row[0]) for row in rows}

    def restore(self) -> None:
        """Look at those that are others now, write those that are gone; as claim().

        Before a block can be there without. Not where the folder is gone too: it can be a
        mount that is away.
        """
        for row, known in self._marked.items():
            path, folder = row
            if known and _identity(path, known) != known and os.path.isdir(folder):
                claim([folder], *self._format)
                self._marked[row] = _identity(path) or known


def _identity(
    path: str, untold: tuple[int, int] | None = None
) -> tuple[int, int] | None:
    """What tells a file from another under its name; `untold` where rights or I/O fail."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError:
        return untold
    return found.st_dev, found.st_ino


def claim(folders: list[str], suffix: str, page_format: PageFormat) -> list[str]:
    """Check the marker in every folder and write it where it is missing.

    Returns the paths made, in the order made, for release() when what follows fails.
    ValueError for another format or a folder that cannot be used; nothing is left then.
    """
    paths = marker_paths(folders, suffix, page_format)
    content = {"keys": suffix, **json.loads(json.dumps(asdict(page_format)))}
    made: list[str] = []
    try:
        missing = [path for path in paths if not _check(path, content)]
        for path in missing:
            if _is_read_only(os.path.dirname(os.path.dirname(path))):
                logger.warning(
                    "no page format marker %s: its folder is read-only", path
                )
                continue
            _make_folders(os.path.dirname(os.path.dirname(path)), made)
            _mark(path, content, made)
    except OSError as e:
        release(made)
        raise ValueError(
            f"storage_backends: {e.filename} cannot be used: {e.strerror}"
        ) from e
    except ValueError:
        release(made)
        raise
    return made


def _mark(path: str, content: dict[str, Any], made: list[str]) -> None:
    """Write one marker. Where rights forbid it the pages go unmarked, and the log says so."""
    try:
        _make_folders(os.path.dirname(path), made)
        if _write(path, content):
            made.append(path)
    except PermissionError as e:
        logger.warning("no page format marker %s: %s", path, e.strerror)


def release(made: list[str]) -> None:
    """Remove what claim() made, and the empty folders that a store made in a new one.

    A folder that holds anything else is in use by somebody and stays.
    """
    for path in reversed(made):
        with contextlib.suppress(OSError):
            if path.endswith(".json"):
                os.unlink(path)
                continue
            if os.path.join(path, MARKER_FOLDER) in made:
                _remove_empty_children(path)
            os.rmdir(path)


def _remove_empty_children(folder: str) -> None:
    for child in os.scandir(folder):
        if child.is_dir(follow_symlinks=False):
            os.rmdir(child.path)


def read(path: str) -> dict[str, Any]:
    """What a marker tells; ValueError where it is none.

    Of a regular file only: a link may name anybody's, a FIFO would be waited for.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
        text = os.read(fd, _LONGEST).decode()
    finally:
        os.close(fd)
    if not text:
        raise EmptyMarkerError("empty")
    try:
        return dict(json.loads(text))
    except (TypeError, RecursionError) as e:
        raise ValueError(f"no JSON object: {e}") from e


def _check(path: str, content: dict[str, Any]) -> bool:
    """False when there is no marker, or an empty one; ValueError for another format."""
    if os.path.islink(os.path.dirname(path)):
        raise ValueError(
            f"{os.path.dirname(path)} is a link; put a folder in its place"
        )
    try:
        found = read(path)
    except (FileNotFoundError, EmptyMarkerError):
        return False
    except ValueError as e:
        raise ValueError(f"page format marker {path} is unreadable: {e}") from e
    fields = sorted(k for k in content if found.get(k) != content[k])
    if not (found.get("element_type") and content["element_type"]):
        fields = [field for field in fields if field != "element_type"]
    if not fields:
        return True
    raise ValueError(
        f"{os.path.dirname(os.path.dirname(path))} holds pages of another format ("
        + ", ".join(f"{k}: stored {found.get(k)!r}, now {content[k]!r}" for k in fields)
        + f"; marker {path}). Set ucm_connector_config.namespace to keep them apart"
    )


def _is_read_only(folder: str) -> bool:
    """Whether the folder is there but takes no files: it can serve reads, unmarked."""
    return os.path.isdir(folder) and not os.access(folder, os.W_OK)


def _make_folders(folder: str, made: list[str]) -> None:
    """makedirs that appends the new folders to made, outermost first."""
    new = []
    while not os.path.isdir(folder):
        new.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(new):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
            made.append(path)
            os.chmod(path, _FOLDER_MODE)


def _write(path: str, content: dict[str, Any]) -> bool:
    """Make the marker; False when it is there, ValueError when it tells of another format."""
    try:
        _write_unnamed(path, content)
        return True
    except FileExistsError:
        pass
    except OSError:  # a file system without O_TMPFILE, as NFS is
        if _write_linked(path, content):
            return True
    if not _check(path, content) and _write_in_place(path, content):
        return True
    _check(path, content)
    return False


def _write_unnamed(path: str, content: dict[str, Any]) -> None:
    """Named when it is whole: of a process that is killed meanwhile nothing is left."""
    fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_WRONLY, _FILE_MODE)
    with open(fd, "w", encoding="utf-8") as f:
        _fill(f, content)
        # A descriptor of some folder makes os.link() follow the link in /proc.
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)


def _write_linked(path: str, content: dict[str, Any]) -> bool:
    """False when the marker is there, or when the file system has no hard links."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8") as f:
            _fill(f, content)
        with contextlib.suppress(OSError):
            os.link(temporary, path)
            return True
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _write_in_place(path: str, content: dict[str, Any]) -> bool:
    """Without hard links, or where a killed writer left an empty marker; False for a whole one.

    Its lock goes with the writer, so that an empty marker under the lock is nobody's.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags, _FILE_MODE), "w", encoding="utf-8") as f:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(f, fcntl.LOCK_EX)
        if os.fstat(f.fileno()).st_size:
            return False
        _fill(f, content)
        return True


def _fill(f: IO[str], content: dict[str, Any]) -> None:
    os.fchmod(f.fileno(), _FILE_MODE)
    f.write(json.dumps(content, indent=1, sort_keys=True))
    f.flush()
