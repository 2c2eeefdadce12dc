"""Evaluation and training runs: one class for what both have, one more for what each has alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, TypeVar
from urllib.parse import quote

from osmosis.base.short_names import meant
from osmosis.errors import NotFound
from osmosis.records.contract.body import LogPage
from osmosis.records.contract.eval_bodies import EvalMetrics, EvalRunDetail, EvalRunPage
from osmosis.records.contract.run_bodies import (
    FileAddresses,
    MarkedRun,
    OutcomePage,
    RetriedRun,
    RetryRun,
    RolloutPage,
    RunDetail,
    RunFile,
    RunFiles,
    RunPage,
    RunPriority,
    RunRow,
    SubmittedRun,
    WantedFile,
    WantedFiles,
)
from osmosis.records.contract.training_bodies import (
    CheckpointList,
    CheckpointRow,
    TrainingCheck,
    TrainingMetrics,
    TrainingRunDetail,
    TrainingRunPage,
)
from osmosis.records.history import History
from osmosis.records.marks import MarkChange
from osmosis.records.rollout import Rollout

from .http import Http

LOG_PAGE = 200
OUTCOMES = 200
WHOLE = 50
"""The same, of rollouts with their conversations."""
NAMES = 50
"""So many of the newest runs are looked through for one that a beginning stands for."""
T = TypeVar("T")


class Runs:
    """The runs of one kind; `noun` is their path.

    What only reads also finds a run by the beginning of its name, or as `latest`; what changes one wants its name.
    """

    noun: ClassVar[str]
    listed: ClassVar[type[RunPage]]
    whole: ClassVar[type[RunDetail]]
    figures: ClassVar[type[EvalMetrics] | type[TrainingMetrics]]

    def __init__(self, http: Http) -> None:
        self._http = http
        self._tag: str | None = None
        self._full: dict[str, str] = {}
        """Beginnings and `latest`, as they were found."""

    def submit(self, body: Mapping[str, object]) -> SubmittedRun:
        """Start a run of a config, given as the sections of a submit."""
        return self._http.read(SubmittedRun, "POST", self.noun, json=body)

    def tagged(self, tag: str | None) -> Runs:
        """The same, of which lists hold only the runs with this tag."""
        found = type(self)(self._http)
        found._tag = tag
        return found

    def page(self, *, limit: int = 50, offset: int = 0) -> RunPage:
        """Some runs, newest first."""
        params = {"limit": limit, "offset": offset, "tag": self._tag}
        return self._http.read(self.listed, "GET", self.noun, params=params)

    def all(self) -> list[RunRow]:
        return [
            row for page in self._http.pages(self.listed, self.noun, params={"tag": self._tag}) for row in page.rows
        ]

    def get(self, name: str) -> RunDetail:
        """One run with config, dataset, rollout and results."""
        return self._found(name, lambda full: self._http.read(self.whole, "GET", self._path(full)))

    def metrics(self, name: str) -> EvalMetrics | TrainingMetrics:
        return self._found(name, lambda full: self._http.read(self.figures, "GET", self._path(full, "metrics")))

    def stop(self, name: str) -> None:
        self._http.call("POST", self._path(name, "stop"), json={})

    def mark(self, name: str, change: MarkChange) -> MarkedRun:
        """Change tags, note, pin or name."""
        return self._http.read(MarkedRun, "PATCH", self._path(name), json=change.to_dict())

    def prioritize(self, name: str, priority: int) -> RunPriority:
        """The place of a run that waits, among those of its workspace: the highest first."""
        body = RunPriority(priority=priority)
        return self._http.read(RunPriority, "PUT", self._path(name, "priority"), json=body)

    def delete(self, name: str) -> None:
        self._http.call("DELETE", self._path(name))

    def logs(self, name: str, *, limit: int = LOG_PAGE, cursor: str | None = None, newer: bool = False) -> LogPage:
        """One page, oldest first within it.

        Without a cursor: the last lines, or with `newer` the first ones. `next_cursor` goes on in that direction.
        """
        params = {"limit": limit, "direction": "newer" if newer else "older", "cursor": cursor}
        return self._found(name, lambda full: self._http.read(LogPage, "GET", self._path(full, "logs"), params=params))

    def _found(self, name: str, ask: Callable[[str], T]) -> T:
        """What `ask` says of the run with this name, or of the one that it stands for."""
        try:
            return ask(self._full.get(name, name))
        except NotFound:
            full = meant(name, [row.name for row in self.page(limit=NAMES).rows])
            if full is None or full == self._full.get(name, name):
                raise  # the run is there, and something of it is not; or there is no such run
            self._full[name] = full
            return ask(full)

    def _path(self, name: str, tail: str = "") -> str:
        return f"{self.noun}/{quote(name, safe='')}" + (f"/{tail}" if tail else "")


class EvalRuns(Runs):
    """Evaluation runs: their rollouts and files, and retrying what failed."""

    noun = "eval-runs"
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


class TrainingRuns(Runs):
    """Training runs: checked before, gone on with, done once more; their checkpoints."""

    noun = "training-runs"
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
