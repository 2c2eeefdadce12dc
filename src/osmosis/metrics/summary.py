"""Adds rollouts up to a `Report`, whatever their order and however they are merged. A failure counts as 0.0 in `mean`
and as nothing in `mean_scored`; a skipped rollout counts nowhere."""

import math
from array import array
from bisect import insort
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from osmosis.base.stats import DEFAULT_KS
from osmosis.metrics.intervals import distribution
from osmosis.metrics.score_values import ScoreValues, reducer
from osmosis.metrics.warnings import issue_of_reason
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import AnswerIssueCount, Bounds, FailureCount, GroupReport, Report, ScoreReport
from osmosis.records.run.rollout import AnswerIssue, Category, Failure, Phase, Rollout, RolloutStatus, Usage

_ROWS_SHOWN = 10
GROUPS_SHOWN = 50  # Values of one column; the rows of all further values are one group
OWN_SCORE = "reward"  # Score of a grader, or of the agent itself: the primary one, unless the plan names another
OTHER = "(other)"
NOT_RECORDED = "(not recorded)"  # Group of rollouts that were stored before figures were grouped by that column


@dataclass(frozen=True, slots=True)
class Terms:
    attempts: int
    pass_threshold: float
    ks: Sequence[int] | None = None
    score_bounds: Mapping[str, Bounds] = field(default_factory=dict)
    reducers: Sequence[str] = ()
    group_by: Sequence[str] = ()
    primary: str | None = None


def summarize(
    rollouts: Iterable[Rollout], plan: EvalPlan | Terms, *, rows: int | None = None, score_names: Iterable[str] = ()
) -> Report:
    summary = Summary(plan, score_names=score_names)
    for rollout in rollouts:
        summary.add(rollout)
    return summary.report(rows=rows)


@dataclass(slots=True)
class _Failures:
    count: int = 0
    first: tuple[int, int, str] = (0, 0, "")
    rows: list[int] = field(default_factory=list)

    def add(self, count: int, first: tuple[int, int, str], rows: Iterable[int]) -> None:
        self.first = min(self.first, first) if self.count else first
        self.count += count
        for row in rows:
            if (len(self.rows) < _ROWS_SHOWN or row < self.rows[-1]) and row not in self.rows:
                insort(self.rows, row)
                del self.rows[_ROWS_SHOWN:]


class _Spent:
    def __init__(self) -> None:
        self.usage = Usage()
        self._costs = array("d")

    def add(self, usage: Usage) -> None:
        self.usage += usage
        if usage.cost_usd is not None:
            self._costs.append(usage.cost_usd)

    def merge(self, other: "_Spent") -> None:
        self.usage += other.usage
        self._costs.extend(other._costs)

    def exact(self) -> Usage:
        return self.usage.model_copy(update={"cost_usd": math.fsum(self._costs)}) if self._costs else self.usage


