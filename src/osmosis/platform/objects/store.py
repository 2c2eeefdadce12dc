"""Object stores. An object never changes; its key is the path of its copy below the data folder."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from osmosis.base.safe_open import are_parts
from osmosis.errors import NotFound

Method = Literal["GET", "PUT"]


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size: int
    changed: float
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    size: int
    pieces: Iterator[bytes]


class Objects(Protocol):
    """A store; its methods raise NetworkError when it cannot be reached or refuses."""

    def __hash__(self) -> int: ...

    @property
    def elsewhere(self) -> bool:
        """Return whether objects are apart from the data folder, whose files are copies then."""

    def put(self, key: str, source: Path) -> None:
        """Store the content of a file; a store in the data folder moves the file."""

    def open(self, key: str, offset: int = 0) -> Content: ...

    def fetch(self, key: str) -> Path: ...

    def delete(self, key: str) -> None:
        """Delete an object, or everything below a key that ends in `/`, with copies; missing ones are no error."""

    def list(self, key: str) -> Iterator[StoredObject]: ...

    def sign(self, key: str, *, method: Method, lifetime_s: int) -> str:
        """Return a URL to send or fetch the object without the platform; empty where the store has none."""


CHUNK = 1024 * 1024


class LocalFolder:
    elsewhere = False

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, source: Path) -> None:
        path = object_path(self._root, key)
        if source != path:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            source.replace(path)

    def open(self, key: str, offset: int = 0) -> Content:
        path = self.fetch(key)
        return Content(path.stat().st_size, pieces_of(path, offset))

    def fetch(self, key: str) -> Path:
        path = object_path(self._root, key)
        if not path.is_file():
            raise NotFound(f"{key} is no longer there")
        return path

    def delete(self, key: str) -> None:
        remove(object_path(self._root, key))

    def list(self, key: str) -> Iterator[StoredObject]:
        for path in list_files(object_path(self._root, key)):
            try:
                about = path.stat()
            except FileNotFoundError:  # deleted meanwhile
                continue
            yield StoredObject(path.relative_to(self._root).as_posix(), about.st_size, about.st_mtime)

    def sign(self, key: str, *, method: Method, lifetime_s: int) -> str:
        return ""


def object_path(root: Path, key: str) -> Path:
    parts = key.rstrip("/").split("/")
    if len(parts) < 2 or not are_parts(parts):
        raise NotFound(f"{key!r} is no object")
    return root.joinpath(*parts)


def list_files(folder: Path) -> Iterator[Path]:
    """Iterate over complete plain files, by path; follows no link."""
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))  # others are being written
        for name in sorted(names):
            path = Path(at, name)
            if not (name.startswith(".") and name.endswith(".part")) and path.is_file() and not path.is_symlink():
                yield path


def pieces_of(path: Path, offset: int = 0) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while piece := file.read(CHUNK):
            yield piece


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
