"""Transfer datasets, models and imported runs by presigned URLs: streamed, retried, beyond this machine by https."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from osmosis.base.files import file_sha256, replacing
from osmosis.base.net import backoff_delay, is_loopback
from osmosis.client.http import Params, Section, trust
from osmosis.errors import NetworkError, NotFound, OsmosisError, PlatformError, RateLimited, ValidationError
from osmosis.records.api import datasets as dataset_api, training as model_api
from osmosis.records.api.body import LogPage
from osmosis.records.api.training import ModelDeployment, ModelPage, ModelRow

Result = TypeVar("Result")
Progress = Callable[[int], None]

CHUNK = 1024 * 1024
TRIES = 5
TIMEOUT = httpx.Timeout(60.0, read=120.0)


class Transfer(Section):
    """Uploads and downloads by signed URL; an object store elsewhere is verified by the public certificates."""

    def upload(
        self, path: Path, plan: dataset_api.UploadPlan, progress: Progress | None = None
    ) -> list[dataset_api.SentPart]:
        total = path.stat().st_size
        if plan.method != "multipart" or plan.part_size is None:
            self._put(plan.presigned_url or "", path, (0, total), plan.upload_headers, progress)
            return []
        size = plan.part_size
        parts = []
        for part in plan.presigned_urls:
            number = part.part_number
            start = (number - 1) * size
            etag = self._put(part.presigned_url, path, (start, min(size, total - start)), {}, progress)
            if not etag:
                raise PlatformError(f"the object store sent no ETag for part {number} of {path.name}")
            parts.append(dataset_api.SentPart(PartNumber=number, ETag=etag))
        return parts

    def download(self, url: str, destination: Path, progress: Progress | None = None) -> int:
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
        parts = urlsplit(url)
        is_ours = parts.netloc == urlsplit(self._http.url).netloc
        if parts.scheme != "https" and not is_loopback(url) and not is_ours:
            raise ValidationError(f"the platform returned an unsafe transfer URL: {parts.scheme}://{parts.netloc}")
        trust_env = not is_loopback(url)
        verify = trust(self._http.ca_file if is_ours else "")
        with httpx.Client(timeout=TIMEOUT, trust_env=trust_env, verify=verify) as client:
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


class _Again(Exception): ...


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


def _raise_for(response: httpx.Response, action: str) -> None:
    if response.is_success:
        return
    status = response.status_code
    if status == 429 or status >= 500:
        raise _Again(f"{action}: HTTP {status}")
    text = response.read().decode("utf-8", "replace").strip()[:200]
    if status in (403, 404):
        raise NotFound(f"{action}: the object store answered HTTP {status}" + (f": {text}" if text else ""))
    raise PlatformError(f"{action}: the object store answered HTTP {status}" + (f": {text}" if text else ""))


PATH = "eval-runs/imports"
BATCH = 100
AT_ONCE = 8
IMPORT_TIMEOUT_S = 120.0
FINALIZE_TIMEOUT_S = 300.0


class Imports(Section):
    def open(self, manifest: Mapping[str, object]) -> dataset_api.ImportSession:
        return self._read(dataset_api.ImportSession, "POST", PATH, json=manifest, timeout=IMPORT_TIMEOUT_S)

    def send(
        self, opened: dataset_api.ImportSession, folder: Path, progress: Progress | None = None
    ) -> dataset_api.ImportSession:
        session = opened.session_id
        pending = [file.path for file in opened.pending]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for start in range(0, len(pending), BATCH):
                body = dataset_api.ImportPaths(paths=list(pending[start : start + BATCH]))
                plans = self._read(dataset_api.ImportUploads, "POST", f"{PATH}/{session}/uploads", json=body).files
                list(pool.map(lambda plan: self._send_one(session, folder, plan, progress), plans))
        return self._read(
            dataset_api.ImportSession, "POST", f"{PATH}/{session}/finalize", json={}, timeout=FINALIZE_TIMEOUT_S
        )

    def _send_one(self, session: str, folder: Path, plan: dataset_api.ImportUpload, progress: Progress | None) -> None:
        parts = self._http.transfer.upload(folder / plan.path, plan.upload, progress)
        sent = [dataset_api.ImportPart(part_number=part.PartNumber, etag=part.ETag) for part in parts]
        body = dataset_api.ImportSent(path=plan.path, parts=sent or None)
        self._call("POST", f"{PATH}/{session}/uploads/complete", json=body, timeout=IMPORT_TIMEOUT_S)


COMPLETE_TIMEOUT_S = 120.0
COMPLETE_TRIES = 5


class Datasets(Section):
    def page(self, *, limit: int = 50, offset: int = 0) -> dataset_api.DatasetPage:
        return self._read(dataset_api.DatasetPage, "GET", "datasets", params={"limit": limit, "offset": offset})

    def all(self) -> list[dataset_api.DatasetEntry]:
        return [row for page in self._pages(dataset_api.DatasetPage, "datasets") for row in page.datasets]

    def get(self, name: str) -> dataset_api.DatasetEntry:
        return self._read(dataset_api.DatasetEntry, "GET", f"datasets/{_word(name)}")

    def delete(self, name: str) -> None:
        self._call("DELETE", f"datasets/{_word(name)}")

    def logs(self, name: str, *, limit: int = 50, cursor: str | None = None) -> LogPage:
        params: Params = {"limit": limit, "direction": "older", "cursor": cursor}
        return self._read(LogPage, "GET", f"datasets/{_word(name)}/logs", params=params)

    def upload(
        self, path: Path, *, overwrite_id: str | None = None, progress: Progress | None = None
    ) -> dataset_api.DatasetEntry:
        extension = path.suffix.lstrip(".").lower()
        announced = dataset_api.NewDataset(
            file_name=path.stem, file_size=path.stat().st_size, extension=extension, overwrite_dataset_id=overwrite_id
        )
        created = self._read(dataset_api.CreatedDataset, "POST", "datasets", json=announced)
        try:
            parts = self._http.transfer.upload(path, created.upload, progress)
            sent = dataset_api.CompleteDataset(
                file_extension=extension, parts=parts or None, upload_id=created.upload.upload_id
            )
            for attempt in range(COMPLETE_TRIES):
                try:
                    url = f"datasets/{created.id}/complete"
                    return self._read(dataset_api.DatasetEntry, "POST", url, json=sent, timeout=COMPLETE_TIMEOUT_S)
                except RateLimited:
                    if attempt == COMPLETE_TRIES - 1:
                        raise
                    time.sleep(backoff_delay(attempt + 1, base_s=0.5, max_s=8.0))
            raise AssertionError("unreachable")
        except BaseException:
            abort = dataset_api.AbortDataset(upload_id=created.upload.upload_id)
            with suppress(OsmosisError):  # the platform sweeps unfinished uploads; the first error is the one to show
                self._call("POST", f"datasets/{created.id}/abort", json=abort, timeout=5.0)
            raise

    def download(self, name: str, destination: Path, progress: Progress | None = None) -> dataset_api.DatasetDownload:
        answer = self._read(dataset_api.DatasetDownload, "GET", f"datasets/{_word(name)}/download")
        self._http.transfer.download(answer.presigned_url, destination, progress)
        return answer


Kind = Literal["base", "lora"]
JOIN_TIMEOUT_S = 600.0


class Models(Section):
    def page(self, kind: str, *, limit: int = 50, offset: int = 0) -> ModelPage:
        return self._read(ModelPage, "GET", f"models/{kind}", params={"limit": limit, "offset": offset})

    def all(self, kind: str) -> list[ModelRow]:
        return [row for page in self._pages(ModelPage, f"models/{kind}") for row in page.models]

    def lora(self, name: str) -> ModelRow:
        return self._read(ModelRow, "GET", f"models/{_word(name)}")

    def base(self, name: str) -> ModelRow:
        return self._read(ModelRow, "GET", f"models/base/{_word(name)}")

    def find(self, name: str) -> tuple[Kind, ModelRow]:
        try:
            return "base", self.base(name)
        except NotFound:
            return "lora", self.lora(name)

    def logs(self, name: str, *, limit: int = 50, cursor: str | None = None) -> LogPage:
        params: dict[str, str | int | None] = {"limit": limit, "direction": "older", "cursor": cursor}
        return self._read(LogPage, "GET", f"models/{_word(name)}/logs", params=params)

    def deploy(self, name: str) -> ModelDeployment:
        return self._read(ModelDeployment, "POST", f"models/{_word(name)}/deploy", json={})

    def undeploy(self, name: str) -> ModelDeployment:
        return self._read(ModelDeployment, "POST", f"models/{_word(name)}/undeploy", json={})

    def merge(self, name: str, wish: model_api.MergeRequest) -> model_api.ModelMerge:
        return self._read(model_api.ModelMerge, "POST", f"models/{_word(name)}/merge", json=wish)

    def merged(self, name: str) -> model_api.ModelMerge:
        return self._read(model_api.ModelMerge, "GET", f"models/{_word(name)}/merge")

    def delete(self, kind: str, name: str) -> None:
        self._call("DELETE", _path(kind, name))

    def announce(self, name: str, files: list[model_api.AnnouncedFile]) -> model_api.ModelUpload:
        return self._read(model_api.ModelUpload, "POST", "models/base", json=model_api.NewModel(name=name, files=files))

    def send(self, announced: model_api.ModelUpload, folder: Path, progress: Progress | None = None) -> ModelRow:
        base = f"models/base/{announced.id}"
        for file in announced.pending:
            body = model_api.ModelPath(path=file.path)
            while True:
                plan = self._read(model_api.ModelFileUpload, "POST", f"{base}/uploads", json=body)
                if not plan.upload.presigned_urls:
                    break
                self._http.transfer.upload(folder / file.path, plan.upload, progress)
            self._call("POST", f"{base}/uploads/complete", json=body, timeout=JOIN_TIMEOUT_S)
        return self._read(ModelRow, "POST", f"{base}/finalize", json={}, timeout=JOIN_TIMEOUT_S)

    def files(self, kind: str, name: str) -> model_api.ModelFiles:
        files = self._read(model_api.ModelFiles, "GET", f"{_path(kind, name)}/files")
        for named in (files.name, *(file.path for file in files.files)):
            if Path(named).name != named or named.startswith("."):
                raise PlatformError(f"the platform named a file outside the folder: {named}")
        return files

    def fetch(self, file: model_api.ModelFile, folder: Path, progress: Progress | None = None) -> bool:
        """Download one file into `folder`; return False when it is there already. Raise ValidationError."""
        target = folder / file.path
        if target.is_file() and target.stat().st_size == file.size and _same(target, file.sha256):
            return False
        self._http.transfer.download(file.url or "", target, progress)
        if not _same(target, file.sha256):
            target.unlink()
            raise ValidationError(f"{file.path} arrived damaged", hint="download the model again; the rest is kept")
        return True


def announce_file(path: Path) -> model_api.AnnouncedFile:
    return model_api.AnnouncedFile(path=path.name, size=path.stat().st_size, sha256=file_sha256(path))


def _same(path: Path, sha256: str | None) -> bool:
    return sha256 is None or file_sha256(path) == sha256


def _word(name: str) -> str:
    return quote(name, safe="")


def _path(kind: str, name: str) -> str:
    return f"models/base/{_word(name)}" if kind == "base" else f"models/{_word(name)}"
