from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar
from urllib.parse import quote

from osmosis.client.http import Params, Section
from osmosis.errors import NotFound
from osmosis.records.api import runs as run_api, training as training_api
from osmosis.records.api.body import LogPage
from osmosis.records.api.runs import BenchmarkRunDetail, BenchmarkRunPage
from osmosis.records.api.workers import WorkerList, WorkerRemoved, WorkerRow
from osmosis.records.base import Record
from osmosis.records.run.annotations import MarkChange
from osmosis.records.run.history import History
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.status import match_name
from osmosis.records.run.study import StudyState

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

LOG_PAGE = 200
PREFIX = "platform:"
NAMES = 50
R = TypeVar("R", bound=Record)


class Runs(Section):
    """The runs of one kind; `noun` is their path. Reading methods also accept the beginning of a name, or `latest`;
    changing ones need the name. `platform:NAME` is the same as NAME."""

    noun: ClassVar[str]
    listed: ClassVar[type[run_api.RunPage]]
    whole: ClassVar[type[run_api.RunDetail]]
    figures: ClassVar[type[run_api.EvalMetrics] | type[training_api.TrainingMetrics]]
    outputs: ClassVar[str] = "samples"

    def __init__(self, http: "PlatformClient") -> None:
        super().__init__(http)
        self._tag: str | None = None
        self._full: dict[str, str] = {}

    def tagged(self, tag: str | None) -> "Runs":
        tagged = type(self)(self._http)
        tagged._tag = tag
        return tagged

    def page(self, *, limit: int = 50, offset: int = 0) -> run_api.RunPage:
        params = {"limit": limit, "offset": offset, "tag": self._tag}
        return self._read(self.listed, "GET", self.noun, params=params)

    def all(self) -> list[run_api.RunRow]:
        return [row for page in self._pages(self.listed, self.noun, params={"tag": self._tag}) for row in page.rows]

    def get(self, name: str) -> run_api.RunDetail:
        return self._get(self.whole, name)

    def metrics(self, name: str) -> run_api.EvalMetrics | training_api.TrainingMetrics:
        return self._get(self.figures, name, "metrics")

    def submit(self, body: Mapping[str, object]) -> run_api.SubmittedRun:
        return self._read(run_api.SubmittedRun, "POST", self.noun, json=body)

    def stop(self, name: str) -> None:
        self._call("POST", self._path(name, "stop"), json={})

    def mark(self, name: str, change: MarkChange) -> run_api.MarkedRun:
        return self._read(run_api.MarkedRun, "PATCH", self._path(name), json=change.to_dict())

    def prioritize(self, name: str, priority: int) -> run_api.RunPriority:
        body = run_api.RunPriority(priority=priority)
        return self._read(run_api.RunPriority, "PUT", self._path(name, "priority"), json=body)

    def delete(self, name: str) -> None:
        self._call("DELETE", self._path(name))

    def schedules(self) -> list[run_api.ScheduleRow]:
        return self._read(run_api.ScheduleList, "GET", "schedules").schedules

    def stop_schedule(self, name: str) -> None:
        self._call("DELETE", f"schedules/{quote(name, safe='')}")

    def share(self, name: str, expires_in: int) -> run_api.ShareLink:
        body = run_api.NewShareLink(expires_in=expires_in)
        return self._read(run_api.ShareLink, "POST", self._path(name, "share-links"), json=body)

    def share_links(self, name: str) -> list[run_api.ShareLink]:
        return self._get(run_api.ShareLinkList, name, "share-links").links

    def unshare(self, name: str, link_id: str) -> None:
        self._call("DELETE", self._path(name, f"share-links/{link_id}"))

    def logs(self, name: str, *, limit: int = LOG_PAGE, cursor: str | None = None, newer: bool = False) -> LogPage:
        """Return a page of lines, oldest first: without a cursor the last ones, or with `newer` the first ones."""
        params = {"limit": limit, "direction": "newer" if newer else "older", "cursor": cursor}
        return self._get(LogPage, name, "logs", params)

    def manifest(self, name: str, *, types: str, rows: str | None = None) -> run_api.RunFiles:
        params = {"types": types, "rows": rows}
        return self._read(run_api.RunFiles, "GET", self._path(name, f"{self.outputs}/manifest"), params=params)

    def download_urls(self, name: str, files: Sequence[run_api.RunFile]) -> dict[str, str]:
        body = run_api.WantedFiles(items=[run_api.WantedFile(path=file.path, token=file.token) for file in files])
        answer = self._read(run_api.FileAddresses, "POST", self._path(name, f"{self.outputs}/download-urls"), json=body)
        return {item.path: item.url for item in answer.items if item.url}

    def _get(self, kind: type[R], name: str, tail: str = "", params: Params | None = None) -> R:
        name = name.removeprefix(PREFIX)
        last_name = self._full.get(name, name)
        try:
            return self._read(kind, "GET", self._path(last_name, tail), params=params)
        except NotFound:
            full = match_name(name, [row.name for row in self.page(limit=NAMES).rows])
            if full is None or full == last_name:
                raise  # the run is there, and something of it is not; or there is no such run
            self._full[name] = full
            return self._read(kind, "GET", self._path(full, tail), params=params)

    def _path(self, name: str, tail: str = "") -> str:
        return f"{self.noun}/{quote(name.removeprefix(PREFIX), safe='')}" + (f"/{tail}" if tail else "")


