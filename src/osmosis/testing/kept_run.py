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
    Key,
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
    saved: Sequence[CheckpointLine] = ()

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
        return self.saved

    def rollouts(self, query: RolloutQuery) -> RolloutList:
        every = self._rows()
        fitting = [
            row
            for row in every
            if query.outcome in ("", outcome_of(row, query.threshold))
            and query.category in ("", row.failure_category)
            and query.row in (None, row.row_index)
            and query.step in (None, row.step)
        ]
        page = fitting[query.offset : query.offset + query.limit]
        said = [outcome_of(row, query.threshold) for row in every]
        return RolloutList(page, len(fitting), {outcome: said.count(outcome) for outcome in OUTCOMES})

    def rollout(self, row_index: int, attempt: int, step: int) -> str:
        for rollout in self.kept:
            if (*rollout.place, rollout.step) == (row_index, attempt, step):
                return rollout.to_line().decode()
        raise NotFound(f"no rollout of row {row_index}, attempt {attempt} in this run")

    def neighbours(self, row_index: int, attempt: int, step: int) -> Neighbours:
        keys = sorted((rollout.step, *rollout.place) for rollout in self.kept)
        unscored = sorted((row.step, row.row_index, row.attempt) for row in self._rows() if row.reward is None)
        here = (step, row_index, attempt)
        return Neighbours(
            _key(max((key for key in keys if key < here), default=None)),
            _key(min((key for key in keys if key > here), default=None)),
            _key(min((key for key in unscored if key > here), default=None)),
        )

    def attempts(self, row_index: int, step: int) -> Sequence[RolloutRow]:
        return [row for row in self._rows() if (row.row_index, row.step) == (row_index, step)]

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        return LogPage(logs=list(self.lines))

    def _rows(self) -> list[RolloutRow]:
        return [_row(rollout) for rollout in sorted(self.kept, key=lambda rollout: rollout.key)]


def _key(found: tuple[int, int, int] | None) -> Key | None:
    """Row, attempt and step, of what is sorted by step."""
    return (found[1], found[2], found[0]) if found else None


def _row(rollout: Rollout) -> RolloutRow:
    first = next(iter(rollout.scores.values()), None)
    return RolloutRow(
        rollout_id=rollout.rollout_id,
        row_index=rollout.row_index,
        attempt=rollout.attempt,
        step=rollout.step,
        status=rollout.status.value,
        reward=first.value if first and rollout.status is RolloutStatus.SUCCESS else None,
        tokens=rollout.usage.total_tokens,
        duration_ms=rollout.duration_ms,
        failure_category=rollout.failure.category.value if rollout.failure else None,
    )
