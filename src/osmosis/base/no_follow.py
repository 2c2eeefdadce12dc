"""Files below a folder that others write in, opened step by step and never through a link.

Whoever may write in the folder could put a link where a path leads; here each part of a path is opened from the
folder before it, and what is opened is what is judged. Only plain files with one name count as files.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DEEPEST = 32


def is_plain(about: os.stat_result) -> bool:
    """Whether it is a file with one name: no folder, link, device or pipe, no second name of another file."""
    return stat.S_ISREG(about.st_mode) and about.st_nlink == 1


def are_parts(parts: Sequence[str]) -> bool:
    """Whether each is the name of one entry of a folder."""
    return bool(parts) and not any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts)


@contextlib.contextmanager
def folder_at(root: Path, parts: Sequence[str], *, create_mode: int | None = None) -> Iterator[int]:
    """A descriptor of the folder `parts` below `root`; with `create_mode`, folders that are missing are made.

    Raises OSError when one of them is a link, no folder, or not there.
    """
    fd = os.open(root, FOLDER)
    with _down(fd, parts, create_mode) as found:
        yield found


@contextlib.contextmanager
def _down(fd: int, parts: Sequence[str], create_mode: int | None) -> Iterator[int]:
    try:
        for part in parts:
            made = create_mode is not None and _made(part, create_mode, fd)
            below = os.open(part, FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
            if made and create_mode is not None:
                os.fchmod(fd, create_mode)  # whatever the umask took away
        yield fd
    finally:
        os.close(fd)


def _made(name: str, mode: int, folder: int) -> bool:
    try:
        os.mkdir(name, mode, dir_fd=folder)
    except FileExistsError:
        return False
    return True


def walk(folder: int, most: int) -> Iterator[tuple[str, os.stat_result]]:
    """Path and facts of everything below an open folder that is no folder, by path; at most `most` of them."""
    for path, _, about in walk_open(folder, most):
        yield path, about


def walk_open(folder: int, most: int) -> Iterator[tuple[str, int, os.stat_result]]:
    """`walk`, with a descriptor of the folder that each is in, which is open until the next one."""
    yield from _walk(folder, "", [most])


def _walk(folder: int, before: str, left: list[int]) -> Iterator[tuple[str, int, os.stat_result]]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        if left[0] <= 0:
            return
        try:
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode):
                if before.count("/") < DEEPEST:
                    below = os.open(name, FOLDER, dir_fd=folder)
                    try:
                        yield from _walk(below, f"{before}{name}/", left)
                    finally:
                        os.close(below)
                continue
        except OSError:
            continue  # it went, or became something else, meanwhile
        left[0] -= 1
        yield f"{before}{name}", folder, about
