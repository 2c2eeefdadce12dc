"""Evaluation and training runs: one class for both, because they are one thing with two records."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from .http import Http

Json = dict[str, Any]
LOG_PAGE = 200


class Runs:
    """`noun` is the path (`eval-runs`), `key` the object in a detail (`eval_run`)."""

    def __init__(self, http: Http, noun: str, key: str) -> None:
        self._http = http
        self.noun = noun
        self.key = key

    def submit(self, body: Json) -> Json:
        """`id, name, status, created_at, platform_url`."""
        return self._http.call("POST", self.noun, json=body)

    def page(self, *, limit: int = 50, offset: int = 0) -> Json:
        return self._http.call("GET", self.noun, params={"limit": limit, "offset": offset})

    def all(self) -> list[Json]:
        return list(self._http.pages(self.noun, self.noun.replace("-", "_")))

    def rows(self, page: Json) -> list[Json]:
        """The runs of a page."""
        return list(page.get(self.noun.replace("-", "_")) or [])

    def get(self, name: str) -> Json:
        """The detail: the run under `key`, with config, dataset, rollout, results beside it."""
        return self._http.call("GET", self._path(name))

    def metrics(self, name: str) -> Json:
        return self._http.call("GET", self._path(name, "metrics"))

    def stop(self, name: str) -> Json:
        return self._http.call("POST", self._path(name, "stop"), json={})

    def retry(self, name: str, secrets: dict[str, str] | None = None) -> Json:
        """Failed and skipped rollouts again."""
        return self._http.call("POST", self._path(name, "retry"), json={"secrets": secrets} if secrets else {})

    def delete(self, name: str) -> None:
        self._http.call("DELETE", self._path(name))

    def logs(self, name: str, *, limit: int = LOG_PAGE, cursor: str | None = None, newer: bool = False) -> Json:
        """One page `{logs: [{timestamp, level, step, message}], next_cursor}`, oldest first within the page.

        Without a cursor: the last lines, or with `newer` the first ones. `next_cursor` goes on in that direction.
        """
        params = {"limit": limit, "direction": "newer" if newer else "older", "cursor": cursor}
        return self._http.call("GET", self._path(name, "logs"), params=params)

    def rollouts(self, name: str, *, limit: int = 50, offset: int = 0, status: str | None = None) -> Json:
        """One page of a run's rollouts."""
        params = {"limit": limit, "offset": offset, "status": status}
        return self._http.call("GET", self._path(name, "rollouts"), params=params)

    def rollout(self, name: str, row: int, attempt: int) -> Json:
        """One rollout, whole."""
        return self._http.call("GET", self._path(name, f"rollouts/{row}/{attempt}"))

    def checkpoints(self, name: str) -> list[Json]:
        return list(self._http.call("GET", self._path(name, "checkpoints")).get("checkpoints") or [])

    def manifest(self, name: str, *, types: str, rows: str | None = None) -> Json:
        """`{files: [{path, size, token}], totals: {files, bytes}}`."""
        params = {"types": types, "rows": rows}
        return self._http.call("GET", self._path(name, "samples/manifest"), params=params)

    def download_urls(self, name: str, files: list[Json]) -> dict[str, str]:
        """Path -> URL; at most 500 files a call."""
        asked = [{key: file[key] for key in ("path", "token") if file.get(key)} for file in files]
        answer = self._http.call("POST", self._path(name, "samples/download-urls"), json={"items": asked})
        rows = answer.get("items") or answer.get("files") or answer.get("urls") or []
        return {row["path"]: row.get("url") or row.get("presignedUrl") or row.get("presigned_url") for row in rows}

    def _path(self, name: str, tail: str = "") -> str:
        return f"{self.noun}/{quote(name, safe='')}" + (f"/{tail}" if tail else "")
