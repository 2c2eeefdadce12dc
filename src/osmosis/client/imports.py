"""Handing a local run over to a platform: a session, its pending files side by side, and the end.

An interrupted upload goes on when it is started again: the platform knows what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from osmosis.records.contract.uploads import (
    ImportPart,
    ImportPaths,
    ImportSent,
    ImportSession,
    ImportUpload,
    ImportUploads,
)

from .http import Http
from .transfer import Progress, Transfer

PATH = "eval-runs/imports"
BATCH = 100
AT_ONCE = 8
COMPLETE_TIMEOUT_S = 120.0
FINALIZE_TIMEOUT_S = 300.0


class Imports:
    """The uploads of a workspace."""

    def __init__(self, http: Http, transfer: Transfer) -> None:
        self._http = http
        self._transfer = transfer

    def open(self, manifest: Mapping[str, object]) -> ImportSession:
        """A session for this manifest; the finished one when it was uploaded before."""
        return self._http.read(ImportSession, "POST", PATH, json=manifest, timeout=COMPLETE_TIMEOUT_S)

    def send(self, opened: ImportSession, folder: Path, progress: Progress | None = None) -> ImportSession:
        """Send what is pending from below `folder`, then finalize; the finished session."""
        session = opened.session_id
        pending = [file.path for file in opened.pending]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for start in range(0, len(pending), BATCH):
                plans = self._plans(session, pending[start : start + BATCH])
                list(pool.map(lambda plan: self._send_one(session, folder, plan, progress), plans))
        return self._http.read(ImportSession, "POST", f"{PATH}/{session}/finalize", json={}, timeout=FINALIZE_TIMEOUT_S)

    def _plans(self, session: str, paths: Sequence[str]) -> list[ImportUpload]:
        body = ImportPaths(paths=list(paths))
        return self._http.read(ImportUploads, "POST", f"{PATH}/{session}/uploads", json=body).files

    def _send_one(self, session: str, folder: Path, plan: ImportUpload, progress: Progress | None) -> None:
        parts = self._transfer.upload(folder / plan.path, plan.upload, progress)
        sent = [ImportPart(part_number=part.PartNumber, etag=part.ETag) for part in parts]
        body = ImportSent(path=plan.path, parts=sent or None)
        self._http.call("POST", f"{PATH}/{session}/uploads/complete", json=body, timeout=COMPLETE_TIMEOUT_S)
