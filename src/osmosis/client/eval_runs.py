"""Evaluations of a platform: their rollouts and files, and retrying what failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from osmosis.records.contract.eval_bodies import EvalMetrics, EvalRunDetail, EvalRunPage
from osmosis.records.contract.run_bodies import (
    FileAddresses,
    OutcomePage,
    RetriedRun,
    RetryRun,
    RolloutPage,
    RunFile,
    RunFiles,
    WantedFile,
    WantedFiles,
)
from osmosis.records.history import History
from osmosis.records.rollout import Rollout

from .runs import Runs
from .submits import PATHS

OUTCOMES = 200
WHOLE = 50
"""The same, of rollouts with their conversations."""


class EvalRuns(Runs):
    """Evaluation runs."""

    noun = PATHS["eval"]
    listed = EvalRunPage
    whole = EvalRunDetail
    figures = EvalMetrics

    def retry(self, name: str, asked: RetryRun) -> RetriedRun:
        """Retry failed and skipped rollouts. NothingToRetry when all succeeded, unless `everything` is asked for;
        Conflict when the run has spent its budget and no larger one is given."""
        return self._http.read(RetriedRun, "POST", self._path(name, "retry"), json=asked)

    def rollouts(self, name: str, *, limit: int = 50, offset: int = 0, status: str | None = None) -> RolloutPage:
        """One page of a run's rollouts."""
        params = {"limit": limit, "offset": offset, "status": status}
        return self._found(
            name, lambda full: self._http.read(RolloutPage, "GET", self._path(full, "rollouts"), params=params)
        )

    def outcomes(self, name: str) -> Iterator[Rollout]:
        """All its rollouts, without what was said in them."""
        for page in self._http.pages(OutcomePage, self._path(name, "outcomes"), limit=OUTCOMES):
            yield from page.outcomes

    def arrived(self, name: str, *, after: int) -> Iterator[OutcomePage]:
        """All its rollouts but the first ones, whole, in the order of their arrival."""
        return self._http.pages(
            OutcomePage, self._path(name, "outcomes"), limit=WHOLE, offset=after, params={"whole": 1}
        )

    def amount(self, name: str) -> int:
        """How many rollouts it has."""
        params = {"limit": 1, "offset": 0}
        page = self._http.read(OutcomePage, "GET", self._path(name, "outcomes"), params=params)
        return page.total_count or len(page.outcomes)

    def rollout(self, name: str, row: int, attempt: int) -> Rollout:
        """One rollout, whole."""
        tail = f"rollouts/{row}/{attempt}"
        return self._found(name, lambda full: self._http.read(Rollout, "GET", self._path(full, tail)))

    def history(self, **asked: str) -> History:
        """A row (`row`) or a figure (`metric`) over the runs that fit."""
        return self._http.read(History, "GET", "history", params=asked)

    def manifest(self, name: str, *, types: str, rows: str | None = None) -> RunFiles:
        """The files of a run."""
        params = {"types": types, "rows": rows}
        return self._http.read(RunFiles, "GET", self._path(name, "samples/manifest"), params=params)

    def download_urls(self, name: str, files: Sequence[RunFile]) -> dict[str, str]:
        """Path -> URL; at most 500 files a call."""
        body = WantedFiles(items=[WantedFile(path=file.path, token=file.token) for file in files])
        answer = self._http.read(FileAddresses, "POST", self._path(name, "samples/download-urls"), json=body)
        return {item.path: item.url for item in answer.items if item.url}
