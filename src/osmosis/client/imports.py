"""Handing a local run over to a platform: a session, its pending files side by side, and the end.

An interrupted upload goes on when it is started again: the platform knows what it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .http import Http
from .transfer import Progress, Transfer

Json = dict[str, Any]
PATH = "eval-runs/imports"
BATCH = 100
AT_ONCE = 8
COMPLETE_TIMEOUT_S = 120.0
FINALIZE_TIMEOUT_S = 300.0


class Imports:
    """The uploads of a workspace."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.transfer = Transfer(http.url)

    def open(self, manifest: Json) -> Json:
        """`session_id, status, files: [{path, state}]`, and `eval_run_name` when it was finished before."""
        return self._http.call("POST", PATH, json=manifest, timeout=COMPLETE_TIMEOUT_S)

    def send(self, opened: Json, folder: Path, progress: Progress | None = None) -> Json:
        """Send what is pending from below `folder`, then finalize; the finished session."""
        session = str(opened["session_id"])
        pending = [str(file["path"]) for file in opened.get("files") or [] if file.get("state") != "uploaded"]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for start in range(0, len(pending), BATCH):
                plans = self._plans(session, pending[start : start + BATCH])
                list(pool.map(lambda plan: self._send_one(session, folder, plan, progress), plans))
        return self._http.call("POST", f"{PATH}/{session}/finalize", json={}, timeout=FINALIZE_TIMEOUT_S)

    def _plans(self, session: str, paths: Sequence[str]) -> list[Json]:
        answer = self._http.call("POST", f"{PATH}/{session}/uploads", json={"paths": list(paths)})
        return list(answer.get("files") or [])

    def _send_one(self, session: str, folder: Path, plan: Json, progress: Progress | None) -> None:
        parts = self.transfer.upload(folder / plan["path"], plan["upload"], progress)
        body: Json = {"path": plan["path"]}
        if parts:
            body["parts"] = [{"part_number": part["PartNumber"], "etag": part["ETag"]} for part in parts]
        self._http.call("POST", f"{PATH}/{session}/uploads/complete", json=body, timeout=COMPLETE_TIMEOUT_S)