class Summary:
    def __init__(self, plan: EvalPlan | Terms, *, score_names: Iterable[str] = ()) -> None:
        self.plan = plan
        self._threshold = plan.pass_threshold
        self._group_by = plan.group_by
        self.succeeded = 0
        self.failed = 0
        self.skipped = 0
        self._agents = _Spent()
        self._judges = _Spent()
        self._users = _Spent()
        self._attempts: dict[int, int] = {}
        self._failures: dict[tuple[Phase, Category], _Failures] = {}
        self._issues: dict[AnswerIssue, _Failures] = {}
        self._groups: dict[int, Mapping[str, str]] = {}
        self._durations = array("d")
        self._tokens = array("d")
        self._given = {name: i for i, name in enumerate(score_names)}
        self._scores = {name: ScoreValues(name, (-1, i, 0)) for name, i in self._given.items()}

    @property
    def completed(self) -> int:
        return self.succeeded + self.failed + self.skipped

    @property
    def total_tokens(self) -> int:
        return sum(spent.usage.total_tokens for spent in (self._agents, self._judges, self._users))

    @property
    def total_cost_usd(self) -> float | None:
        return (self._agents.usage + self._judges.usage + self._users.usage).cost_usd

    def add(self, rollout: Rollout) -> None:
        self._agents.add(rollout.usage)
        self._tokens.append(rollout.usage.total_tokens)
        if rollout.metrics and (users := rollout.user_usage) is not None:
            self._users.add(users)
        self._durations.append(rollout.duration_ms)
        if rollout.failure is not None:
            self._fail(rollout.failure, rollout)
        for score in rollout.scores.values():
            if score.failure is not None:
                self._fail(score.failure, rollout)
            if score.usage is not None:
                self._judges.add(score.usage)
        if rollout.status is RolloutStatus.SKIPPED:
            self.skipped += 1
            return
        row = rollout.row_index
        self._attempts[row] = self._attempts.get(row, 0) + 1
        if self._group_by and rollout.groups:
            self._label(row, rollout.groups)
        if rollout.status is RolloutStatus.SUCCESS:
            self.succeeded += 1
            issue = rollout.answer_issue or issue_of_reason(rollout.finish_reason)
            if issue is not None:
                self._issues.setdefault(issue, _Failures()).add(1, (row, rollout.attempt, ""), (row,))
            self._score(rollout, row)
        else:
            self.failed += 1

    def _score(self, rollout: Rollout, row: int) -> None:
        for i, (name, score) in enumerate(rollout.scores.items()):
            values = self._scores.get(name)
            if values is None:
                values = self._scores[name] = ScoreValues(name, self._place(name, (row, rollout.attempt, i)))
            elif row <= values.place[0]:
                values.place = min(values.place, (row, rollout.attempt, i))
            elif values.place[0] < 0 and i < values.place[2]:
                values.place = self._place(name, (row, rollout.attempt, i))
            values.out_of_range += score.replied is not None
            if score.value is not None:
                values.add(row, score.value, score.value >= self._threshold)

    def _place(self, name: str, first: tuple[int, int, int]) -> tuple[int, int, int]:
        order = self._given.get(_function_of(name, self._given))
        return first if order is None else (-1, order, first[2])

    def _fail(self, failure: Failure, rollout: Rollout) -> None:
        entry = self._failures.setdefault((failure.phase, failure.category), _Failures())
        entry.add(1, (rollout.row_index, rollout.attempt, failure.message), (rollout.row_index,))

    def _label(self, row: int, groups: Mapping[str, str]) -> None:
        self._groups[row] = min(self._groups.get(row, groups), groups, key=lambda labels: sorted(labels.items()))

    def merge(self, other: "Summary") -> None:
        """Merge the counts of `other`, of the same terms; a rollout that both have seen counts twice."""
        if _terms(self.plan) != _terms(other.plan):
            raise ValueError("summaries with other attempts, threshold or ks cannot be merged")
        self.succeeded += other.succeeded
        self.failed += other.failed
        self.skipped += other.skipped
        self._agents.merge(other._agents)
        self._judges.merge(other._judges)
        self._users.merge(other._users)
        self._durations.extend(other._durations)
        self._tokens.extend(other._tokens)
        for row, count in other._attempts.items():
            self._attempts[row] = self._attempts.get(row, 0) + count
        for kind, failures in other._failures.items():
            self._failures.setdefault(kind, _Failures()).add(failures.count, failures.first, failures.rows)
        for issue, places in other._issues.items():
            self._issues.setdefault(issue, _Failures()).add(places.count, places.first, places.rows)
        for row, groups in other._groups.items():
            self._label(row, groups)
        for name, values in other._scores.items():
            self._scores.setdefault(name, ScoreValues(name, values.place)).merge(values)

    def running(self, *, rows: int | None = None, duration_ms: float = 0.0) -> Report:
        counted = self.succeeded + self.failed
        return self._report(rows, duration_ms, [score.brief(counted) for score in self._in_order()], exact=False)

    def report(
        self,
        *,
        rows: int | None = None,
        duration_ms: float = 0.0,
        dataset_rows: int | None = None,
        stopped: str | None = None,
    ) -> Report:
        report = self._report(rows, duration_ms, self._full(self._attempts), exact=True)
        report.groups = list(self._by_group())
        report.answer_issues = [
            AnswerIssueCount(kind=kind, count=issues.count, rows=list(issues.rows))
            for kind, issues in sorted(self._issues.items(), key=lambda pair: (-pair[1].count, pair[0]))
        ]
        report.failures = [
            FailureCount(phase=phase, category=category, count=e.count, example=e.first[2][:500], rows=list(e.rows))
            for (phase, category), e in sorted(self._failures.items(), key=lambda pair: (-pair[1].count, *pair[0]))
        ]
        report.latency_ms = distribution(self._durations)
        report.tokens = distribution(self._tokens)
        report.dataset_rows = dataset_rows
        report.stopped = stopped
        return report

    def _full(self, attempts: Mapping[int, int], rows: Container[int] | None = None) -> list[ScoreReport]:
        n, threshold, bounds = self.plan.attempts, self._threshold, self.plan.score_bounds
        ks = sorted({k for k in (*DEFAULT_KS, *(self.plan.ks or ())) if k <= n}) if n > 1 else []
        named = [reducer(name) for name in self.plan.reducers]
        return [
            (score if rows is None else score.only(rows, threshold)).full(
                attempts,
                ks,
                threshold,
                bounds.get(score.name, bounds.get(_function_of(score.name, bounds))),
                named,
                is_group=rows is not None,
            )
            for score in self._in_order()
        ]

    def _by_group(self) -> Iterator[GroupReport]:
        for column in self._group_by:
            rows: dict[str, dict[int, int]] = {}
            for row, count in self._attempts.items():
                value = self._groups.get(row, {}).get(column, NOT_RECORDED)
                rows.setdefault(value, {})[row] = count
            largest = sorted(rows, key=lambda value: (-len(rows[value]), value))
            for value in largest[GROUPS_SHOWN:]:
                rows.setdefault(OTHER, {}).update(rows.pop(value))
            for value in sorted(rows, key=_natural):
                attempts = rows[value]
                yield GroupReport(column=column, value=value, rows=len(attempts), scores=self._full(attempts, attempts))

    def _in_order(self) -> list[ScoreValues]:
        split = {_function_of(name, self._scores) for name in self._scores}
        scores = [score for score in self._scores.values() if len(score.values) or score.name not in split]
        primary = self.plan.primary or OWN_SCORE
        return sorted(
            scores,
            key=lambda score: (primary not in (score.name, _function_of(score.name, split)), score.place, score.name),
        )

    def _report(self, rows: int | None, duration_ms: float, scores: list[ScoreReport], *, exact: bool) -> Report:
        selected = len(self._attempts) if rows is None else rows
        total = max(selected * self.plan.attempts, self.completed)
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
            usage=self._agents.exact() if exact else self._agents.usage,
            judge_usage=self._judges.exact() if exact else self._judges.usage,
            user_usage=self._users.exact() if exact else self._users.usage,
            duration_ms=duration_ms,
        )


