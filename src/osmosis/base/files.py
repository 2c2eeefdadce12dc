"""Files that appear whole or not at all: written beside their place, then renamed over it; and files that only grow.

A reader sees the old file or the new one, never half of one, also after a crash. Writes only; what a file means is
its owner's business.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_OURS = secrets.token_hex(4)
"""Processes of other machines, or in other namespaces, may have our number."""
_DRAFTS = itertools.count()


@contextlib.contextmanager
def replacing(path: Path, *, mode: int | None = None, durable: bool = False) -> Iterator[BinaryIO]:
    """A draft to write into, which takes the place of `path` when the block ends; it is removed if the block raises.

    `mode` are the permission bits of the new file (from its first byte on); None: as the umask says.
    With `durable`, content and name are on the disk when this returns.
    """
    draft = beside(path)
    try:
        with _create(draft, mode) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_bytes(path: Path, data: bytes, *, mode: int | None = None, durable: bool = False) -> None:
    """`replacing`, for content that is at hand."""
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(data)


def write_text(path: Path, text: str, *, mode: int | None = None, durable: bool = False) -> None:
    """`write_bytes` of UTF-8, line ends as they are."""
    write_bytes(path, text.encode("utf-8"), mode=mode, durable=durable)


def write_json(
    path: Path, data: object, *, indent: int | None = None, mode: int | None = None, durable: bool = False
) -> None:
    """`write_text` of a JSON document and a line end. Raises ValueError or TypeError for what JSON cannot hold."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=indent)
    write_text(path, text + "\n", mode=mode, durable=durable)


def create_once(path: Path, data: bytes, *, mode: int | None = None) -> bool:
    """A durable file that is never replaced: the first of several processes makes it, the others get False."""
    draft = beside(path)
    try:
        with _create(draft, mode) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def append_line(path: Path, line: bytes) -> None:
    """Adds a line that ends with a newline, or several, on disk when this returns; one that was cut off before stays
    apart."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


class GrowingFile:
    """A file that only grows: what `append` was given is on the disk when it returns.

    With one system call where there is one for that: a thread asks for the interpreter's lock after each, and those who
    have it wait, too. Made when it is missing; not for several threads at once.
    """

    def __init__(self, path: Path) -> None:
        self._syncs = getattr(os, "O_DSYNC", 0)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | self._syncs | getattr(os, "O_BINARY", 0)
        self._handle = os.open(path, flags, 0o666)

    @property
    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def append(self, data: bytes) -> None:
        """Raises OSError when the disk refuses it; some of it may be in the file then."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._handle, left) :]
        if not self._syncs:
            os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def beside(path: Path) -> Path:
    """A name for a draft of `path`, in the same folder, that no other writer uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{_OURS}-{next(_DRAFTS)}.part")


def sync_folder(folder: Path) -> None:
    """Makes a rename or a new file in this folder durable."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _create(draft: Path, mode: int | None) -> BinaryIO:
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    if mode is not None and os.name == "posix":
        os.fchmod(handle, mode)  # whatever the umask took away
    return os.fdopen(handle, "wb")
