"""Between the data folder and a store elsewhere: what was made here is stored there, what is needed here is fetched.

Does nothing when objects are in the data folder. What is sent is plain and whole, and read through the door that
follows no link: jobs write in some of these folders.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from osmosis.base.no_follow import FILE, folder_at, is_plain
from osmosis.errors import OsmosisError
from osmosis.platform import Platform

from .local_folder import files_below
from .store import Objects

log = logging.getLogger(__name__)

STORED = ("objects", "models", "runs")
"""The folders of the data folder that hold objects."""
MARK = "/artifacts/"
"""Only what is below such a folder is kept of a run; the rest of its folder is the job's."""


def is_object(key: str) -> bool:
    """Whether a file of the data folder is kept in the store: not a log, a checkout or a part on its way."""
    if key.startswith("runs/"):
        return MARK in key
    return key.startswith(("objects/datasets/", "objects/imports/", "models/base/", "models/runs/"))


def publish(objects: Objects, root: Path, *keys: str) -> int:
    """Store what lies in the data folder `root` below these keys and is not in the store; how many files that were."""
    if not objects.elsewhere:
        return 0
    count = 0
    for key in keys:
        there = {one.key: one.size for one in objects.list(key)}
        for path in files_below(root / key):
            name = path.relative_to(root).as_posix()
            if is_object(name) and there.get(name) != path.stat().st_size:
                count += _put(objects, root, name)
    return count


def _put(objects: Objects, root: Path, key: str) -> bool:
    """What is stored is what was opened: a job could put a link where the file was."""
    *folder, name = key.split("/")
    try:
        with folder_at(root, folder) as opened:
            fd = os.open(name, FILE, dir_fd=opened)
    except OSError:
        return False
    try:
        if not is_plain(os.fstat(fd)):
            return False
        objects.put(key, Path(f"/dev/fd/{fd}") if key.startswith("runs/") else root / key)
    except FileNotFoundError:  # removed meanwhile
        return False
    finally:
        os.close(fd)
    return True


def publish_later(platform: Platform, *keys: str) -> None:
    """`publish` as the end of something that does not wait for it. What fails is stored by the next start."""
    try:
        if count := publish(platform.objects, platform.settings.data_dir, *keys):
            log.info("%d files of %s are in the object store", count, ", ".join(keys))
    except OsmosisError as error:
        log.warning("files of %s are not in the object store yet: %s", ", ".join(keys), error.message)


def publish_all(platform: Platform) -> threading.Thread | None:
    """In a thread, at a start: what came before there was a store elsewhere, or while it did not answer."""
    if not platform.objects.elsewhere:
        return None
    keys = [f"{name}/" for name in STORED]
    thread = threading.Thread(target=publish_later, args=(platform, *keys), daemon=True, name="publish")
    thread.start()
    return thread


def fetch_all(platform: Platform, *places: str, missing_ok: bool = False) -> None:
    """Copies of what these paths name, files or folders, as far as they are objects of the platform's. NotFound when
    there is nothing, unless that is as well."""
    if not platform.objects.elsewhere:
        return
    for key in _keys(platform, places):
        below = [one.key for one in platform.objects.list(f"{key}/")]
        for one in below or ([] if missing_ok else [key]):
            platform.objects.fetch(one)


def _keys(platform: Platform, places: tuple[str, ...]) -> Iterator[str]:
    for place in places:
        path = Path(place)
        if place and path.is_absolute() and path.is_relative_to(platform.settings.data_dir):
            yield platform.settings.stored(path)