def _terms(plan: EvalPlan | Terms) -> Terms:
    ks, bounds = tuple(plan.ks or ()), dict(plan.score_bounds)
    return Terms(plan.attempts, plan.pass_threshold, ks, bounds, tuple(plan.reducers), tuple(plan.group_by))


def _function_of(name: str, functions: Container[str]) -> str:
    parts = name.split(".")
    starts = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
    return next((start for start in starts if start in functions), "")


def _natural(text: str) -> tuple[float, str]:
    if text in (OTHER, NOT_RECORDED):
        return math.inf, "~" + text
    try:
        number = float(text)
    except ValueError:
        return math.inf, text
    return (number if math.isfinite(number) else math.inf), text


_COUNTS = ("completed", "succeeded", "failed", "skipped")
_SPENT = ("usage", "judge_usage", "user_usage")


def together(reports: Sequence[Report], *, rows: int) -> Report:
    """Merge the running reports of all shards; `rows` counts those of the run, also of shards that have not begun."""
    first = reports[0]
    counts = {name: sum(getattr(report, name) for report in reports) for name in _COUNTS}
    spent = {name: sum((getattr(report, name) for report in reports), Usage()) for name in _SPENT}
    total = max(rows * first.attempts, counts["completed"])
    names = list(dict.fromkeys(score.name for report in reports for score in report.scores))
    scores = [_score(name, reports) for name in names]
    scored = scores[0].scored if scores else counts["succeeded"]
    return Report(
        **counts,
        **spent,
        rows=rows,
        attempts=first.attempts,
        pass_threshold=first.pass_threshold,
        total=total,
        coverage=scored / total if total else 0.0,
        scores=scores,
        duration_ms=max(report.duration_ms for report in reports),
    )


def _score(name: str, reports: Sequence[Report]) -> ScoreReport:
    same_name = [score for report in reports for score in report.scores if score.name == name]
    without = [report for report in reports if all(score.name != name for score in report.scores)]
    missing = sum(report.succeeded + report.failed for report in without)
    scored, passed = sum(score.scored for score in same_name), sum(score.passed for score in same_name)
    failed = sum(score.failed for score in same_name) + missing
    lows = [score.min for score in same_name if score.min is not None]
    highs = [score.max for score in same_name if score.max is not None]
    return ScoreReport(
        name=name,
        mean=_mean(same_name, lambda score: score.mean, lambda score: score.scored + score.failed, missing),
        mean_scored=_mean(same_name, lambda score: score.mean_scored, lambda score: score.scored),
        min=min(lows, default=None),
        max=max(highs, default=None),
        passed=passed,
        scored=scored,
        failed=failed,
        pass_rate=passed / (scored + failed) if scored + failed else None,
    )


def _mean(
    scores: Sequence[ScoreReport],
    value: Callable[[ScoreReport], float | None],
    weight: Callable[[ScoreReport], int],
    more: int = 0,
) -> float | None:
    means = [(mean, weight(score)) for score in scores if (mean := value(score)) is not None]
    over = sum(count for _, count in means) + more
    return sum(mean * count for mean, count in means) / over if over else None
