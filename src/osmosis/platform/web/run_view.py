"""What the page of a run shows, put together from its row and its report: cards, alarms, histogram, curves.

Only arranges figures that others computed. Makes no query of its own and no markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis.metrics.alarms import alarms
from osmosis.metrics.figures import Figure, figures, grouped, headlines
from osmosis.records.report import Report
from osmosis.records.rollout import Failure
from osmosis.records.run import RunStatus

from .. import tables
from ..services import results
from . import words

BINS = 20
STEPS = ("checkout", "preflight", "environment", "start", "rollouts", "training", "report")
"""The stages of a job in their order (records.run.Stage)."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a histogram, in units of its drawing."""

    x: float
    y: float
    width: float
    height: float
    title: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric over steps: a polyline in a drawing of 600 by 160."""

    key: str
    points: str
    first: float
    latest: float
    low: float
    high: float
    steps: int


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything that changes while a run goes on."""

    run: tables.Run
    report: Report | None
    failure: Failure | None
    stage: str
    completed: int
    total: int
    duration_ms: float | None
    cards: list[Figure] = field(default_factory=list)
    groups: list[tuple[str, list[Figure]]] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return RunStatus(self.run.status).over

    @property
    def can_retry(self) -> bool:
        """Whether there is something to do again."""
        if self.run.kind != "eval" or not self.over or self.run.imported is not None:
            return False
        return self.completed < self.total or (self.report is not None and self.report.coverage < 1)

    @property
    def share(self) -> float:
        """Of the rollouts that exist, 0 to 100."""
        return 100.0 * self.completed / self.total if self.total else 0.0

    @property
    def steps(self) -> list[tuple[str, str]]:
        """The stages of a job, each `done`, `now` or `later`."""
        known = [step for step in STEPS if step != ("training" if self.run.kind == "eval" else "rollouts")]
        if self.run.status == RunStatus.FINISHED.value:
            return [(step, "done") for step in known]
        if self.stage not in known:
            return [(step, "later") for step in known]
        at = known.index(self.stage)
        return [(step, "done" if i < at else "now" if i == at else "later") for i, step in enumerate(known)]


def view(run: tables.Run, stored: int) -> RunView:
    """The view of a run of which `stored` rollouts exist."""
    report = results.report_of(run)
    failure = Failure.model_validate(run.failure) if run.failure else None
    progress = run.progress or {}
    attempts = int((run.config.get("evaluation") or {}).get("n", 1))
    total = report.total if report else run.sampled_rows * attempts
    if run.kind != "eval":
        stored, total = int(progress.get("completed") or 0), int(progress.get("total") or 0)
    duration = results.duration_ms(run)
    return RunView(
        run=run,
        report=report,
        failure=failure,
        stage=str(progress.get("stage") or ""),
        completed=stored,
        total=total,
        duration_ms=duration,
        cards=headlines(report) if report else [],
        groups=grouped(figures(report)) if report else [],
        alarms=alarms(report, run.model_path, over=RunStatus(run.status).over),
    )


def histogram(values: Sequence[float], threshold: float, *, width: float = 600, height: float = 120) -> list[Bar]:
    """How rewards are spread; values are ascending. Empty when there is nothing to tell."""
    if len(values) < 2 or values[0] == values[-1]:
        return []
    low, high = values[0], values[-1]
    step = (high - low) / BINS
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int((value - low) / step))] += 1
    top = max(counts)
    wide = width / BINS
    bars = []
    for number, amount in enumerate(counts):
        tall = max(2.0, height * amount / top) if amount else 0.0
        start, end = low + number * step, low + (number + 1) * step
        title = f"{amount} rollouts from {start:.2f} to {end:.2f}"
        passed = start >= threshold or (number == BINS - 1 and high >= threshold)
        bars.append(Bar(round(number * wide + 1, 1), round(height - tall, 1), round(wide - 2, 1), tall, title, passed))
    return bars


def curves(points: Sequence[tables.MetricPoint]) -> list[Curve]:
    """One curve per metric, from its points in order of step."""
    by_key: dict[str, list[tables.MetricPoint]] = {}
    for point in points:
        by_key.setdefault(point.key, []).append(point)
    return [_curve(key, found) for key, found in sorted(by_key.items())]


def _curve(key: str, found: list[tables.MetricPoint]) -> Curve:
    values = [point.value for point in found]
    low, high = min(values), max(values)
    first_step, last_step = found[0].step, found[-1].step
    across, tall = (last_step - first_step) or 1, (high - low) or 1.0
    points = " ".join(
        f"{10 + 580 * (p.step - first_step) / across:.1f},{150 - 140 * (p.value - low) / tall:.1f}" for p in found
    )
    return Curve(key, points, values[0], values[-1], low, high, last_step)


def config_lines(config: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The config as tables of key and value, in the order of the file."""
    shown = []
    for table in ("experiment", "evaluation", "training", "sampling", "checkpoints", "advanced", "env", "secrets"):
        values = config.get(table)
        if isinstance(values, dict) and values:
            shown.append((table, [(str(key), _toml(value)) for key, value in values.items()]))
    return shown


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return words.pretty(value)
    return words.pretty(value) if isinstance(value, (list, dict)) else str(value)
