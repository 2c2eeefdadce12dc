"""A run in memory as a `RunSource`: what the viewer shows without a platform."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from osmosis.errors import NotFound
from osmosis.records.contract.body import LogEntry, LogPage
from osmosis.records.contract.run_bodies import RolloutRow
from osmosis.records.report import Report
from osmosis.records.rollout import Rollout, RolloutStatus
from osmosis.records.run import MetricPoint
from osmosis.viewer.source import (
    OUTCOMES,
    CheckpointLine,
    Link,
    Neighbours,
    Origin,
    RolloutList,
    RolloutQuery,
    RunPlace,
    RunSettings,
    RunState,
    outcome_of,
)


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

    def state(self) -> RunState:
        return self.run

    def place(self) -> RunPlace:
        return RunPlace((Link("Runs", "/"),))

    def report(self) -> Report | None:
        return self.found

    def origin(self) -> Origin:
        return self.made_of

    def settings(self) -> RunSettings:
        return self.fixed

    def rewards(self) -> Sequence[float]:
        return sorted(row.reward for row in self._rows() if row.reward is not None)

    def points(self) -> Sequence[MetricPoint]:
        return self.curve

    def checkpoints(self) -> Sequence[CheckpointLine]:
        return ()

    def rollouts(self, query: RolloutQuery) -> RolloutList:
        every = self._rows()
        fitting = [
            row
            for row in every
            if query.outcome in ("", outcome_of(row, query.threshold))
            and query.category in ("", row.failure_category)
            and query.row in (None, row.row_index)
        ]
        page = fitting[query.offset : query.offset + query.limit]
        said = [outcome_of(row, query.threshold) for row in every]
        return RolloutList(page, len(fitting), {outcome: said.count(outcome) for outcome in OUTCOMES})

    def rollout(self, row_index: int, attempt: int) -> str:
        for rollout in self.kept:
            if rollout.place == (row_index, attempt):
                return rollout.to_line().decode()
        raise NotFound(f"no rollout of row {row_index}, attempt {attempt} in this run")

    def neighbours(self, row_index: int, attempt: int) -> Neighbours:
        keys = sorted(rollout.place for rollout in self.kept)
        unscored = sorted((row.row_index, row.attempt) for row in self._rows() if row.reward is None)
        here = (row_index, attempt)
        return Neighbours(
            max((key for key in keys if key < here), default=None),
            min((key for key in keys if key > here), default=None),
            min((key for key in unscored if key > here), default=None),
        )

    def attempts(self, row_index: int) -> Sequence[RolloutRow]:
        return [row for row in self._rows() if row.row_index == row_index]

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        return LogPage(logs=list(self.lines))

    def _rows(self) -> list[RolloutRow]:
        return [_row(rollout) for rollout in sorted(self.kept, key=lambda rollout: rollout.key)]


def _row(rollout: Rollout) -> RolloutRow:
    first = next(iter(rollout.scores.values()), None)
    return RolloutRow(
        rollout_id=rollout.rollout_id,
        row_index=rollout.row_index,
        attempt=rollout.attempt,
        status=rollout.status.value,
        reward=first.value if first and rollout.status is RolloutStatus.SUCCESS else None,
        tokens=rollout.usage.total_tokens,
        duration_ms=rollout.duration_ms,
        failure_category=rollout.failure.category.value if rollout.failure else None,
    )
