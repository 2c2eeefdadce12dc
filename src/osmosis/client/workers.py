"""The workers of a platform: listed, drained, removed. What a worker itself says is in `osmosis.worker`."""

from __future__ import annotations

from urllib.parse import quote

from osmosis.records.contract.worker_bodies import WorkerList, WorkerRemoved, WorkerRow

from .http import Http

PATH = "workers"


class Workers:
    """Of the whole platform: no workspace is spoken for."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def all(self) -> list[WorkerRow]:
        return self._http.read(WorkerList, "GET", PATH, scoped=False).workers

    def drain(self, name: str) -> None:
        """It brings its jobs to their end and gets no more."""
        self._http.call("POST", f"{PATH}/{quote(name, safe='')}/drain", json={}, scoped=False)

    def remove(self, name: str) -> int:
        """It is not wanted any more; how many of its jobs go elsewhere."""
        return self._http.read(WorkerRemoved, "DELETE", f"{PATH}/{quote(name, safe='')}", scoped=False).released
