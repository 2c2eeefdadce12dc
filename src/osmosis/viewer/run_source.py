"""The store of a run, as one page needs it: it shows one moment, and what is missing raises `NotFound`."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from osmosis.base.git import Git
from osmosis.records.api.body import LogPage
from osmosis.records.api.runs import RunEvent
from osmosis.records.config.optimize import Optimization
from osmosis.records.run.annotations import Annotation, Marks
from osmosis.records.run.history import RowCount
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.report import Branched, Interval, Report
from osmosis.records.run.rollout import Failure, Rollout
from osmosis.records.run.rows import RowQuarantine
from osmosis.records.run.source import SnapshotNote
from osmosis.records.run.status import RunKind, RunStatus, ended_by_limit
from osmosis.records.run.study import StudyRun, StudyState
from osmosis.viewer.index import IndexProgress
from osmosis.viewer.search import Search

CONFIGS = "configs"
LEVELS = ("debug", "info", "warning", "error")
STAGES = ("checkout", "preflight", "environment", "start", "rollouts", "training", "report")
StageState = Literal["done", "now", "later"]


@dataclass(frozen=True, slots=True)
class RunState:
    url: str
    name: str
    kind: RunKind
    status: RunStatus
    model: str
    completed: int  # Rollouts that exist, or steps of a training run
    total: int
    dataset: str = ""
    created_at: str = ""
    pass_threshold: float = 1.0
    stage: str = ""
    stopping: bool = False
    duration_ms: float | None = None
    failure: Failure | None = None
    staged: bool = True
    is_search: bool = False  # True when it improves texts: the rollouts of its candidates have steps of their own
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """Number of attempts that run now, by their stage; empty where that is unknown."""
    longest: Sequence[tuple[str, str, float]] = ()  # The oldest of them: name, stage and seconds in it

    @property
    def has_steps(self) -> bool:
        return self.is_search or self.kind == "training"

    @property
    def over(self) -> bool:
        return self.status.over

    @property
    def doing(self) -> str:
        return f"{self.status.value}-stopping" if self.stopping and not self.over else self.status.value

    @property
    def at_limit(self) -> bool:
        return self.failure is not None and ended_by_limit(self.status.value, self.failure.category.value)

    @property
    def left_ms(self) -> float | None:
        """Return the time that the rest takes at the rate so far; None when that cannot be said."""
        if self.over or self.stopping or not self.duration_ms or not 0 < self.completed < self.total:
            return None
        return self.duration_ms * (self.total - self.completed) / self.completed

    @property
    def share(self) -> float:
        return 100.0 * self.completed / self.total if self.total else 0.0

    @property
    def stages(self) -> list[tuple[str, StageState]]:
        stages = [stage for stage in STAGES if stage != ("training" if self.kind == "eval" else "rollouts")]
        if self.status is RunStatus.FINISHED:
            return [(stage, "done") for stage in stages]
        if self.stage not in stages:
            return [(stage, "later") for stage in stages]
        now = stages.index(self.stage)
        return [(stage, "done" if i < now else "now" if i == now else "later") for i, stage in enumerate(stages)]


@dataclass(frozen=True, slots=True)
class Fact:
    label: str
    text: str | datetime | None
    url: str | None = None
    code: bool = False
    help: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class CodeVersion:
    commit: str
    folder: str = ""
    dirty: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    facts: Sequence[Fact]
    history: Sequence[RunEvent]
    snapshot: SnapshotNote | None = None
    web: str = ""
    code: CodeVersion | None = None
    optimization: Optimization | None = None


@dataclass(frozen=True, slots=True)
class RunSettings:
    config: Mapping[str, object]
    title: str
    facts: Sequence[Fact]


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    name: str
    step: int
    status: str
    reward: float | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Artifact:
    path: str
    size: int
    url: str = ""  # Of the content; of a local run only for images: a data URL
    text: str = ""  # The content of a short text of a local run


@dataclass(frozen=True, slots=True)
class RunContext:
    in_list: bool = False  # True where there is a list of runs, and a history of rows
    workspace: str = ""
    actions: Sequence[str] = ()  # What the viewer may do: stop, retry, share, delete
    tabs: Sequence[str] = ("rollouts", "config", "logs")
    author: str | None = None  # Name of the viewer; None if they may not annotate or mark it
    marks: Marks = field(default_factory=Marks)
    can_add_rows: bool = False
    branches: Callable[[str], Sequence[Branched]] | None = None
    artifacts: Callable[[Rollout], Iterable[Artifact]] = field(default=lambda rollout: ())


@dataclass(frozen=True, slots=True)
class RolloutTable:
    search: Search
    progress: IndexProgress


class RunSource(Protocol):
    def state(self) -> RunState: ...
    def context(self) -> RunContext: ...
    def report(self) -> Report | None: ...
    def quarantine(self) -> RowQuarantine: ...
    def origin(self) -> Origin: ...
    def settings(self) -> RunSettings: ...
    def rewards(self) -> Sequence[float]: ...
    def points(self) -> Sequence[MetricPoint]: ...
    def checkpoints(self) -> Sequence[CheckpointLine]: ...
    def trained_rows(self) -> Collection[str]: ...
    def table(self) -> RolloutTable: ...
    def rollout(self, row_index: int, attempt: int, step: int) -> str: ...

    def is_indexed(self, *, wait: bool = False) -> bool:
        """Return whether `row_count` sees every rollout; with `wait`, after waiting until it does."""

    def row_count(self, key: str) -> RowCount | None: ...
    def annotations(self) -> Sequence[Annotation]: ...
    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage: ...


@dataclass(frozen=True, slots=True)
class CodePair:
    names: tuple[str, str]
    code: tuple[CodeVersion | None, CodeVersion | None]
    repositories: Sequence[Git] = ()
    no_repository: str = ""

    @property
    def folders(self) -> list[str]:
        """Return the folders to compare; None means all, for an agent outside a rollout project."""
        folders = [version.folder for version in self.code if version is not None]
        return [*dict.fromkeys(folders), CONFIGS] if all(folders) else []


def pair_code(a: RunSource, b: RunSource, repositories: Sequence[Git], *, no_repository: str = "") -> CodePair:
    names, code = (a.state().name, b.state().name), (a.origin().code, b.origin().code)
    return CodePair(names, code, repositories, no_repository)


@dataclass(frozen=True, slots=True)
class RunCard:
    id: str
    name: str
    state: RunState | None = None
    score: str = ""
    mean: float | None = None
    interval: Interval | None = None
    pass_rate: float | None = None
    cost_usd: float | None = None
    failed: int = 0
    dataset: str = ""
    rollout: str = ""
    commit: str = ""
    marks: Marks = field(default_factory=Marks)
    problem: str = ""

    def to_study_run(self) -> StudyRun:
        if self.state is None:
            return StudyRun(id=self.id, name=self.name)
        done = {"rollouts": self.state.completed, "failed": self.failed, "cost_usd": self.cost_usd or 0.0}
        return StudyRun(id=self.id, name=self.name, url=self.state.url, status=self.state.status.value, **done)


class Library(Protocol):
    def run(self, id: str) -> RunSource: ...
    def cards(self) -> Sequence[RunCard]: ...
    def code(self, a: str, b: str) -> CodePair: ...
    def quarantine(self) -> RowQuarantine: ...
    def decisions(self, id_: str = "") -> Sequence[StudyState]:
        """Return all of them, the newest first, or the one with this id."""

    def preferences(self, ids: Sequence[str]) -> Sequence[str]:
        """Return what judges prefer of the answers of these runs, for each judge and rubric."""


def build_card(
    id_: str, state: RunState, report: Report | None, marks: Marks, *, dataset: str, rollout: str, commit: str
) -> RunCard:
    primary = report.primary if report else None
    return RunCard(
        id=id_,
        name=state.name,
        state=state,
        score=primary.name if primary else "",
        mean=primary.mean if primary else None,
        interval=primary.mean_interval if primary else None,
        pass_rate=primary.pass_rate if primary else None,
        cost_usd=report.usage.cost_usd if report else None,
        failed=primary.failed if primary else report.failed if report else 0,
        dataset=dataset,
        rollout=rollout,
        commit=commit,
        marks=marks,
    )
