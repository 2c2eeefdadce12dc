import time
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from osmosis.base.files import file_sha256
from osmosis.base.net import backoff_delay
from osmosis.client.http import Params, Section
from osmosis.client.transfer import Progress
from osmosis.errors import NotFound, OsmosisError, PlatformError, RateLimited, ValidationError
from osmosis.records.api import datasets as dataset_api, training as model_api
from osmosis.records.api.body import LogPage
from osmosis.records.api.training import ModelDeployment, ModelPage, ModelRow

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
