"""The door through which the artifacts of a rollout pass: files of others, read and put without being led elsewhere.

Every folder from the run's own downwards is opened without following links, and what is opened is what is judged: only
plain files with one name and of a bounded size are listed and sent, in pieces. A link, a second name of another file,
a device or a pipe is not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.no_follow import FILE, are_parts, folder_at, is_plain, walk

CHUNK = 256 * 1024
MOST_FILES = 10_000
"""Of one rollout; what is beyond is not listed."""


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """An open file. It is read once, by `pieces`, which closes it."""

    fd: int
    size: int

    def pieces(self, offset: int = 0) -> Iterator[bytes]:
        """Its content from `offset` on; a file that grows meanwhile is cut at the size that was told."""
        left = self.size - offset
        os.lseek(self.fd, offset, os.SEEK_SET)
        with open(self.fd, "rb", buffering=0) as file:
            while left > 0 and (piece := file.read(min(CHUNK, left))):
                left -= len(piece)
                yield piece


def opened(root: Path, parts: Sequence[str], *, most_bytes: int) -> ArtifactFile | None:
    """The file `parts` below `root`, a folder that only we write; None when there is none to be had."""
    if not are_parts(parts):
        return None
    try:
        with folder_at(root, parts[:-1]) as folder:
            fd = os.open(parts[-1], FILE, dir_fd=folder)
    except OSError:
        return None
    found = os.fstat(fd)
    if is_plain(found) and found.st_size <= most_bytes:
        return ArtifactFile(fd, found.st_size)
    os.close(fd)
    return None


def put(source: Path, root: Path, parts: Sequence[str]) -> bool:
    """Moves a file of ours to `parts` below `root`, making folders on the way; False where a link is in the way."""
    if not are_parts(parts):
        return False
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with folder_at(root, parts[:-1], create_mode=0o700) as folder:
            os.rename(source, parts[-1], dst_dir_fd=folder)
        return True
    except OSError:  # also a name that is too long
        return False


def listed(root: Path, parts: Sequence[str], *, most_bytes: int) -> list[tuple[str, int]] | None:
    """Path and size of each file below `parts`, by path; None when that is no folder."""
    try:
        with folder_at(root, parts) as folder:
            found = list(walk(folder, MOST_FILES))
    except OSError:
        return None
    return sorted((path, about.st_size) for path, about in found if is_plain(about) and about.st_size <= most_bytes)
