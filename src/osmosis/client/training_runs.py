"""Training runs of a platform: checked before, gone on with, done once more; their checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from osmosis.records.contract.run_bodies import RetryRun
from osmosis.records.contract.submitted import SubmittedRun
from osmosis.records.contract.training_bodies import (
    CheckpointList,
    CheckpointRow,
    TrainingCheck,
    TrainingMetrics,
    TrainingRunDetail,
    TrainingRunPage,
)

from .runs import Runs
from .submits import PATHS


class TrainingRuns(Runs):
    """Training runs."""

    noun = PATHS["training"]
    listed = TrainingRunPage
    whole = TrainingRunDetail
    figures = TrainingMetrics

    def check(self, body: Mapping[str, object], *, eval_run: str | None = None) -> TrainingCheck:
        """What a config comes to, by the named evaluation or the newest one."""
        path = f"{self.noun}/check" + (f"?eval_run={quote(eval_run, safe='')}" if eval_run else "")
        return self._http.read(TrainingCheck, "POST", path, json=body)

    def resume(self, name: str, secrets: Mapping[str, str] | None = None) -> SubmittedRun:
        """The same run, on from its last checkpoint; `secrets` are values for it alone."""
        return self._again(name, "resume", secrets)

    def retry(self, name: str, secrets: Mapping[str, str] | None = None) -> SubmittedRun:
        """A new run of the same config."""
        return self._again(name, "retry", secrets)

    def _again(self, name: str, how: str, secrets: Mapping[str, str] | None) -> SubmittedRun:
        body = RetryRun(secrets=dict(secrets)) if secrets else RetryRun()
        return self._http.read(SubmittedRun, "POST", self._path(name, how), json=body)

    def checkpoints(self, name: str) -> list[CheckpointRow]:
        return self._found(
            name, lambda full: self._http.read(CheckpointList, "GET", self._path(full, "checkpoints")).checkpoints
        )
