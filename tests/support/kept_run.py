"""A run in memory as a `RunSource`: what the viewer shows without a platform, and its pages as text and records."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis.errors import NotFound
from osmosis.records.api.body import LogEntry, LogPage
from osmosis.records.run.annotations import Annotation, Marks
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import Row, RowQuarantine
from osmosis.viewer import routes
from osmosis.viewer.index import IndexProgress, RolloutIndex
from osmosis.viewer.page import Document, Page, QueryParams, build_environment
from osmosis.viewer.run_source import (
    CheckpointLine,
    CodePair,
    Origin,
    RolloutTable,
    RunCard,
    RunContext,
    RunSettings,
    RunState,
    pair_code,
)
from osmosis.viewer.search import Search


@dataclass
class KeptRun:
    """Everything that pages ask for, given."""

    run: RunState
    found: Report | None = None
    kept: Sequence[Rollout] = ()
    made_of: Origin = field(default_factory=lambda: Origin((), ()))
    fixed: RunSettings = field(default_factory=lambda: RunSettings({}, "Fixed", ()))
    lines: Sequence[LogEntry] = ()
    curve: Sequence[MetricPoint] = ()
    saved: Sequence[CheckpointLine] = ()
    trained: Sequence[str] = ()
    rows: Sequence[Row] = ()
    """Of the dataset."""
    said: Sequence[Annotation] = ()
    author: str | None = None
    aside: RowQuarantine = field(default_factory=RowQuarantine)
    marks: Marks = field(default_factory=Marks)
    unread: int = 0
    """Rollouts that are not indexed yet."""

    def state(self) -> RunState:
        return self.run

    def context(self) -> RunContext:
        return RunContext(in_list=True, author=self.author, marks=self.marks)

    def report(self) -> Report | None:
        return self.found

    def quarantine(self) -> RowQuarantine:
        return self.aside

    def origin(self) -> Origin:
        return self.made_of

    def settings(self) -> RunSettings:
        return self.fixed

    def rewards(self) -> Sequence[float]:
        return self.table().search.rewards()

    def points(self) -> Sequence[MetricPoint]:
        return self.curve

    def checkpoints(self) -> Sequence[CheckpointLine]:
        return self.saved

    def trained_rows(self) -> Sequence[str]:
        return self.trained

    def table(self) -> RolloutTable:
        index = RolloutIndex(None, epoch="", threshold=self.run.pass_threshold)
        index.fill(self)
        index.set_labels(1, lambda: self.said)
        return RolloutTable(Search(index), IndexProgress(len(self.kept), len(self.kept) + self.unread))

    epoch = ""

    def since(self, place: int) -> Iterator[tuple[int, int, bytes]]:
        """As `viewer.index.file.Feed`."""
        for number, rollout in enumerate(self.kept[place:], place):
            yield number, number + 1, rollout.to_line()

    def extent(self) -> int:
        return len(self.kept)

    def dataset_rows(self) -> Iterable[Row]:
        return self.rows

    def rollout(self, row_index: int, attempt: int, step: int) -> str:
        for rollout in self.kept:
            if (*rollout.place, rollout.step) == (row_index, attempt, step):
                return rollout.to_line().decode()
        raise NotFound(f"no rollout of row {row_index}, attempt {attempt} in this run")

    def annotations(self) -> Sequence[Annotation]:
        return self.said

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        return LogPage(logs=list(self.lines))


@dataclass
class Shelf:
    """Runs in memory as a library."""

    kept: dict[str, KeptRun]
    preferred: Sequence[str] = ()

    def preferences(self, ids: Sequence[str]) -> Sequence[str]:
        return self.preferred

    def run(self, id: str) -> KeptRun:
        if id not in self.kept:
            raise NotFound("no such run")
        return self.kept[id]

    def cards(self) -> Sequence[RunCard]:
        return [RunCard(id_, run.run.name, run.run) for id_, run in self.kept.items()]

    def code(self, a: str, b: str) -> CodePair:
        return pair_code(self.run(a), self.run(b), ())

    def quarantine(self) -> RowQuarantine:
        return RowQuarantine()


ENVIRONMENT = build_environment()


def html_of(page: Page) -> str:
    return ENVIRONMENT.get_template(page.template).render(**page.values)


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def answer_of(kept: KeptRun, path: str, query: str = "", **more: object) -> Page | Document:
    """Return the page or document at a path of the run; `query` is that of an address, `more` adds values to it."""
    pairs = [*(pair.partition("=")[::2] for pair in query.split("&") if pair), *((k, str(v)) for k, v in more.items())]
    found = routes.build_run_page(kept, path, QueryParams(pairs))
    assert isinstance(found, Page | Document)
    return found


def page_of(kept: KeptRun, path: str, query: str = "", **more: object) -> str:
    found = answer_of(kept, path, query, **more)
    assert isinstance(found, Page)
    return html_of(found)


def record_of(kept: KeptRun, path: str, query: str = "", **more: object) -> Any:
    found = answer_of(kept, path, query, **more)
    assert isinstance(found, Document)
    return json.loads(b"".join(found.content))
