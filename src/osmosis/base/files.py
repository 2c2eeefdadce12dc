"""Atomic and durable files: a reader sees the old content or the new, never half, also after a crash."""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from osmosis.base.jsonable import JsonObject
from osmosis.errors import DiskFull

if sys.version_info >= (3, 11):
    import tomllib as tomllib
else:  # pragma: no cover
    import tomli as tomllib  # noqa: F401  # others import it from this module

_OURS = secrets.token_hex(4)
_DRAFTS = itertools.count()


@contextlib.contextmanager
def replacing(path: Path, *, mode: int | None = None, durable: bool = False) -> Iterator[BinaryIO]:
    """Yield a draft that replaces `path` when the block ends, and is removed if the block raises. `mode`: permission
    bits from the first byte on; None: by the umask. With `durable`, content and name are on the disk on return."""
    draft = draft_path(path)
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
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(data)


def write_text(path: Path, text: str, *, mode: int | None = None, durable: bool = False) -> None:
    write_bytes(path, text.encode("utf-8"), mode=mode, durable=durable)


def write_json(
    path: Path, data: object, *, indent: int | None = None, mode: int | None = None, durable: bool = False
) -> None:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=indent)
    write_text(path, text + "\n", mode=mode, durable=durable)


def read_object(path: Path) -> JsonObject:
    """Return the object in a JSON file; an empty one when the file is missing or holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def create_once(path: Path, data: bytes, *, mode: int | None = None) -> bool:
    draft = draft_path(path)
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
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


class GrowingFile:
    """An append-only file, on the disk when `append` returns (O_DSYNC saves a second system call). Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._syncs = getattr(os, "O_DSYNC", 0)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | self._syncs | getattr(os, "O_BINARY", 0)
        self._handle = os.open(path, flags, 0o666)

    @property
    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def append(self, data: bytes) -> None:
        """Append; raise OSError when the disk refuses it, perhaps after a part of the data."""
        if not os.fstat(self._handle).st_nlink:
            raise FileNotFoundError("it was deleted while it was written")
        left = memoryview(data)
        while left:
            left = left[os.write(self._handle, left) :]
        if not self._syncs:
            os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def draft_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{_OURS}-{next(_DRAFTS)}.part")


def sync_folder(folder: Path) -> None:
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


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DATABASES = ("database or disk is full", "no space left on device", "could not extend file")


def find_full_disk(problem: BaseException, *, where: str) -> DiskFull | None:
    """Return the error to show if a full disk, quota or file-size limit of `where` caused `problem`; else None."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            path = next((str(name) for name in (cause.filename2, cause.filename) if name), "")
            return _disk_full(where, f" ({path})" if path else "")
        database = getattr(cause, "orig", None)
        if isinstance(database, Exception) and any(text in str(database).lower() for text in _DATABASES):
            return _disk_full(where, " (its database could not write)")
        cause = cause.__cause__ or cause.__context__
    return None


def _disk_full(where: str, detail: str) -> DiskFull:
    return DiskFull(f"the disk of {where} is full{detail}", hint="free some space there, then do it again: df -h")


_BLOCK = 1 << 20


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
