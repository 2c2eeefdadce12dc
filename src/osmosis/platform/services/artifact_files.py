"""The door through which the artifacts of a rollout leave: files of others, read without being led elsewhere.

Every folder from the run's own downwards is opened without following links, and what is opened is what is judged: only
plain files with one name and of a bounded size are listed and sent, in pieces. A link, a second name of another file,
a device or a pipe is not there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CHUNK = 256 * 1024
MOST_FILES = 10_000
"""Of one rollout; what is beyond is not listed."""
DEEPEST = 32
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """An open file. It is read once, by `pieces`, which closes it."""

    fd: int
    size: int

    def pieces(self) -> Iterator[bytes]:
        """Its content; a file that grows meanwhile is cut at the size that was told."""
        left = self.size
        with open(self.fd, "rb", buffering=0) as file:
            while left > 0 and (piece := file.read(min(CHUNK, left))):
                left -= len(piece)
                yield piece


def opened(root: Path, parts: Sequence[str], *, most_bytes: int) -> ArtifactFile | None:
    """The file `parts` below `root`, a folder that only the platform writes; None when there is none to be had."""
    *folders, name = parts
    if not name or any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        return None
    with _folder(root, folders) as folder:
        if folder is None:
            return None
        try:
            fd = os.open(name, _FILE, dir_fd=folder)
        except OSError:
            return None
        found = os.fstat(fd)
        if _plain(found, most_bytes):
            return ArtifactFile(fd, found.st_size)
        os.close(fd)
    return None


def listed(root: Path, parts: Sequence[str], *, most_bytes: int) -> list[tuple[str, int]] | None:
    """Path and size of each file below `parts`, by path; None when that is no folder."""
    with _folder(root, parts) as folder:
        if folder is None:
            return None
        return sorted(_walk(folder, "", most_bytes, [MOST_FILES]))


def _walk(folder: int, before: str, most_bytes: int, left: list[int]) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if left[0] <= 0:
            return
        try:
            about = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode) and before.count("/") < DEEPEST:
                below = os.open(entry.name, _FOLDER, dir_fd=folder)
                try:
                    yield from _walk(below, f"{before}{entry.name}/", most_bytes, left)
                finally:
                    os.close(below)
        except OSError:
            continue  # it went, or became something else, meanwhile
        if _plain(about, most_bytes):
            left[0] -= 1
            yield f"{before}{entry.name}", about.st_size


def _plain(about: os.stat_result, most_bytes: int) -> bool:
    return stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and about.st_size <= most_bytes


@contextlib.contextmanager
def _folder(root: Path, parts: Sequence[str]) -> Iterator[int | None]:
    """The folder `parts` below `root`, opened step by step; None when one of them is none, or a link."""
    fd: int | None = None
    try:
        fd = os.open(root, _FOLDER)
        for part in parts:
            below = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
    except OSError:
        if fd is not None:
            os.close(fd)
        fd = None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)
