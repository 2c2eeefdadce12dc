"""Objects as files of the data folder: the default, and nothing to set up."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from osmosis.base.no_follow import are_parts
from osmosis.errors import NotFound

from .store import Content, Method, StoredObject

CHUNK = 1024 * 1024


class LocalFolder:
    """Everything below one folder that only the platform writes."""

    elsewhere = False

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, source: Path) -> None:
        place = place_of(self._root, key)
        if source != place:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            source.replace(place)

    def open(self, key: str, offset: int = 0) -> Content:
        path = self.fetch(key)
        return Content(path.stat().st_size, pieces_of(path, offset))

    def fetch(self, key: str) -> Path:
        path = place_of(self._root, key)
        if not path.is_file():
            raise NotFound(f"{key} is no longer there")
        return path

    def delete(self, key: str) -> None:
        remove(place_of(self._root, key))

    def list(self, key: str) -> Iterator[StoredObject]:
        for path in files_below(place_of(self._root, key)):
            try:
                about = path.stat()
            except FileNotFoundError:  # deleted meanwhile
                continue
            yield StoredObject(path.relative_to(self._root).as_posix(), about.st_size, about.st_mtime)

    def sign(self, key: str, *, method: Method, lifetime_s: int) -> str:
        return ""


def place_of(root: Path, key: str) -> Path:
    """Where an object, or a copy of it, lies. NotFound for what is no key, or names everything there is."""
    parts = key.rstrip("/").split("/")
    if len(parts) < 2 or not are_parts(parts):
        raise NotFound(f"{key!r} is no object")
    return root.joinpath(*parts)


def files_below(folder: Path) -> Iterator[Path]:
    """Plain files that are whole, by path; no link is followed."""
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
    """A file, with its folder when it was the last there, or a folder with all in it; what is not there is removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
