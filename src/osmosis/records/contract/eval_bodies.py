"""Evaluation runs: list row, detail and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from osmosis.base.json_types import JsonObject
from osmosis.records.run_kind import RunKind

from .body import Body, OrEmpty
from .run_bodies import NamedRef, RewardStats, RunDetail, RunPage, RunProgress, RunReport, RunResults, RunRow


class EvalRunRow(RunRow):
    """An evaluation run in a list."""

    model: NamedRef | None = None
    dataset: NamedRef | None = None
    rollout: NamedRef | None = None
    results: RunResults | None = None
    config: JsonObject | None = None


class EvalRunPage(RunPage):
    eval_runs: Annotated[list[EvalRunRow], OrEmpty] = Field(default_factory=list)

    @property
    def rows(self) -> Sequence[EvalRunRow]:
        return self.eval_runs


class EvalRunDetail(RunDetail):
    """An evaluation run, whole."""

    kind: ClassVar[RunKind] = "eval"
    eval_run: EvalRunRow

    @property
    def run(self) -> EvalRunRow:
        return self.eval_run

    @property
    def figures(self) -> RunResults:
        return self.results or self.eval_run.results or RunResults()


class EvalOverview(Body):
    """The totals of `eval-runs/{name}/metrics`."""

    duration_ms: float | None = None
    total_samples: int | None = None
    completed_samples: int | None = None
    graded: int | None = None
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None
    pass_rate: float | None = None
    pass_threshold: float | None = None
    tokens_used: int | None = None


class PassAtKPoint(Body):
    k: int
    value: float | None = None


class EvalMetrics(Body):
    """`eval-runs/{name}/metrics`."""

    status: str | None = None
    overview: EvalOverview | None = None
    reward_stats: RewardStats | None = None
    pass_at_k: Annotated[list[PassAtKPoint], OrEmpty] = Field(default_factory=list)
    report: RunReport = None
    progress: RunProgress | None = None
