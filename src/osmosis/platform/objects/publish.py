"""Copy between the data folder and an object store elsewhere, following no link: jobs write in these folders."""

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from osmosis.base.safe_open import FILE, folder_at, is_plain
from osmosis.errors import OsmosisError
from osmosis.platform import Platform
from osmosis.platform.objects.store import Objects, list_files

log = logging.getLogger(__name__)

STORED = ("objects", "models", "runs")
MARK = "/artifacts/"


def is_object(key: str) -> bool:
    if key.startswith("runs/"):
        return MARK in key
    return key.startswith(("objects/datasets/", "objects/imports/", "models/base/", "models/runs/"))


def publish(objects: Objects, root: Path, *keys: str) -> int:
    if not objects.elsewhere:
        return 0
    count = 0
    for key in keys:
        sizes = {stored.key: stored.size for stored in objects.list(key)}
        for path in list_files(root / key):
            name = path.relative_to(root).as_posix()
            if is_object(name) and sizes.get(name) != path.stat().st_size:
                count += _store_file(objects, root, name)
    return count


def _store_file(objects: Objects, root: Path, key: str) -> bool:
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
    try:
        if count := publish(platform.objects, platform.settings.data_dir, *keys):
            log.info("%d files of %s are in the object store", count, ", ".join(keys))
    except OsmosisError as error:
        log.warning("files of %s are not in the object store yet: %s", ", ".join(keys), error.message)


def publish_all(platform: Platform) -> threading.Thread | None:
    if not platform.objects.elsewhere:
        return None
    keys = [f"{name}/" for name in STORED]
    thread = threading.Thread(target=publish_later, args=(platform, *keys), daemon=True, name="publish")
    thread.start()
    return thread


def fetch_all(platform: Platform, *places: str, missing_ok: bool = False) -> None:
    if not platform.objects.elsewhere:
        return
    for key in _keys(platform, places):
        below = [stored.key for stored in platform.objects.list(f"{key}/")]
        for stored in below or ([] if missing_ok else [key]):
            platform.objects.fetch(stored)


def _keys(platform: Platform, places: tuple[str, ...]) -> Iterator[str]:
    for location in places:
        path = Path(location)
        if location and path.is_absolute() and path.is_relative_to(platform.settings.data_dir):
            yield platform.settings.stored(path)
