"""What the pages of a run need from its store.

A source answers for one run and is made anew for each page, so that a page shows one moment; what is missing raises
`NotFound`. Addresses are given as the source's server knows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from osmosis.records.annotation import Annotation
from osmosis.records.contract.body import LogPage
from osmosis.records.contract.run_bodies import RunEvent
from osmosis.records.history import RowCount
from osmosis.records.marks import Marks
from osmosis.records.quarantine import RowQuarantine
from osmosis.records.report import Report
from osmosis.records.rollout import Failure
from osmosis.records.run import MetricPoint
from osmosis.records.run_kind import RunKind
from osmosis.records.run_status import RunStatus, at_its_limit
from osmosis.records.source import SnapshotNote

from .index.file import IndexProgress
from .index.search import Search

LEVELS = ("debug", "info", "warning", "error")
STAGES = ("checkout", "preflight", "environment", "start", "rollouts", "training", "report")
"""Of a job, in their order (records.run.Stage)."""
StageState = Literal["done", "now", "later"]


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as it is at this moment."""

    url: str
    """Where its pages begin: `/runs/<id>`."""
    name: str
    kind: RunKind
    status: RunStatus
    model: str
    completed: int
    """Rollouts that exist; of a training run, steps."""
    total: int
    dataset: str = ""
    """Its name; a file's without the ending."""
    pass_threshold: float = 1.0
    stage: str = ""
    stopping: bool = False
    duration_ms: float | None = None
    """From the first start to the end, or to now."""
    failure: Failure | None = None
    staged: bool = True
    """Whether a job goes through stages with it."""

    @property
    def over(self) -> bool:
        return self.status.over

    @property
    def doing(self) -> str:
        """What decides which actions there are."""
        return f"{self.status.value}-stopping" if self.stopping and not self.over else self.status.value

    @property
    def at_limit(self) -> bool:
        """Whether its own limit ended it."""
        return self.failure is not None and at_its_limit(self.status.value, self.failure.category.value)

    @property
    def share(self) -> float:
        """Of the rollouts that exist, 0 to 100."""
        return 100.0 * self.completed / self.total if self.total else 0.0

    @property
    def stages(self) -> list[tuple[str, StageState]]:
        known = [stage for stage in STAGES if stage != ("training" if self.kind == "eval" else "rollouts")]
        if self.status is RunStatus.FINISHED:
            return [(stage, "done") for stage in known]
        if self.stage not in known:
            return [(stage, "later") for stage in known]
        at = known.index(self.stage)
        return [(stage, "done" if i < at else "now" if i == at else "later") for i, stage in enumerate(known)]


@dataclass(frozen=True, slots=True)
class Link:
    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Action:
    """Something a person can do with the run: a form that is posted to `url`."""

    label: str
    url: str
    help: str = ""
    enabled: bool = True
    asked: str = ""
    """What has to be answered first: a question, behind which the button is."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line about a run: a label and a text, which may be a link, code or a moment."""

    label: str
    text: str | datetime | None
    url: str | None = None
    code: bool = False
    help: str = ""
    note: str = ""
    """Shown next to it."""


@dataclass(frozen=True, slots=True)
class CodeAt:
    """The code that a run was made of."""

    commit: str
    folder: str = ""
    """Of the rollout, in the workspace; empty where the agent is no rollout of one."""
    dirty: bool = False
    """Together with changes that are in no commit."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a run was made of and what happened to it; does not change while it is in progress."""

    facts: Sequence[Fact]
    history: Sequence[RunEvent]
    snapshot: SnapshotNote | None = None
    """What was not committed where the run was submitted."""
    web: str = ""
    """Where the repository of its commit is read in a browser; empty: nowhere that is known."""
    code: CodeAt | None = None
    """None where no commit is known."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The config of a run as its file has it, and what was fixed beside it."""

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
class RunPlace:
    """Where the run stands among others, and what can be done with it."""

    crumbs: Sequence[Link] = field(default_factory=tuple)
    actions: Sequence[Action] = field(default_factory=tuple)
    tabs: Sequence[str] = ("rollouts", "config", "logs")
    """The pages beside the first one."""
    author: str | None = None
    """Who looks, where they may say what they think of a rollout."""
    marks: Marks = field(default_factory=Marks)
    """What is written on the run."""
    marking: str = ""
    """Where the form that changes it goes; empty where it cannot be changed."""


@dataclass(frozen=True, slots=True)
class RolloutTable:
    search: Search
    progress: IndexProgress
    """How far the index has come; the rest follows by itself."""


class RunSource(Protocol):
    """One run, wherever it is kept."""

    def state(self) -> RunState: ...

    def place(self) -> RunPlace: ...

    def report(self) -> Report | None:
        """None before the first one."""

    def quarantine(self) -> RowQuarantine:
        """Rows that do not decide; what is in it may mean rows of other runs, too."""

    def origin(self) -> Origin: ...

    def settings(self) -> RunSettings: ...

    def rewards(self) -> Sequence[float]:
        """Every reward there is, ascending."""

    def points(self) -> Sequence[MetricPoint]:
        """The curves of a training run, each key's in order of step."""

    def checkpoints(self) -> Sequence[CheckpointLine]: ...

    def table(self) -> RolloutTable:
        """The rollouts as they can be searched now."""

    def rollout(self, row_index: int, attempt: int, step: int) -> str:
        """One record as JSON text, as it was stored."""

    def whole(self, *, wait: bool = False) -> bool:
        """Whether `row` sees every rollout that there is; with `wait` it does, afterwards."""

    def row(self, key: str) -> RowCount | None:
        """How the attempts at the row with this key (or this id) ended; None when there is none."""

    def annotations(self) -> Sequence[Annotation]:
        """What people said about its rollouts, what counts of it."""

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        """Lines of this level and above, older than the cursor (or the newest), oldest first."""
