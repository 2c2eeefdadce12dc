from pydantic import Field

from osmosis.records.base import Record
from osmosis.records.run.plan import Branch
from osmosis.records.run.rollout import AnswerIssue, Category, Phase, Usage
from osmosis.records.run.rows import Spend

Bounds = tuple[float, float]


class Interval(Record):
    low: float
    high: float
    level: float = 0.95


class PassAtK(Record):
    k: int
    value: float
    """Unbiased estimator `1 - C(n-c, k) / C(n, k)`, mean over rows (Chen et al. 2021, arXiv:2107.03374)."""
    interval: Interval | None = None
    rows: int
    """Rows with at least k attempts."""


class Reduced(Record):
    """A figure of the attempts at a row, over the rows."""

    name: str
    """The reducer: `median`, `at-least-2`."""
    value: float
    interval: Interval | None = None
    rows: int
    """Rows with at least the attempts that it needs."""


class AnswerIssueCount(Record):
    """Rollouts that succeeded, with an answer that is none."""

    kind: AnswerIssue
    count: int
    rows: list[int] = Field(default_factory=list)
    """The first few row indices."""


class FailureCount(Record):
    phase: Phase
    category: Category
    count: int
    example: str
    """One of the messages."""
    rows: list[int] = Field(default_factory=list)
    """The first few row indices."""


class Distribution(Record):
    mean: float
    median: float
    p90: float
    p99: float
    min: float
    max: float


class ScoreReport(Record):
    name: str
    mean: float | None = None
    """Mean over rows of the mean of their attempts, failures as 0.0."""
    mean_interval: Interval | None = None
    """Interval of the mean over rows; None with one row, or with too few rows and unknown bounds."""
    bounds: Bounds | None = None
    """Declared bounds, else 0 and 1 when all values are one of them and some are 0; None: unknown."""
    assumed_bounds: Bounds | None = None
    """Bounds that the interval allows for where they are unknown."""
    mean_scored: float | None = None
    """Mean over scored rollouts only."""
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
    """Mean over rows of the share of their attempts that passed, failures as not passed."""
    pass_rate_interval: Interval | None = None
    pass_at_k: list[PassAtK] = Field(default_factory=list)
    pass_hat_k: list[PassAtK] = Field(default_factory=list)
    """Chance that all of k attempts pass."""
    flake_rate: float | None = None
    """Share of rows whose attempts disagree; None with one attempt per row."""
    could_show: float | None = None
    """Smallest true difference that a second run over these rows shows in 80 % of cases; None: not even the largest."""
    reduced: list[Reduced] = Field(default_factory=list)
    out_of_range: int = 0
    """Replies of a judge beyond the range of the score, which count as the nearest bound."""

    def __str__(self) -> str:
        figures = (("mean", self.mean), ("pass rate", self.pass_rate))
        return f"{self.name}: {', '.join(f'{name} {value:.3f}' for name, value in figures if value is not None)}"


class GroupReport(Record):
    """The scores of the rows that have one value in one column."""

    column: str
    value: str
    rows: int
    scores: list[ScoreReport] = Field(default_factory=list)


class Report(Record):
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
    """Reports by value, in order, for each column of `EvalPlan.group_by`."""
    answer_issues: list[AnswerIssueCount] = Field(default_factory=list)
    failures: list[FailureCount] = Field(default_factory=list)
    usage: Usage = Field(default_factory=Usage)
    judge_usage: Usage = Field(default_factory=Usage)
    user_usage: Usage = Field(default_factory=Usage)
    """Usage of simulated users."""
    latency_ms: Distribution | None = None
    tokens: Distribution | None = None
    """Tokens per rollout."""
    duration_ms: float = 0.0
    """Milliseconds of all sessions of the run."""
    dataset_rows: int | None = None
    """Rows in the whole dataset, when known."""
    stopped: str | None = None
    """Why the run ended before `total` (budget, time limit, repeating failures, a person); None: it did not."""

    @property
    def primary(self) -> ScoreReport | None:
        return self.scores[0] if self.scores else None

    def spent(self) -> Spend:
        """Spend that counts against the budget of the run."""
        usages = (self.usage, self.judge_usage, self.user_usage)
        return Spend(
            cost_usd=sum(usage.cost_usd or 0.0 for usage in usages), tokens=sum(usage.total_tokens for usage in usages)
        )

    @property
    def unscored(self) -> bool:
        """Return whether no rollout has the first score, although some ran and were not skipped."""
        return self.total > self.skipped and not (self.primary and self.primary.scored)

    def __str__(self) -> str:
        return "; ".join([f"{self.completed:,} of {self.total:,} rollouts", *map(str, self.scores)])


class BriefScore(Record):
    mean: float | None = None
    passed: int
    scored: int
    failed: int
    pass_rate: float | None = None


class BriefReport(Record):
    pass_threshold: float
    completed: int
    failed: int
    skipped: int
    scores: list[BriefScore] = Field(default_factory=list)
    usage: Usage = Field(default_factory=Usage)

    @property
    def primary(self) -> BriefScore | None:
        return self.scores[0] if self.scores else None


class Branched(Record):
    """The continuations of a step so far, without those that the infrastructure ended."""

    run: str
    model: str
    branch: Branch
    passed: int
    continuations: int
    interval: Interval | None
    inexact: int
    """Those in which a tool, or the agent, did otherwise than in the recording."""
    differs_at_step: int | None
