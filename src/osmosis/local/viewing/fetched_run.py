"""An evaluation on the platform as one more run of this machine's pages (`viewer.source.RunSource`): only looked at.

What is said of it is asked for anew as long as it goes on; its rollouts are read once into an index of this machine.
A conversation is fetched when it is opened.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError as PydanticError

from osmosis.client import PlatformClient
from osmosis.datasets.scan import read_rows
from osmosis.errors import NotFound, OsmosisError
from osmosis.local.platform_config import config_of
from osmosis.records.annotation import Annotation, newest
from osmosis.records.config import Evaluation
from osmosis.records.contract.body import LogPage
from osmosis.records.contract.run_bodies import RunDetail
from osmosis.records.dataset import Row
from osmosis.records.marks import Marks
from osmosis.records.plan import EvalPlan, Selection
from osmosis.records.quarantine import RowQuarantine
from osmosis.records.report import Report
from osmosis.records.rollout import Failure
from osmosis.records.run_status import RunStatus
from osmosis.viewer.index.file import Fillers
from osmosis.viewer.index.search import Search
from osmosis.viewer.source import (
    LEVELS,
    CodeAt,
    Fact,
    Link,
    Origin,
    RolloutTable,
    RunPlace,
    RunSettings,
    RunState,
)

from .annotation_file import read_annotations
from .indexed_run import IndexedRun
from .journal_run import plan_tables

WAIT_S = 0.8
"""So long a page waits for its index to be filled; the rest follows."""
FRESH_S = 1.0
"""So long an answer about a run that goes on is as good as a new one."""
FRESH_OVER_S = 30.0
"""The same of one that is over: somebody may retry it."""
MOST_DATASET_BYTES = 256 * 1024 * 1024
"""A larger dataset is not fetched to stand beside the rollouts."""
_FILLERS = Fillers()


@dataclass(frozen=True, slots=True)
class PlatformAnswer:
    """What the platform said at one moment."""

    at: float
    detail: RunDetail
    amount: int
    """Of its rollouts."""


class PlatformEvaluation:
    """One evaluation on the platform, as long as somebody looks. NotFound when it has none of this name."""

    def __init__(self, client: PlatformClient, name: str, cache: Path) -> None:
        self.client = client
        self.cache = cache
        self.name = client.evals.get(name).run.name
        self._seen: PlatformAnswer | None = None
        self._said: tuple[float, Sequence[Annotation]] | None = None

    @property
    def id(self) -> str:
        """Its name in addresses."""
        return f"{self.name}~platform"

    def seen(self) -> PlatformAnswer:
        now, last = time.monotonic(), self._seen
        if last is None or now - last.at > (FRESH_OVER_S if last.detail.run.over else FRESH_S):
            detail = self.client.evals.get(self.name)  # before the rollouts: those of a run that is over are all
            last = self._seen = PlatformAnswer(now, detail, self.client.evals.amount(self.name))
        return last

    def said(self) -> Sequence[Annotation]:
        """What people said of its rollouts there, as old as `seen`."""
        at = self.seen().at
        if self._said is None or self._said[0] != at:
            self._said = at, newest(self._fetched_labels())
        return self._said[1]

    def _fetched_labels(self) -> list[Annotation]:
        evals = self.client.evals
        files = evals.manifest(self.name, types="annotations").files
        found: list[Annotation] = []
        with TemporaryDirectory(prefix="osmosis-view-") as folder:
            for url in evals.download_urls(self.name, files).values() if files else ():
                self.client.transfer.download(url, Path(folder, "labels"))
                found += read_annotations(Path(folder, "labels"))
        return found

    def forget(self) -> None:
        """The next page asks anew."""
        self._seen = None


@dataclass(frozen=True)
class FetchedRun(IndexedRun):
    """It, for one page."""

    of: PlatformEvaluation

    @property
    def name(self) -> str:
        """What means it on the command line, too."""
        return f"platform:{self.of.name}"

    @cached_property
    def _seen(self) -> PlatformAnswer:
        return self.of.seen()

    @cached_property
    def _state(self) -> RunState:
        seen, report = self._seen.detail, self._seen.detail.report
        status = status_of(seen)
        failure = seen.failure.to_dict() if seen.failure is not None and status.over else None
        return RunState(
            url=f"/runs/{self.of.id}",
            name=self.name,
            kind="eval",
            status=status,
            model=str((seen.config or {}).get("model_path") or ""),
            completed=self._seen.amount,
            total=max(seen.counted[1], self._seen.amount),
            dataset=self.dataset,
            pass_threshold=self.evaluation.pass_threshold,
            stage=seen.stage,
            stopping=bool(seen.run.stop_requested) and not status.over,
            duration_ms=report.duration_ms if report else None,
            failure=_failure(failure),
        )

    @property
    def dataset(self) -> str:
        found = self._seen.detail.dataset
        return (found.name if found else None) or ""

    @property
    def rollout_name(self) -> str:
        found = self._seen.detail.rollout
        return (found.name if found else None) or ""

    @property
    def commit(self) -> str:
        return self._seen.detail.commit_sha or ""

    @property
    def created_at(self) -> str:
        return self._seen.detail.run.created_at or ""

    @cached_property
    def evaluation(self) -> Evaluation:
        return Evaluation.model_validate((self._seen.detail.config or {}).get("evaluation") or {})

    def state(self) -> RunState:
        return self._state

    def place(self) -> RunPlace:
        run = self._seen.detail.run
        marks = Marks(tags=run.tags or [], note=run.note or "", pinned=bool(run.pinned))
        return RunPlace((Link("Runs", "/"),), marks=marks)

    def report(self) -> Report | None:
        return self._seen.detail.report

    def quarantine(self) -> RowQuarantine:
        return self._seen.detail.quarantine or RowQuarantine()

    def origin(self) -> Origin:
        seen = self._seen.detail
        branch = f"on {seen.branch}" if seen.branch else ""
        commit = Fact("Commit", self.commit[:12] or None, code=True, help=self.commit, note=branch)
        facts = (
            Fact("Where", "on the platform", url=seen.run.platform_url, note="only looked at here"),
            Fact("Rollout", self.rollout_name),
            Fact("Model", self._state.model),
            Fact("Dataset", self.dataset),
            commit,
            Fact("Submitted", self.created_at or None, note=f"by {seen.run.creator_name}"),
        )
        folder = f"rollouts/{self.rollout_name}" if self.rollout_name else ""
        return Origin(facts, seen.events, seen.snapshot, code=CodeAt(self.commit, folder) if self.commit else None)

    def settings(self) -> RunSettings:
        """By the names that runs of this machine have for theirs, so that both can be compared."""
        seen = self._seen.detail
        try:
            plan = EvalPlan.from_config(config_of(seen), name=self.of.name, dataset=self.dataset)
        except PydanticError:  # of a run that was made elsewhere and uploaded, or of another server
            return RunSettings(seen.config or {}, "Submitted", self.origin().facts)
        tables = {**plan_tables(plan), "env": seen.env_config or {}}
        return RunSettings(tables, "Pinned at submit", self.origin().facts)

    def read_table(self) -> RolloutTable:
        feed = PlatformFeed(self.of, self._seen)
        name = hashlib.sha256(feed.epoch.encode()).hexdigest()[:24]
        path = self.of.cache / "viewer" / f"{name}.db"
        index, progress = _FILLERS.filled(path, feed, self.evaluation.pass_threshold, seconds=WAIT_S)
        index.label(_version(self.annotations()), self.annotations)
        return RolloutTable(Search(index), progress)

    def annotations(self) -> Sequence[Annotation]:
        """Those of the platform; more are written there, or beside a downloaded run."""
        return self.of.said()

    def rollout(self, row_index: int, attempt: int, step: int) -> str:
        if step:
            raise NotFound(f"{self.name} has no step {step}", hint="an evaluation has no steps")
        return self.of.client.evals.rollout(self.of.name, row_index, attempt).model_dump_json()

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        page = self.of.client.evals.logs(self.of.name, cursor=cursor, newer=newer)
        shown = LEVELS[LEVELS.index(level) :]
        return page.model_copy(update={"logs": [line for line in page.logs if line.level in shown]})


@dataclass(frozen=True)
class PlatformFeed:
    """`viewer.index.file.Feed` of it; a place is how many rollouts arrived before."""

    of: PlatformEvaluation
    seen: PlatformAnswer

    @property
    def epoch(self) -> str:
        """Another one after a retry, which drops what it repeats."""
        run = self.seen.detail.run
        starts = sum(event.status == RunStatus.PENDING.value for event in self.seen.detail.events)
        return f"{self.of.client.url}|{run.id}|{starts}"

    def extent(self) -> int:
        return self.seen.amount

    def since(self, place: int) -> Iterator[tuple[int, int, bytes]]:
        for page in self.of.client.evals.arrived(self.of.name, after=place):
            for one in page.outcomes:
                yield place, place + 1, one.model_dump_json().encode()
                place += 1

    def dataset_rows(self) -> Iterable[Row]:
        """Of the dataset as the platform has it now; a row that is another one by now is not shown."""
        named = self.seen.detail.dataset
        if named is None or not named.name:
            return
        try:
            yield from _rows(self.of.client, named.name)
        except OsmosisError:
            return  # deleted, or no longer a dataset: the rollouts are shown without it


def _version(said: Sequence[Annotation]) -> int:
    """Another number for other annotations; 0 for none."""
    if not said:
        return 0
    return int.from_bytes(hashlib.sha256(b"".join(one.to_line() for one in said)).digest()[:6], "big")


def _rows(client: PlatformClient, name: str) -> Iterator[Row]:
    entry = client.datasets.get(name)
    if (entry.file_size or 0) > MOST_DATASET_BYTES:
        return
    with TemporaryDirectory(prefix="osmosis-view-") as folder:
        path = Path(folder, f"dataset.{entry.file_format or 'jsonl'}")
        client.datasets.download(name, path)
        yield from read_rows(path, Selection(), skip_bad=True)


def status_of(seen: RunDetail) -> RunStatus:
    """In our words, whatever server said it."""
    try:
        return RunStatus(seen.run.status)
    except ValueError:
        return RunStatus.FAILED if seen.run.over else RunStatus.RUNNING


def _failure(found: object) -> Failure | None:
    try:
        return None if found is None else Failure.model_validate(found)
    except PydanticError:
        return None
