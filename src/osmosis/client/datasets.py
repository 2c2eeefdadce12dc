"""Datasets: created by a call, their bytes sent to and fetched from presigned URLs."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import quote

from osmosis.base.backoff import backoff_delay
from osmosis.errors import OsmosisError, RateLimited
from osmosis.records.contract.body import LogPage
from osmosis.records.contract.uploads import (
    AbortDataset,
    CompleteDataset,
    CreatedDataset,
    DatasetDownload,
    DatasetEntry,
    DatasetPage,
    NewDataset,
)

from .http import Http, Params
from .transfer import Progress, Transfer

COMPLETE_TIMEOUT_S = 120.0
COMPLETE_TRIES = 5


class Datasets:
    """The datasets of a workspace."""

    def __init__(self, http: Http, transfer: Transfer) -> None:
        self._http = http
        self._transfer = transfer

    def page(self, *, limit: int = 50, offset: int = 0) -> DatasetPage:
        return self._http.read(DatasetPage, "GET", "datasets", params={"limit": limit, "offset": offset})

    def all(self) -> list[DatasetEntry]:
        return [row for page in self._http.pages(DatasetPage, "datasets") for row in page.datasets]

    def get(self, name: str) -> DatasetEntry:
        return self._http.read(DatasetEntry, "GET", f"datasets/{quote(name, safe='')}")

    def delete(self, name: str) -> None:
        self._http.call("DELETE", f"datasets/{quote(name, safe='')}")

    def logs(self, name: str, *, limit: int = 50, cursor: str | None = None) -> LogPage:
        params: Params = {"limit": limit, "direction": "older", "cursor": cursor}
        return self._http.read(LogPage, "GET", f"datasets/{quote(name, safe='')}/logs", params=params)

    def upload(self, path: Path, *, overwrite_id: str | None = None, progress: Progress | None = None) -> DatasetEntry:
        """Create, send the bytes, complete; the dataset. A failure on the way aborts the upload."""
        extension = path.suffix.lstrip(".").lower()
        announced = NewDataset(
            file_name=path.stem,
            file_size=path.stat().st_size,
            extension=extension,
            overwrite_dataset_id=overwrite_id,
        )
        created = self._http.read(CreatedDataset, "POST", "datasets", json=announced)
        try:
            parts = self._transfer.upload(path, created.upload, progress)
            sent = CompleteDataset(file_extension=extension, parts=parts or None, upload_id=created.upload.upload_id)
            return self._complete(created.id, sent)
        except BaseException:
            self._abort(created.id, AbortDataset(upload_id=created.upload.upload_id))
            raise

    def download(self, name: str, destination: Path, progress: Progress | None = None) -> DatasetDownload:
        """Fetch the file to `destination` (written beside it, then renamed)."""
        answer = self._http.read(DatasetDownload, "GET", f"datasets/{quote(name, safe='')}/download")
        self._transfer.download(answer.presigned_url, destination, progress)
        return answer

    def _complete(self, identifier: str, body: CompleteDataset) -> DatasetEntry:
        for attempt in range(COMPLETE_TRIES):
            try:
                path = f"datasets/{identifier}/complete"
                return self._http.read(DatasetEntry, "POST", path, json=body, timeout=COMPLETE_TIMEOUT_S)
            except RateLimited:
                if attempt == COMPLETE_TRIES - 1:
                    raise
                time.sleep(backoff_delay(attempt + 1, base_s=0.5, max_s=8.0))
        raise AssertionError("unreachable")

    def _abort(self, identifier: str, body: AbortDataset) -> None:
        try:
            self._http.call("POST", f"datasets/{identifier}/abort", json=body, timeout=5.0)
        except OsmosisError:
            return  # the platform sweeps unfinished uploads; the first error is the one to show
