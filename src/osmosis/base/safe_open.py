"""Files below a folder that others write in, opened without following a link. Each part of a path is opened from the
folder before it, and what is opened is what is checked. Only plain files with one name count as files."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DEEPEST = 32
SET_ID = stat.S_ISUID | stat.S_ISGID


def is_plain(about: os.stat_result) -> bool:
    return stat.S_ISREG(about.st_mode) and about.st_nlink == 1


def are_parts(parts: Sequence[str]) -> bool:
    return bool(parts) and not any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts)


@contextlib.contextmanager
def folder_at(root: Path, parts: Sequence[str], *, create_mode: int | None = None) -> Iterator[int]:
    with _down(os.open(root, FOLDER), parts, create_mode) as folder_fd:
        yield folder_fd


@contextlib.contextmanager
def _down(fd: int, parts: Sequence[str], create_mode: int | None) -> Iterator[int]:
    try:
        for part in parts:
            created = create_mode is not None and _make_folder(part, create_mode, fd)
            below = os.open(part, FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
            if created and create_mode is not None:
                os.fchmod(fd, create_mode)  # whatever the umask took away
        yield fd
    finally:
        os.close(fd)


def _make_folder(name: str, mode: int, folder: int) -> bool:
    try:
        os.mkdir(name, mode, dir_fd=folder)
    except FileExistsError:
        return False
    return True


def walk(folder: int, most: int) -> Iterator[tuple[str, os.stat_result]]:
    for path, _, about in walk_open(folder, most):
        yield path, about


def walk_open(folder: int, most: int) -> Iterator[tuple[str, int, os.stat_result]]:
    """Yield as `walk` does, with a descriptor of the containing folder that is open until the next entry."""
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


def clean_names(folder: int, clean: Callable[[str], str], left: list[int]) -> None:
    """Clean the names of at most `left[0]` entries, with a number where one exists, and take set-user-ID bits away."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        left[0] -= 1
        if left[0] < 0:
            return
        with contextlib.suppress(OSError):  # it went, or became something else, meanwhile
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode) or (about.st_mode & SET_ID and is_plain(about)):
                with _opened(name, FOLDER if stat.S_ISDIR(about.st_mode) else FILE, folder) as entry:
                    if stat.S_ISDIR(about.st_mode):
                        clean_names(entry, clean, left)
                    else:
                        os.fchmod(entry, about.st_mode & 0o777)
            if (cleaned := clean(name)) != name:
                used = {*os.listdir(folder)}
                free = (f"{cleaned}-{number}" if number else cleaned for number in range(len(used) + 1))
                os.rename(name, next(each for each in free if each not in used), src_dir_fd=folder, dst_dir_fd=folder)


@contextlib.contextmanager
def _opened(name: str, flags: int, folder: int) -> Iterator[int]:
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


CHUNK = 256 * 1024
MOST_FILES = 10_000  # Files of one rollout; more are not listed


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    fd: int
    size: int

    def pieces(self, offset: int = 0) -> Iterator[bytes]:
        left = self.size - offset
        os.lseek(self.fd, offset, os.SEEK_SET)
        with open(self.fd, "rb", buffering=0) as file:
            while left > 0 and (piece := file.read(min(CHUNK, left))):
                left -= len(piece)
                yield piece


def open_artifact(root: Path, parts: Sequence[str], *, most_bytes: int) -> ArtifactFile | None:
    if not are_parts(parts):
        return None
    try:
        with folder_at(root, parts[:-1]) as folder:
            fd = os.open(parts[-1], FILE, dir_fd=folder)
    except OSError:
        return None
    about = os.fstat(fd)
    if is_plain(about) and about.st_size <= most_bytes:
        return ArtifactFile(fd, about.st_size)
    os.close(fd)
    return None


def store_artifact(source: Path, root: Path, parts: Sequence[str]) -> bool:
    if not are_parts(parts):
        return False
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with folder_at(root, parts[:-1], create_mode=0o700) as folder:
            os.rename(source, parts[-1], dst_dir_fd=folder)
        return True
    except OSError:  # also a name that is too long
        return False


def list_artifacts(root: Path, parts: Sequence[str], *, most_bytes: int) -> list[tuple[str, int]] | None:
    if not are_parts(parts):
        return None
    try:
        with folder_at(root, parts) as folder:
            entries = list(walk(folder, MOST_FILES))
    except OSError:
        return None
    return sorted((path, about.st_size) for path, about in entries if is_plain(about) and about.st_size <= most_bytes)
