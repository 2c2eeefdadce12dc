"""Datasets: created by a call, their bytes sent to and fetched from presigned URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..base.backoff import backoff_delay
from ..errors import OsmosisError, RateLimited
from .http import Http
from .transfer import Progress, Transfer

Json = dict[str, Any]
COMPLETE_TIMEOUT_S = 120.0
COMPLETE_TRIES = 5


class Datasets:
    """The datasets of a workspace."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.transfer = Transfer(http.url)

    def page(self, *, limit: int = 50, offset: int = 0) -> Json:
        return self._http.call("GET", "datasets", params={"limit": limit, "offset": offset})

    def all(self) -> list[Json]:
        return list(self._http.pages("datasets", "datasets"))

    def get(self, name: str) -> Json:
        return self._http.call("GET", f"datasets/{quote(name, safe='')}")

    def delete(self, name: str) -> None:
        self._http.call("DELETE", f"datasets/{quote(name, safe='')}")

    def logs(self, name: str, *, limit: int = 50, cursor: str | None = None) -> Json:
        params = {"limit": limit, "direction": "older", "cursor": cursor}
        return self._http.call("GET", f"datasets/{quote(name, safe='')}/logs", params=params)

    def upload(self, path: Path, *, overwrite_id: str | None = None, progress: Progress | None = None) -> Json:
        """Create, send the bytes, complete; the dataset. A failure on the way aborts the upload."""
        body = {"file_name": path.stem, "file_size": path.stat().st_size, "extension": path.suffix.lstrip(".").lower()}
        if overwrite_id:
            body["overwrite_dataset_id"] = overwrite_id
        created = self._http.call("POST", "datasets", json=body)
        identifier = str(created["id"])
        try:
            parts = self.transfer.upload(path, created["upload"], progress)
            done: Json = {"file_extension": body["extension"]}
            if parts:
                done["parts"] = parts
            return self._complete(identifier, done)
        except BaseException:
            self._abort(identifier)
            raise

    def download(self, name: str, destination: Path, progress: Progress | None = None) -> Json:
        """Fetch the file to `destination` (written beside it, then renamed)."""
        answer = self._http.call("GET", f"datasets/{quote(name, safe='')}/download")
        url = answer.get("presigned_url") or answer.get("presignedUrl")
        self.transfer.download(str(url), destination, progress)
        return answer

    def _complete(self, identifier: str, body: Json) -> Json:
        import time

        for attempt in range(COMPLETE_TRIES):
            try:
                path = f"datasets/{identifier}/complete"
                return self._http.call("POST", path, json=body, timeout=COMPLETE_TIMEOUT_S)
            except RateLimited:
                if attempt == COMPLETE_TRIES - 1:
                    raise
                time.sleep(backoff_delay(attempt + 1, base_s=0.5, max_s=8.0))
        raise AssertionError("unreachable")

    def _abort(self, identifier: str) -> None:
        try:
            self._http.call("POST", f"datasets/{identifier}/abort", json={}, timeout=5.0)
        except OsmosisError:
            return  # the platform sweeps unfinished uploads; the first error is the one to show