OUTCOMES = 200
PAGE_ROWS = 50


class EvalRuns(Runs):
    noun = "eval-runs"
    listed = run_api.EvalRunPage
    whole = run_api.EvalRunDetail
    figures = run_api.EvalMetrics

    def retry(self, name: str, request: run_api.RetryRun) -> run_api.RetriedRun:
        """Retry failed and skipped rollouts. Raise NothingToRetry, or Conflict when the budget is spent."""
        return self._read(run_api.RetriedRun, "POST", self._path(name, "retry"), json=request)

    def rollouts(
        self, name: str, *, limit: int = 50, offset: int = 0, status: str | None = None
    ) -> run_api.RolloutPage:
        params = {"limit": limit, "offset": offset, "status": status}
        return self._get(run_api.RolloutPage, name, "rollouts", params)

    def outcomes(self, name: str) -> Iterator[Rollout]:
        for page in self._pages(run_api.OutcomePage, self._path(name, "outcomes"), limit=OUTCOMES):
            yield from page.outcomes

    def arrived(self, name: str, *, after: int) -> Iterator[run_api.OutcomePage]:
        """Yield all rollouts but the first ones, with conversations, in the order of arrival."""
        return self._pages(
            run_api.OutcomePage, self._path(name, "outcomes"), limit=PAGE_ROWS, offset=after, params={"whole": 1}
        )

    def trained_rows(self, name: str) -> set[str]:
        try:
            return set(self._read(training_api.TrainedRows, "GET", self._path(name, "trained-rows")).rows)
        except NotFound:
            return set()

    def amount(self, name: str) -> int:
        params = {"limit": 1, "offset": 0}
        page = self._read(run_api.OutcomePage, "GET", self._path(name, "outcomes"), params=params)
        return page.total_count or len(page.outcomes)

    def rollout(self, name: str, row: int, attempt: int) -> Rollout:
        return self._get(Rollout, name, f"rollouts/{row}/{attempt}")

    def decisions(self, name: str = "") -> list[StudyState]:
        return self._read(run_api.DecisionList, "GET", "decisions", params={"name": name}).decisions

    def decide(self, body: run_api.NewDecision) -> StudyState:
        return self._read(run_api.DecisionList, "POST", "decisions", json=body.to_dict()).decisions[0]

    def stop_decision(self, name: str) -> None:
        self._call("POST", f"decisions/{quote(name, safe='')}/stop", json={})

    def history(self, **asked: str) -> History:
        return self._read(History, "GET", "history", params=asked)


class BenchmarkRuns(Runs):
    noun = "benchmark-runs"
    listed = BenchmarkRunPage
    whole = BenchmarkRunDetail
    figures = run_api.EvalMetrics
    outputs = "outputs"


class TrainingRuns(Runs):
    noun = "training-runs"
    listed = training_api.TrainingRunPage
    whole = training_api.TrainingRunDetail
    figures = training_api.TrainingMetrics

    def check(self, body: Mapping[str, object], *, eval_run: str | None = None) -> training_api.TrainingCheck:
        path = f"{self.noun}/check" + (f"?eval_run={quote(eval_run, safe='')}" if eval_run else "")
        return self._read(training_api.TrainingCheck, "POST", path, json=body)

    def start_again(self, name: str, secrets: Mapping[str, str], *, fresh: bool) -> run_api.SubmittedRun:
        body = run_api.RetryRun(secrets=dict(secrets) or None)
        path = self._path(name, "retry" if fresh else "resume")
        return self._read(run_api.SubmittedRun, "POST", path, json=body)

    def checkpoints(self, name: str) -> list[training_api.CheckpointRow]:
        return self._get(training_api.CheckpointList, name, "checkpoints").checkpoints


class Workers(Section):
    def all(self) -> list[WorkerRow]:
        return self._read(WorkerList, "GET", "workers", scoped=False).workers

    def drain(self, name: str) -> None:
        self._call("POST", f"workers/{quote(name, safe='')}/drain", json={}, scoped=False)

    def remove(self, name: str) -> int:
        return self._read(WorkerRemoved, "DELETE", f"workers/{quote(name, safe='')}", scoped=False).released
