"""Adds rollouts up to a `Report`, one at a time: constant time per rollout, a few numbers of memory each.

`Summary.running` is cheap enough to show while a run goes on; `Summary.report` computes everything once.
A failure counts as 0.0 in `mean` and as nothing in `mean_scored`; a skipped rollout counts nowhere.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from osmosis.base.stats import pass_at_k, pass_hat_k, quantile
from osmosis.records.plan import EvalPlan
from osmosis.records.report import FailureCount, Interval, PassAtK, Report, ScoreReport
from osmosis.records.rollout import Category, Phase, RolloutStatus, Usage

from .counted import Counted, CountedFailure, CountedUsage
from .intervals import bounded_interval, distribution, mean_interval, rate_interval

DEFAULT_KS = (1, 3, 5, 10)
_ROWS_SHOWN = 10

Estimate = Callable[[int, int, int], float]
"""Of attempts, passes and k."""


def summarize(
    rollouts: Iterable[Counted], plan: EvalPlan, *, rows: int | None = None, score_names: Iterable[str] = ()
) -> Report:
    """The report of these rollouts; `rows` when more were selected than appear."""
    summary = Summary(plan, score_names=score_names)
    for rollout in rollouts:
        summary.add(rollout)
    return summary.report(rows=rows)


@dataclass(slots=True)
class _Failures:
    count: int = 0
    example: str = ""
    rows: list[int] = field(default_factory=list)


class _ScoreSums:
    """One score function's figures. The arrays hold one entry per row, in order of appearance."""

    def __init__(self, name: str, rows: int = 0, earlier: int = 0) -> None:
        """`earlier` rollouts on `rows` rows are counted already, without this score."""
        self.name = name
        self.sums = array("d", bytes(8 * rows))
        self.passes = array("q", bytes(8 * rows))
        self.values = array("d", bytes(8 * earlier))
        self.total = 0.0
        self.squares = 0.0
        self.passed = 0
        self.scored = 0
        self.failed = earlier

    def add(self, slot: int, value: float | None, threshold: float) -> None:
        if slot == len(self.sums):
            self.sums.append(0.0)
            self.passes.append(0)
        if value is None:
            self.failed += 1
            self.values.append(0.0)
            return
        self.scored += 1
        self.values.append(value)
        self.total += value
        self.squares += value * value
        self.sums[slot] += value
        if value >= threshold:
            self.passed += 1
            self.passes[slot] += 1

    def brief(self) -> ScoreReport:
        """Without what needs a look at every rollout."""
        n = self.scored + self.failed
        mean = self.total / n if n else None
        return ScoreReport.model_construct(
            name=self.name,
            mean=mean,
            mean_scored=self.total / self.scored if self.scored else None,
            std=None if mean is None else math.sqrt(max(0.0, self.squares / n - mean * mean)),
            min=None,
            max=None,
            median=None,
            passed=self.passed,
            scored=self.scored,
            failed=self.failed,
            pass_rate=self.passed / n if n else None,
        )

    def full(self, ks: list[int], counted: Sequence[int]) -> ScoreReport:
        report = self.brief()
        if not self.values:
            return ScoreReport(**report.__dict__)
        ordered = sorted(self.values)
        multiple = any(n > 1 for n in counted)
        return ScoreReport(
            **{
                **report.__dict__,
                "min": ordered[0],
                "max": ordered[-1],
                "median": quantile(ordered, 0.5),
                "mean_interval": self._mean_interval(ordered[0], ordered[-1], counted),
                "pass_rate_interval": rate_interval(self.passes, counted),
                "pass_at_k": [p for k in ks if (p := self._over_rows(k, pass_at_k, counted))],
                "pass_hat_k": [p for k in ks if (p := self._over_rows(k, pass_hat_k, counted))],
                "flake_rate": self._flake_rate(counted) if multiple else None,
            }
        )

    def _mean_interval(self, low: float, high: float, counted: Sequence[int]) -> Interval | None:
        """A score whose values all lie between 0 and 1 is taken to be bounded by them; one of 0 and 1 is a rate."""
        if low < 0 or high > 1:
            return mean_interval(self.sums, counted)
        if self.squares == self.total:  # x * x < x between 0 and 1
            return rate_interval(self.sums, counted)
        return bounded_interval(self.sums, counted)

    def _over_rows(self, k: int, estimate: Estimate, counted: Sequence[int]) -> PassAtK | None:
        enough = [(n, c) for n, c in zip(counted, self.passes, strict=True) if n >= k]
        if not enough:
            return None
        values = [estimate(n, c, k) for n, c in enough]
        interval = bounded_interval(values, [1] * len(values), most=sum(n for n, _ in enough))
        return PassAtK(k=k, value=sum(values) / len(values), interval=interval, rows=len(values))

    def _flake_rate(self, counted: Sequence[int]) -> float:
        repeated = [(n, c) for n, c in zip(counted, self.passes, strict=True) if n > 1]
        return sum(1 for n, c in repeated if 0 < c < n) / len(repeated)


