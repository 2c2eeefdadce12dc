"""What the pages of a run need from its store.

A source answers for one run and is made anew for each page, so that a page shows one moment; what is missing raises
`NotFound`. Addresses are given as the source's server knows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from osmosis.records.contract.body import LogPage
from osmosis.records.contract.run_bodies import RolloutRow, RunEvent
from osmosis.records.report import Report
from osmosis.records.rollout import Failure, RolloutStatus
from osmosis.records.run import MetricPoint, RunKind, RunStatus

OUTCOMES = ("passed", "not-passed", "failed", "skipped")
ORDERS = ("row", "reward", "tokens", "duration")
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
    pass_threshold: float = 1.0
    stage: str = ""
    stopping: bool = False
    duration_ms: float | None = None
    """From the first start to the end, or to now."""
    failure: Failure | None = None

    @property
    def over(self) -> bool:
        return self.status.over

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
class Origin:
    """What a run was made of and what happened to it; does not change while it is in progress."""

    facts: Sequence[Fact]
    history: Sequence[RunEvent]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The config of a run as its file has it, and what was fixed beside it."""

    config: Mapping[str, object]
    title: str
    facts: Sequence[Fact]


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Which rollouts are wanted, in which order; `threshold` tells passed from not passed."""

    threshold: float
    outcome: str = ""
    category: str = ""
    row: int | None = None
    order: str = "row"
    limit: int = 50
    offset: int = 0
    step: int | None = None
    """Of a training run; None: all."""


@dataclass(frozen=True, slots=True)
class RolloutList:
    rows: Sequence[RolloutRow]
    total: int
    """How many fit the query."""
    outcomes: Mapping[str, int]
    """How many of the run have each outcome, whatever the query."""


Key = tuple[int, int, int]
"""Row, attempt and step."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The rollouts before and after one, by step, row and attempt."""

    before: Key | None = None
    after: Key | None = None
    next_failed: Key | None = None
    """The next one without a score."""


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


class RunSource(Protocol):
    """One run, wherever it is kept."""

    def state(self) -> RunState: ...

    def place(self) -> RunPlace: ...

    def report(self) -> Report | None:
        """None before the first one."""

    def origin(self) -> Origin: ...

    def settings(self) -> RunSettings: ...

    def rewards(self) -> Sequence[float]:
        """Every reward there is, ascending."""

    def points(self) -> Sequence[MetricPoint]:
        """The curves of a training run, each key's in order of step."""

    def checkpoints(self) -> Sequence[CheckpointLine]: ...

    def rollouts(self, query: RolloutQuery) -> RolloutList: ...

    def rollout(self, row_index: int, attempt: int, step: int) -> str:
        """One record as JSON text, as it was stored."""

    def neighbours(self, row_index: int, attempt: int, step: int) -> Neighbours: ...

    def attempts(self, row_index: int, step: int) -> Sequence[RolloutRow]:
        """Those at the same row in the same step, in order."""

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        """Lines of this level and above, older than the cursor (or the newest), oldest first."""


def outcome_of(row: RolloutRow, threshold: float) -> str:
    """`passed`, `not-passed`, `failed` (no score, for whatever reason) or `skipped`."""
    if row.status == RolloutStatus.SKIPPED.value:
        return "skipped"
    if row.reward is None:
        return "failed"
    return "passed" if row.reward >= threshold else "not-passed"
