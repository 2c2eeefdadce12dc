"""What became of a row, or of a figure, over the runs of somebody: one record, wherever the runs are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field

from .base import Record
from .quarantine import QuarantinedRow

RowState = Literal["passed", "failed", "flaky", "no score"]


class RowCount(Record):
    """How the attempts at one row ended in one run."""

    row_index: int
    """Where it stood in the dataset then."""
    passed: int = 0
    missed: int = 0
    """Scored, and below the threshold."""
    unscored: int = 0
    mean: float | None = None
    """Of the first score."""

    @property
    def attempts(self) -> int:
        return self.passed + self.missed + self.unscored

    @property
    def state(self) -> RowState:
        """`flaky`: some attempts pass and some do not."""
        if self.passed and self.missed:
            return "flaky"
        return "passed" if self.passed else "failed" if self.missed else "no score"


class PastRun(Record):
    """One run in a history."""

    id: str
    name: str
    url: str = ""
    """Of its page, as the server knows it; empty where there is none."""
    place: str = ""
    """`here` or the platform's address, where a history has runs of both."""
    rollout: str = ""
    model: str = ""
    dataset: str = ""
    commit: str = ""
    created_at: datetime | None = None
    tags: list[str] = Field(default_factory=list)
    value: float | None = None
    """Of the metric."""
    low: float | None = None
    high: float | None = None
    """Its 95 % interval."""
    row: RowCount | None = None
    """None: the run has no rollout of the row."""

    @property
    def series(self) -> str:
        """Runs of one series can be compared by their figures."""
        return " · ".join(part for part in (self.rollout, self.model, self.dataset) if part)


class History(Record):
    """Runs, the oldest first."""

    metric: str = ""
    """`score:figure`, or the figure alone for what is said of a whole run."""
    metrics: list[str] = Field(default_factory=list)
    """Those that the runs have."""
    row: str = ""
    """The key of the row; empty when none was asked for."""
    runs: list[PastRun] = Field(default_factory=list)
    unread: int = 0
    """Runs whose rollouts are still being indexed: they are missing here."""
    baseline: str = ""
    """The id of the run that the others are measured by."""
    quarantine: list[QuarantinedRow] = Field(default_factory=list)
    """Rows that do not decide, and those that did not for a time; only of `row` where one was asked for."""


def since(runs: Sequence[PastRun]) -> PastRun | None:
    """The first of the newest runs in which the row has been in the state that it is in now, without a break."""
    first: PastRun | None = None
    for run in reversed([run for run in runs if run.row is not None]):
        if first is not None and (first.row is None or run.row is None or run.row.state != first.row.state):
            break
        first = run
    return first


def merged(histories: Iterable[History]) -> History:
    """One of several, in order of time."""
    found = list(histories)
    runs = sorted((run for one in found for run in one.runs), key=lambda run: str(run.created_at or ""))
    first = found[0] if found else History()
    metrics = list(dict.fromkeys(name for one in found for name in one.metrics))
    baseline = next((one.baseline for one in found if one.baseline), "")
    quarantine = [entry for one in found for entry in one.quarantine]
    update = {
        "quarantine": quarantine,
        "runs": runs,
        "metrics": metrics,
        "unread": sum(one.unread for one in found),
        "baseline": baseline,
    }
    return first.model_copy(update=update)
