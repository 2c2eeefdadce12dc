"""What a run adds up to. Made by `osmosis.metrics` from rollouts; shown by the command line and by pages, which
iterate over it and compute nothing.
"""

from __future__ import annotations

from enum import Enum

from pydantic import Field

from osmosis.base.json_types import JsonObject

from .base import Record
from .rollout import AnswerIssue, Category, Phase, Usage
from .shard import Spend

Bounds = tuple[float, float]
"""The least and the greatest value that a score can have."""


class Figures(Record):
    """A record of figures: names, numbers and other figures, and nothing that would have to be encoded."""

    def to_dict(self) -> JsonObject:
        """As any record's, written down here: pydantic's schema of a report takes longer to build than the end of a
        small run takes otherwise, and most commands dump one report."""
        return {name: _plain(value) for name, value in vars(self).items() if value is not None}


def _plain(value: object) -> object:
    if isinstance(value, Record):
        return {name: _plain(one) for name, one in vars(value).items() if one is not None}
    if isinstance(value, Enum):
        return value.value
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


class Interval(Figures):
    """A confidence interval."""

    low: float
    high: float
    level: float = 0.95


class PassAtK(Figures):
    k: int
    value: float
    """Unbiased estimator `1 - C(n-c, k) / C(n, k)`, mean over rows (Chen et al. 2021, arXiv:2107.03374)."""
    interval: Interval | None = None
    rows: int
    """Rows with at least k attempts."""


class Reduced(Figures):
    """A figure of the attempts at a row, over the rows."""

    name: str
    """The reducer: `median`, `at-least-2`."""
    value: float
    interval: Interval | None = None
    rows: int
    """Rows with as many attempts as it needs."""


class AnswerIssueCount(Figures):
    """Rollouts that succeeded, with an answer that is none."""

    kind: AnswerIssue
    count: int
    rows: list[int] = Field(default_factory=list)
    """The first few row indices."""


class FailureCount(Figures):
    phase: Phase
    category: Category
    count: int
    example: str
    """One message, so that the table says why."""
    rows: list[int] = Field(default_factory=list)
    """The first few row indices."""


class Distribution(Figures):
    mean: float
    median: float
    p90: float
    p99: float
    min: float
    max: float


class ScoreReport(Figures):
    """The summary of one score function."""

    name: str
    mean: float | None = None
    """Failures counted as 0.0 (seed 001)."""
    mean_interval: Interval | None = None
    """By row. None with one row, and where the bounds of the score are not known and the rows do not support one."""
    bounds: Bounds | None = None
    """What the score declares, else 0 and 1 when all values are between them; None = unknown."""
    mean_scored: float | None = None
    """Over scored rollouts only."""
    std: float | None = None
    """Population standard deviation, failures as 0.0."""
    min: float | None = None
    max: float | None = None
    median: float | None = None
    passed: int
    """Rollouts with a score at or above the threshold."""
    scored: int
    failed: int
    """Rollouts without this score, whoever is to blame."""
    pass_rate: float | None = None
    """passed / (scored + failed)."""
    pass_rate_interval: Interval | None = None
    pass_at_k: list[PassAtK] = Field(default_factory=list)
    pass_hat_k: list[PassAtK] = Field(default_factory=list)
    """All k of k attempts pass."""
    flake_rate: float | None = None
    """Share of rows whose attempts disagree; None with one attempt per row."""
    reduced: list[Reduced] = Field(default_factory=list)


class GroupReport(Figures):
    """The scores of the rows that have one value in one column."""

    column: str
    value: str
    rows: int
    scores: list[ScoreReport] = Field(default_factory=list)


class Report(Figures):
    """One run in numbers. `scores` is in the order in which score functions were given."""

    rows: int
    """Rows selected."""
    attempts: int
    """Attempts per row (n)."""
    pass_threshold: float
    total: int
    """Rollouts that should exist: rows x attempts."""
    completed: int
    """Rollouts that do exist, whatever their outcome."""
    succeeded: int
    failed: int
    skipped: int
    coverage: float
    """Share of `total` with a score."""
    scores: list[ScoreReport] = Field(default_factory=list)
    groups: list[GroupReport] = Field(default_factory=list)
    """By each column of `EvalPlan.group_by`, the values in order."""
    answer_issues: list[AnswerIssueCount] = Field(default_factory=list)
    failures: list[FailureCount] = Field(default_factory=list)
    usage: Usage = Field(default_factory=Usage)
    judge_usage: Usage = Field(default_factory=Usage)
    latency_ms: Distribution | None = None
    tokens: Distribution | None = None
    """Tokens per rollout."""
    duration_ms: float = 0.0
    """Wall time of the run, all its sessions added."""
    dataset_rows: int | None = None
    """Rows in the whole dataset, when known."""
    stopped: str | None = None
    """Why the run ended before `total`: a budget, a time limit, repeating failures, a person. None = it did not."""

    @property
    def primary(self) -> ScoreReport | None:
        return self.scores[0] if self.scores else None

    def spent(self) -> Spend:
        """What counts against the budget of the run."""
        usages = (self.usage, self.judge_usage)
        return Spend(
            cost_usd=sum(usage.cost_usd or 0.0 for usage in usages), tokens=sum(usage.total_tokens for usage in usages)
        )

    @property
    def unscored(self) -> bool:
        """No rollout has the first score: all failed, or scoring did. Skipped ones want none; no rows, no complaint."""
        return self.total > self.skipped and not (self.primary and self.primary.scored)


class BriefScore(Record):
    """What a list of runs reads of a `ScoreReport`."""

    mean: float | None = None
    passed: int
    scored: int
    failed: int
    pass_rate: float | None = None


class BriefReport(Record):
    """What a list of runs reads of a `Report` that was stored: a tenth of it."""

    pass_threshold: float
    completed: int
    failed: int
    skipped: int
    scores: list[BriefScore] = Field(default_factory=list)
    usage: Usage = Field(default_factory=Usage)

    @property
    def primary(self) -> BriefScore | None:
        return self.scores[0] if self.scores else None
