"""Files in the object folder, and the signed addresses under which they are sent and fetched.

A signed URL works without a login, for one purpose, until its time is over. Paths are made of ids of ours only.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import AsyncIterable
from pathlib import Path
from urllib.parse import quote, urlencode

from osmosis.base.files import replacing
from osmosis.errors import Forbidden, ValidationError

from . import Platform

CHUNK = 1024 * 1024


def sign_url(platform: Platform, path: str, *, method: str, now: float | None = None) -> str:
    """An absolute URL for one path below `/api/objects/` and one method."""
    expires = int(now if now is not None else time.time()) + platform.settings.url_lifetime_s
    signature = platform.vault.sign(f"{method} {path} {expires}")
    query = urlencode({"expires": expires, "signature": signature})
    return f"{platform.settings.url}/api/objects/{quote(path)}?{query}"


def check_url(platform: Platform, path: str, *, method: str, expires: int, signature: str) -> None:
    """Forbidden when the signature is not ours or its time is over."""
    if not platform.vault.is_signed(f"{method} {path} {expires}", signature):
        raise Forbidden("the signature of this URL is not valid")
    if time.time() > expires:
        raise Forbidden("this URL has expired; request a new one")


def upload_dir(platform: Platform, upload_id: str) -> Path:
    return platform.settings.objects_dir / "uploads" / upload_id


def dataset_dir(platform: Platform, dataset_id: str) -> Path:
    return platform.settings.objects_dir / "datasets" / dataset_id


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


def join_parts(folder: Path, parts: int, target: Path) -> tuple[int, str]:
    """Put the parts together as one durable file: `(bytes, sha256)`. ValidationError names a missing part."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256()
    size = 0
    with replacing(target, durable=True) as out:
        for number in range(1, parts + 1):
            if not (folder / str(number)).exists():
                raise ValidationError(f"part {number} of {parts} was not uploaded", hint="upload the file again")
            with (folder / str(number)).open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
                    out.write(chunk)
    return size, digest.hexdigest()


def etag_of(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def remove_tree(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
