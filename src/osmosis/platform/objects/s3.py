"""Objects in an S3 bucket; the data folder has working copies, checked against the stored checksum."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis.base.files import replacing
from osmosis.base.installation import extra_command
from osmosis.base.locks import locked
from osmosis.errors import NetworkError, NotFound, PlatformError, UsageError
from osmosis.platform.objects.store import Content, Method, StoredObject, object_path, remove

if TYPE_CHECKING:
    from obstore.store import S3Store

SCHEME = "s3://"
PART = 8 * 1024 * 1024
MOST_PARTS = 9_000
AT_ONCE = 4
CHUNK = 1024 * 1024
DIGEST = "sha256"
RETRIES = 3
CODE = re.compile(r"<Code>([^<]+)</Code>(?:\s*<Message>([^<]*)</Message>)?")


class S3Objects:
    elsewhere = True

    def __init__(self, url: str, root: Path, environ: Mapping[str, str], *, limit_s: float = 30.0) -> None:
        self.url = url
        self._root = root
        self.endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
        with self._name_errors("the bucket cannot be used"):
            self._store = _open(url, self.endpoint, environ, timedelta(seconds=limit_s))

    def put(self, key: str, source: Path) -> None:
        object_path(self._root, key)
        size = source.stat().st_size
        with source.open("rb") as file, self._name_errors(f"{key} cannot be stored"):
            digest = hashlib.sha256()
            while piece := file.read(CHUNK):
                digest.update(piece)
            file.seek(0)
            self._store.put(
                key,
                file,
                attributes={DIGEST: digest.hexdigest()},
                use_multipart=size > PART,
                chunk_size=max(PART, size // MOST_PARTS + 1),
                max_concurrency=AT_ONCE,
            )

    def open(self, key: str, offset: int = 0) -> Content:
        with self._name_errors(f"{key} cannot be read"):
            size = self._store.head(key)["size"]
            if offset >= size:  # which is no range
                return Content(size, iter(()))
            result = self._store.get(key, options={"range": {"offset": offset}})
            return Content(size, self._pieces(result.stream(min_chunk_size=CHUNK), key))

    def _pieces(self, stream: Any, key: str) -> Iterator[bytes]:
        with self._name_errors(f"{key} cannot be read"):
            for piece in stream:
                yield bytes(piece)

    def fetch(self, key: str) -> Path:
        target = object_path(self._root, key)
        bucket = hashlib.sha256(key.encode()).hexdigest()[:2]
        with locked(self._root / "locks" / f"fetch-{bucket}.lock"):
            if target.is_file():
                os.utime(target)  # copies that nobody uses are removed
                return target
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._name_errors(f"{key} cannot be fetched"):
                result = self._store.get(key)
                expected = result.attributes.get(DIGEST)
                digest = hashlib.sha256()
                with replacing(target) as out:
                    for piece in result.stream(min_chunk_size=CHUNK):
                        digest.update(piece)
                        out.write(piece)
                    if expected is not None and digest.hexdigest() != expected:
                        raise PlatformError(f"{key} is damaged: its content is not what was stored")
        return target

    def delete(self, key: str) -> None:
        path = object_path(self._root, key)
        with self._name_errors(f"{key} cannot be deleted"):
            self._store.delete([stored.key for stored in self.list(key)] if key.endswith("/") else [key])
        remove(path)

    def list(self, key: str) -> Iterator[StoredObject]:
        with self._name_errors(f"{key} cannot be listed"):
            metas = [meta for page in self._store.list(key.rstrip("/")) for meta in page]
        for meta in sorted(metas, key=lambda meta: meta["path"]):
            tag = (meta["e_tag"] or "").strip('"')
            yield StoredObject(meta["path"], meta["size"], meta["last_modified"].timestamp(), tag)

    def sign(self, key: str, *, method: Method, lifetime_s: int) -> str:
        with self._name_errors("an address cannot be signed"):
            import obstore

            return obstore.sign(self._store, method, key, timedelta(seconds=lifetime_s))

    @contextlib.contextmanager
    def _name_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                bucket = self.url.removeprefix(SCHEME).partition("/")[0]
                message = f"{action}: there is no bucket {bucket}"
                raise NetworkError(message, hint="make it, or correct OSMOSIS_OBJECTS") from None
            raise NotFound(f"{action}: it is no longer there") from None
        except OSError:
            raise  # of our own disk
        except Exception as error:
            if not type(error).__module__.startswith("obstore"):
                raise
            raise self._error(action, error) from None

    def _error(self, action: str, error: Exception) -> NetworkError:
        kind, text = type(error).__name__, str(error)
        code = CODE.search(text)
        reason = ": ".join(part for part in code.groups() if part) if code else text.splitlines()[0]
        if kind in ("PermissionDeniedError", "UnauthenticatedError"):
            hint = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the rights of that key on the bucket"
            return NetworkError(f"{action}: the object store refuses the platform ({reason})", hint=hint)
        hint = "check OSMOSIS_OBJECTS, AWS_ENDPOINT_URL and AWS_REGION, then: osmosis doctor --platform"
        message = f"{action}: the object store at {self.where} does not answer as it should ({reason})"
        return NetworkError(message, hint=hint)

    @property
    def where(self) -> str:
        return self.endpoint or "AWS"


def _open(url: str, endpoint: str, environ: Mapping[str, str], limit: timedelta) -> S3Store:
    try:
        from obstore.store import S3Store
    except ImportError:
        raise UsageError(f"objects at {url} need a library", hint=extra_command("s3")) from None
    bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
    options = {
        "access_key_id": environ.get("AWS_ACCESS_KEY_ID"),
        "secret_access_key": environ.get("AWS_SECRET_ACCESS_KEY"),
        "session_token": environ.get("AWS_SESSION_TOKEN"),
        "region": environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        "endpoint": endpoint or None,
    }
    config: dict[str, Any] = {name: value for name, value in options.items() if value}
    return S3Store(
        bucket,
        prefix=prefix.strip("/") or None,
        virtual_hosted_style_request=not endpoint,  # other stores have the bucket in the path
        checksum_algorithm="sha256",
        client_options={"allow_http": endpoint.startswith("http://"), "timeout": limit},
        retry_config={"max_retries": RETRIES, "retry_timeout": limit},
        **config,
    )
