"""Bytes to and from presigned URLs: streamed, retried, in parts when the platform says so.

Refuses plain http except on loopback or at the platform's own address.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit

from osmosis.base.backoff import backoff_delay
from osmosis.base.files import replacing
from osmosis.base.net import is_loopback
from osmosis.errors import NetworkError, NotFound, PlatformError, ValidationError
from osmosis.records.contract.uploads import SentPart, UploadPlan

from .lean_httpx import httpx
from .settings import trust

Result = TypeVar("Result")
Progress = Callable[[int], None]
"""Called with the number of bytes just moved (negative when a try starts over)."""

CHUNK = 1024 * 1024
TRIES = 5
TIMEOUT = httpx.Timeout(60.0, read=120.0)


class Transfer:
    """Moves files for one platform."""

    def __init__(self, platform_url: str, transport: httpx.BaseTransport | None = None, *, ca_file: str = "") -> None:
        self._origin = urlsplit(platform_url).netloc
        self._ca_file = ca_file
        """Certificates to know the platform by; an object store elsewhere is known by those of everybody."""
        self._transport = transport

    def upload(self, path: Path, plan: UploadPlan, progress: Progress | None = None) -> list[SentPart]:
        """Send a file as the platform's `upload` answer says; the parts to name on completion (may be none)."""
        total = path.stat().st_size
        if plan.method != "multipart" or plan.part_size is None:
            self._put(plan.presigned_url or "", path, (0, total), plan.upload_headers, progress)
            return []
        size = plan.part_size
        parts = []
        for part in plan.presigned_urls:
            number = part.part_number
            start = (number - 1) * size
            span = (start, min(size, total - start))
            etag = self._put(part.presigned_url, path, span, {}, progress)
            if not etag:
                raise PlatformError(f"the object store sent no ETag for part {number} of {path.name}")
            parts.append(SentPart(PartNumber=number, ETag=etag))
        return parts

    def download(self, url: str, destination: Path, progress: Progress | None = None) -> int:
        """Fetch a URL into a file; its size in bytes. Nothing half-written is left under the final name."""
        destination.parent.mkdir(parents=True, exist_ok=True)
        with replacing(destination) as out:
            size = self._tried(url, progress, lambda client, moved: _fetch(client, url, out, moved))
        return size

    def _put(
        self, url: str, path: Path, span: tuple[int, int], headers: dict[str, str], progress: Progress | None
    ) -> str | None:
        def send(client: httpx.Client, moved: Progress) -> str | None:
            length = {"Content-Length": str(span[1])}
            response = client.put(url, content=_read(path, *span, moved), headers={**headers, **length})
            _raise_for(response, f"sending {path.name}")
            tag: str | None = response.headers.get("ETag")
            return tag

        return self._tried(url, progress, send)

    def _tried(self, url: str, progress: Progress | None, work: Callable[[httpx.Client, Progress], Result]) -> Result:
        self._check(url)
        trust_env = not is_loopback(url)
        verify = trust(self._ca_file if urlsplit(url).netloc == self._origin else "")
        with httpx.Client(timeout=TIMEOUT, transport=self._transport, trust_env=trust_env, verify=verify) as client:
            for attempt in range(TRIES):
                moved = _Counter(progress)
                try:
                    return work(client, moved)
                except (_Again, httpx.TransportError) as error:
                    moved.undo()
                    if attempt == TRIES - 1:
                        raise NetworkError(f"transfer failed after {TRIES} tries: {error}") from error
                    time.sleep(backoff_delay(attempt + 1, base_s=1.0, max_s=8.0))
        raise AssertionError("unreachable")

    def _check(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "https" or is_loopback(url) or parts.netloc == self._origin:
            return
        raise ValidationError(f"the platform returned an unsafe transfer URL: {parts.scheme}://{parts.netloc}")


class _Again(Exception):
    """A failure that a retry may fix."""


class _Counter:
    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._moved = 0

    def __call__(self, count: int) -> None:
        self._moved += count
        if self._progress:
            self._progress(count)

    def undo(self) -> None:
        if self._progress and self._moved:
            self._progress(-self._moved)


def _read(path: Path, start: int, length: int, moved: Progress) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while length > 0 and (chunk := file.read(min(CHUNK, length))):
            length -= len(chunk)
            yield chunk
            moved(len(chunk))


def _fetch(client: httpx.Client, url: str, out: BinaryIO, moved: Progress) -> int:
    size = 0
    out.seek(0)
    out.truncate()  # what an earlier try left
    with client.stream("GET", url) as response:
        _raise_for(response, "fetching")
        for chunk in response.iter_bytes(CHUNK):
            out.write(chunk)
            size += len(chunk)
            moved(len(chunk))
    return size


def _raise_for(response: httpx.Response, what: str) -> None:
    if response.is_success:
        return
    status = response.status_code
    if status == 429 or status >= 500:
        raise _Again(f"{what}: HTTP {status}")
    text = response.read().decode("utf-8", "replace").strip()[:200]
    if status in (403, 404):
        raise NotFound(f"{what}: the object store answered HTTP {status}" + (f": {text}" if text else ""))
    raise PlatformError(f"{what}: the object store answered HTTP {status}" + (f": {text}" if text else ""))
