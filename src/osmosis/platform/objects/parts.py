"""What arrives in parts: each an object of its own under the number it has, put together once all are there."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable
from pathlib import Path

from osmosis.base.files import replacing
from osmosis.errors import NotFound, ValidationError

from .store import Objects, StoredObject

UPLOADS = "objects/uploads/"
DATASETS = "objects/datasets/"
IMPORTS = "objects/imports/"


def upload_key(upload_id: str) -> str:
    """Where the parts of a dataset arrive."""
    return f"{UPLOADS}{upload_id}/"


def dataset_key(dataset_id: str) -> str:
    """Where the files of a dataset are, one for each upload."""
    return f"{DATASETS}{dataset_id}/"


async def store_part(folder: Path, number: int, stream: AsyncIterable[bytes], *, limit: int) -> str:
    """Write one part; its ETag (MD5, quoted) is the answer. The part appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.md5(usedforsecurity=False)
    size = 0
    with replacing(folder / str(number)) as file:
        async for chunk in stream:
            size += len(chunk)
            if size > limit:
                raise ValidationError(f"part {number} is larger than announced ({limit} bytes)")
            digest.update(chunk)
            file.write(chunk)
    return f'"{digest.hexdigest()}"'


def parts_there(objects: Objects, key: str) -> dict[int, StoredObject]:
    """The parts that arrived, by number."""
    named = {one.key.rpartition("/")[2]: one for one in objects.list(key)}
    return {int(name): one for name, one in named.items() if name.isdigit()}


def join_parts(objects: Objects, key: str, parts: int, target: Path, *, announced: int) -> tuple[int, str]:
    """Put the parts together as one durable file: `(bytes, sha256)`. ValidationError names a missing part, or says that
    more arrived than was announced, before any of it is read."""
    here = parts_there(objects, key)
    missing = next((number for number in range(1, parts + 1) if number not in here), None)
    if missing is not None:
        raise _missing(missing, parts)
    arrived = sum(here[number].size for number in range(1, parts + 1))
    if arrived > announced:
        raise ValidationError(
            f"{arrived} bytes arrived instead of the announced {announced}", hint="upload the file again"
        )
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256()
    size = 0
    with replacing(target, durable=True) as out:
        for number in range(1, parts + 1):
            try:
                content = objects.open(here[number].key)
            except NotFound:  # deleted in between
                raise _missing(number, parts) from None
            for piece in content.pieces:
                digest.update(piece)
                size += len(piece)
                out.write(piece)
    return size, digest.hexdigest()


def _missing(number: int, parts: int) -> ValidationError:
    return ValidationError(f"part {number} of {parts} was not uploaded", hint="upload the file again")


def etag_of(objects: Objects, part: StoredObject) -> str:
    """What the sender of a part was told, without quotes."""
    if part.etag:
        return part.etag
    digest = hashlib.md5(usedforsecurity=False)
    for piece in objects.open(part.key).pieces:
        digest.update(piece)
    return digest.hexdigest()
