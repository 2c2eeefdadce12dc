"""Base models and the adapters that training runs made: listed, sent, fetched, deployed.

An upload that was cut off goes on when it is started again: the platform knows which parts it has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import quote

from osmosis.base.checksum import file_sha256
from osmosis.errors import NotFound, PlatformError, ValidationError
from osmosis.records.contract.body import LogPage
from osmosis.records.contract.model_bodies import (
    AnnouncedFile,
    MergeRequest,
    ModelFile,
    ModelFiles,
    ModelFileUpload,
    ModelMerge,
    ModelPath,
    ModelUpload,
    NewModel,
)
from osmosis.records.contract.training_bodies import ModelDeployment, ModelPage, ModelRow

from .http import Http
from .transfer import Progress, Transfer

Kind = Literal["base", "lora"]
JOIN_TIMEOUT_S = 600.0
"""The platform puts a file of gigabytes together and checks it."""


class Models:
    """`kind` is `base` or `lora`."""

    def __init__(self, http: Http, transfer: Transfer) -> None:
        self._http = http
        self._transfer = transfer

    def page(self, kind: str, *, limit: int = 50, offset: int = 0) -> ModelPage:
        return self._http.read(ModelPage, "GET", f"models/{kind}", params={"limit": limit, "offset": offset})

    def all(self, kind: str) -> list[ModelRow]:
        return [row for page in self._http.pages(ModelPage, f"models/{kind}") for row in page.models]

    def lora(self, name: str) -> ModelRow:
        return self._http.read(ModelRow, "GET", f"models/{_word(name)}")

    def base(self, name: str) -> ModelRow:
        return self._http.read(ModelRow, "GET", f"models/base/{_word(name)}")

    def find(self, name: str) -> tuple[Kind, ModelRow]:
        """A base model by its name, else an adapter."""
        try:
            return "base", self.base(name)
        except NotFound:
            return "lora", self.lora(name)

    def logs(self, name: str, *, limit: int = 50, cursor: str | None = None) -> LogPage:
        """Lines of the log of its deployment."""
        params: dict[str, str | int | None] = {"limit": limit, "direction": "older", "cursor": cursor}
        return self._http.read(LogPage, "GET", f"models/{_word(name)}/logs", params=params)

    def deploy(self, name: str) -> ModelDeployment:
        return self._http.read(ModelDeployment, "POST", f"models/{_word(name)}/deploy", json={})

    def undeploy(self, name: str) -> ModelDeployment:
        return self._http.read(ModelDeployment, "POST", f"models/{_word(name)}/undeploy", json={})

    def merge(self, name: str, wish: MergeRequest) -> ModelMerge:
        """Start to make a model of its own of an adapter and its base."""
        return self._http.read(ModelMerge, "POST", f"models/{_word(name)}/merge", json=wish)

    def merged(self, name: str) -> ModelMerge:
        """How far that is, by the new model's name or the merge's id."""
        return self._http.read(ModelMerge, "GET", f"models/{_word(name)}/merge")

    def delete(self, kind: str, name: str) -> None:
        path = f"models/base/{_word(name)}" if kind == "base" else f"models/{_word(name)}"
        self._http.call("DELETE", path)

    def announce(self, name: str, files: list[AnnouncedFile]) -> ModelUpload:
        """A base model that waits for these files; one of the same files goes on where it stopped."""
        return self._http.read(ModelUpload, "POST", "models/base", json=NewModel(name=name, files=files))

    def send(self, announced: ModelUpload, folder: Path, progress: Progress | None = None) -> ModelRow:
        """Send what is missing from `folder`; the model, which is ready then."""
        place = f"models/base/{announced.id}"
        for file in announced.pending:
            body = ModelPath(path=file.path)
            while True:
                plan = self._http.read(ModelFileUpload, "POST", f"{place}/uploads", json=body)
                if not plan.upload.presigned_urls:
                    break
                self._transfer.upload(folder / file.path, plan.upload, progress)
            self._http.call("POST", f"{place}/uploads/complete", json=body, timeout=JOIN_TIMEOUT_S)
        return self._http.read(ModelRow, "POST", f"{place}/finalize", json={}, timeout=JOIN_TIMEOUT_S)

    def files(self, kind: str, name: str) -> ModelFiles:
        """What can be fetched of a model, with addresses that work for a while."""
        path = f"models/base/{_word(name)}/files" if kind == "base" else f"models/{_word(name)}/files"
        found = self._http.read(ModelFiles, "GET", path)
        for named in (found.name, *(file.path for file in found.files)):
            if Path(named).name != named or named.startswith("."):
                raise PlatformError(f"the platform named a file outside the folder: {named}")
        return found

    def fetch(self, file: ModelFile, folder: Path, progress: Progress | None = None) -> bool:
        """One file into `folder`; False when it is there already. ValidationError when it arrived damaged."""
        target = folder / file.path
        if target.is_file() and target.stat().st_size == file.size and _same(target, file.sha256):
            return False
        self._transfer.download(file.url or "", target, progress)
        if not _same(target, file.sha256):
            target.unlink()
            raise ValidationError(f"{file.path} arrived damaged", hint="download the model again; the rest is kept")
        return True


def announced(path: Path) -> AnnouncedFile:
    """A file as it is announced."""
    return AnnouncedFile(path=path.name, size=path.stat().st_size, sha256=file_sha256(path))


def _same(path: Path, sha256: str | None) -> bool:
    return sha256 is None or file_sha256(path) == sha256


def _word(name: str) -> str:
    return quote(name, safe="")