class Summary:
    """The figures of a run so far."""

    def __init__(self, plan: EvalPlan, *, score_names: Iterable[str] = ()) -> None:
        self.plan = plan
        self._threshold = plan.pass_threshold
        self.completed = 0
        self.succeeded = 0
        self.failed = 0
        self.skipped = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.cost_usd: float | None = None
        self.judge_prompt_tokens = 0
        self.judge_completion_tokens = 0
        self.judge_cost_usd: float | None = None
        self._slots: dict[int, int] = {}
        self._counted = array("q")  # attempts per row that count, in order of appearance
        self._scores: dict[str, _ScoreSums] = {}
        self._durations = array("d")
        self._tokens = array("d")
        self._failures: dict[tuple[Phase, Category], _Failures] = {}
        for name in score_names:
            self._scores[name] = _ScoreSums(name)

    @property
    def total_tokens(self) -> int:
        """The agents' and the judges'."""
        return self.prompt_tokens + self.completion_tokens + self.judge_prompt_tokens + self.judge_completion_tokens

    @property
    def total_cost_usd(self) -> float | None:
        """The agents' and the judges'; None when no price is known."""
        known = [c for c in (self.cost_usd, self.judge_cost_usd) if c is not None]
        return sum(known) if known else None

    def add(self, rollout: Counted) -> None:
        """One more finished rollout."""
        self.completed += 1
        self._spend(rollout)
        row, scores = rollout.row_index, rollout.scores
        if rollout.failure is not None:
            self._fail(rollout.failure, row)
        for score in scores.values():
            if score.failure is not None:
                self._fail(score.failure, row)
            if score.usage is not None:
                self._judge(score.usage)
        if rollout.status is RolloutStatus.SKIPPED:
            self.skipped += 1
            return
        if rollout.status is RolloutStatus.SUCCESS:
            self.succeeded += 1
        else:
            self.failed += 1
        slot = self._slots.get(row)
        if slot is None:
            slot = self._slots[row] = len(self._slots)
            self._counted.append(0)
        for name in scores:
            if name not in self._scores:
                rows = slot if slot == len(self._slots) - 1 and not self._counted[slot] else len(self._slots)
                self._scores[name] = _ScoreSums(name, rows, self.succeeded + self.failed - 1)
        self._counted[slot] += 1
        for name, sums in self._scores.items():
            found = scores.get(name)
            sums.add(slot, None if found is None else found.value, self._threshold)

    def _fail(self, failure: CountedFailure, row: int) -> None:
        entry = self._failures.setdefault((failure.phase, failure.category), _Failures(example=failure.message))
        entry.count += 1
        if len(entry.rows) < _ROWS_SHOWN:
            entry.rows.append(row)

    def _spend(self, rollout: Counted) -> None:
        usage = rollout.usage
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cached_tokens += usage.cached_tokens
        if usage.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + usage.cost_usd
        self._durations.append(rollout.duration_ms)
        self._tokens.append(prompt + completion)

    def _judge(self, usage: CountedUsage) -> None:
        self.judge_prompt_tokens += usage.prompt_tokens
        self.judge_completion_tokens += usage.completion_tokens
        if usage.cost_usd is not None:
            self.judge_cost_usd = (self.judge_cost_usd or 0.0) + usage.cost_usd

    def running(self, *, rows: int | None = None, duration_ms: float = 0.0) -> Report:
        """The figures so far, without intervals, percentiles and pass@k."""
        return self._report(rows, duration_ms, [s.brief() for s in self._scores.values()])

    def report(
        self,
        *,
        rows: int | None = None,
        duration_ms: float = 0.0,
        dataset_rows: int | None = None,
        stopped: str | None = None,
    ) -> Report:
        """Everything. `rows` is how many were selected, when that is more than have appeared."""
        n = self.plan.attempts
        ks = sorted({k for k in (*DEFAULT_KS, *(self.plan.ks or ())) if k <= n}) if n > 1 else []
        report = self._report(rows, duration_ms, [s.full(ks, self._counted) for s in self._scores.values()])
        report.failures = [
            FailureCount(phase=phase, category=category, count=e.count, example=e.example[:500], rows=e.rows)
            for (phase, category), e in sorted(self._failures.items(), key=lambda pair: -pair[1].count)
        ]
        report.latency_ms = distribution(self._durations)
        report.tokens = distribution(self._tokens)
        report.dataset_rows = dataset_rows
        report.stopped = stopped
        return report

    def _report(self, rows: int | None, duration_ms: float, scores: list[ScoreReport]) -> Report:
        selected = len(self._slots) if rows is None else rows
        total = selected * self.plan.attempts
        scored = scores[0].scored if scores else self.succeeded
        return Report.model_construct(
            rows=selected,
            attempts=self.plan.attempts,
            pass_threshold=self.plan.pass_threshold,
            total=total,
            completed=self.completed,
            succeeded=self.succeeded,
            failed=self.failed,
            skipped=self.skipped,
            coverage=scored / total if total else 0.0,
            scores=scores,
            failures=[],
            usage=Usage(
                prompt_tokens=self.prompt_tokens,
                completion_tokens=self.completion_tokens,
                cached_tokens=self.cached_tokens,
                cost_usd=self.cost_usd,
            ),
            judge_usage=Usage(
                prompt_tokens=self.judge_prompt_tokens,
                completion_tokens=self.judge_completion_tokens,
                cost_usd=self.judge_cost_usd,
            ),
            duration_ms=duration_ms,
        )
