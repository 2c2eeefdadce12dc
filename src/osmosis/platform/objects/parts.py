"""Uploads in parts: each part is an object under its number; they are joined once all have arrived."""

import hashlib
import time
from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from fastapi import Depends, Request, Response

from osmosis.base.files import replacing
from osmosis.errors import Forbidden, NotFound, ValidationError
from osmosis.platform import Platform
from osmosis.platform.objects.store import Method, Objects, StoredObject
from osmosis.records.api.datasets import UploadPart, UploadPlan

UPLOADS = "objects/uploads/"
DATASETS = "objects/datasets/"
IMPORTS = "objects/imports/"


def upload_key(upload_id: str) -> str:
    return f"{UPLOADS}{upload_id}/"


def dataset_key(dataset_id: str) -> str:
    return f"{DATASETS}{dataset_id}/"


@dataclass(frozen=True, slots=True)
class Parts:
    """How a file of `size` bytes is sent: in parts of `each` bytes, or in one piece (0)."""

    size: int
    each: int

    @classmethod
    def of(cls, size: int, part_bytes: int) -> "Parts":
        return cls(size, part_bytes if size > 2 * part_bytes else 0)

    @property
    def count(self) -> int:
        return max(1, -(-self.size // self.each)) if self.each else 1

    def bytes_of(self, number: int) -> int:
        return min(self.each, self.size - (number - 1) * self.each) if self.each else self.size

    def plan(self, platform: Platform, key: str, path: str, numbers: Iterable[int] | None = None) -> UploadPlan:
        lifetime = platform.settings.url_lifetime_s
        if not self.each:
            url = object_url(platform, f"{key}1", f"{path}/1", method="PUT")
            return UploadPlan(expires_in=lifetime, method="simple", presigned_url=url, upload_headers={})
        parts = []
        for number in range(1, self.count + 1) if numbers is None else numbers:
            url = object_url(platform, f"{key}{number}", f"{path}/{number}", method="PUT")
            parts.append(UploadPart(part_number=number, presigned_url=url, size=self.bytes_of(number)))
        sizes = {"part_size": self.each, "total_parts": self.count}
        return UploadPlan(expires_in=lifetime, method="multipart", presigned_urls=parts, **sizes)


async def receive_part(
    platform: Platform, key: str, parts: Parts, number: int, stream: AsyncIterable[bytes]
) -> Response:
    """Write one part below `key` and answer with its ETag (quoted MD5); it appears complete or not at all."""
    folder, limit = platform.settings.located(key), parts.bytes_of(number)
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
    return Response(status_code=200, headers={"ETag": f'"{digest.hexdigest()}"'})


def list_parts(objects: Objects, key: str) -> dict[int, StoredObject]:
    parts = {part.key.rpartition("/")[2]: part for part in objects.list(key)}
    return {int(name): part for name, part in parts.items() if name.isdigit()}


def join_parts(objects: Objects, key: str, parts: int, target: Path, *, announced: int) -> tuple[int, str]:
    """Join the parts into one durable file and return `(bytes, sha256)`. Raise ValidationError."""
    arrived_parts = list_parts(objects, key)
    missing = next((number for number in range(1, parts + 1) if number not in arrived_parts), None)
    if missing is not None:
        raise _missing(missing, parts)
    arrived = sum(arrived_parts[number].size for number in range(1, parts + 1))
    if arrived > announced:
        message = f"{arrived} bytes arrived instead of the announced {announced}"
        raise ValidationError(message, hint="upload the file again")
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256()
    size = 0
    with replacing(target, durable=True) as out:
        for number in range(1, parts + 1):
            try:
                content = objects.open(arrived_parts[number].key)
            except NotFound:  # deleted in between
                raise _missing(number, parts) from None
            for piece in content.pieces:
                digest.update(piece)
                size += len(piece)
                out.write(piece)
    return size, digest.hexdigest()


def store_joined(
    platform: Platform, parts: Parts, parts_key: str, key: str, *, path: str, sha256: str | None, hint: str
) -> None:
    """Join the parts into the object `key`; parts with other content than announced are dropped."""
    target = platform.settings.located(key)
    if join_parts(platform.objects, parts_key, parts.count, target, announced=parts.size) != (parts.size, sha256):
        target.unlink(missing_ok=True)
        platform.objects.delete(parts_key)
        message = f"{path} does not match the announced size or checksum"
        raise ValidationError(message, hint=hint, field="path")
    platform.objects.put(key, target)


def _missing(number: int, parts: int) -> ValidationError:
    return ValidationError(f"part {number} of {parts} was not uploaded", hint="upload the file again")


def part_etag(objects: Objects, part: StoredObject) -> str:
    if part.etag:
        return part.etag
    digest = hashlib.md5(usedforsecurity=False)
    for piece in objects.open(part.key).pieces:
        digest.update(piece)
    return digest.hexdigest()


def object_url(platform: Platform, key: str, path: str, *, method: Method) -> str:
    """Return a URL for the object `key`: the store's own, else the platform's for `path` below `/api/objects/`."""
    lifetime_s = platform.settings.url_lifetime_s
    return platform.objects.sign(key, method=method, lifetime_s=lifetime_s) or sign_url(platform, path, method=method)


def sign_url(platform: Platform, path: str, *, method: str, now: float | None = None) -> str:
    expires = int(now if now is not None else time.time()) + platform.settings.url_lifetime_s
    query = urlencode({"expires": expires, "signature": platform.vault.sign(f"{method} {path} {expires}")})
    return f"{platform.settings.url}/api/objects/{quote(path)}?{query}"


def check_url(platform: Platform, path: str, *, method: str, expires: int, signature: str) -> None:
    if not platform.vault.is_signed(f"{method} {path} {expires}", signature):
        raise Forbidden("the signature of this URL is not valid")
    if time.time() > expires:
        raise Forbidden("this URL has expired; request a new one")


def check_signature(request: Request, expires: int, signature: str) -> None:
    path = str(request.scope["path"]).removeprefix("/api/objects/")
    check_url(request.app.state.platform, path, method=request.method, expires=expires, signature=signature)


SIGNED = [Depends(check_signature)]
"""The dependency of routes below `/api/objects/`: whoever has the signed address may use it."""
