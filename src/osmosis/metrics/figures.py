"""Every figure of a report or a comparison, in reading order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Literal

from osmosis.base.jsonable import JsonObject
from osmosis.metrics import formats
from osmosis.metrics.compare import Comparison
from osmosis.metrics.score_values import reducer
from osmosis.metrics.summary import Summary, Terms
from osmosis.metrics.warnings import MEANING
from osmosis.records.config.optimize import Optimization
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Distribution, Interval, PassAtK, Reduced, Report, ScoreReport
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import RowQuarantine, SortedOut

Format = Literal["score", "difference", "share", "count", "ms", "usd", "p", "text"]
RUN = ""

_WRITE: dict[str, Callable[[float | None], str]] = {
    "score": formats.score, "difference": formats.signed, "share": formats.percent, "count": formats.count,
    "ms": formats.duration, "usd": formats.dollars, "p": formats.p_value,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    name: str  # Stable, for machines: `pass_at_3`
    label: str
    value: float | str | None
    format: Format = "score"  # kind of the value: a score, a share between 0 and 1, milliseconds, US dollars ...
    interval: Interval | None = None
    detail: str = ""
    help: str = ""
    group: str = RUN
    headline: bool = False

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else _WRITE[self.format](self.value)

    @property
    def between(self) -> str:
        if self.interval is None:
            return ""
        level = "" if self.interval.level == 0.95 else f" ({self.interval.level * 100:g} %)"
        return formats.interval(self.interval, _WRITE[self.format]) + level


def figures(report: Report) -> Iterator[Figure]:
    for score in report.scores:
        for make in (_mean, _passes, _spread, _unscored, _reduced, _answers):
            yield from _in_group(score.name, make(score, report))
    for make_of_run in (_groups, _rollouts, _spent, _took):
        yield from make_of_run(report)


def _in_group(group: str, figures: Iterable[Figure]) -> Iterator[Figure]:
    return (replace(figure, group=figure.group or group) for figure in figures)


def grouped(figures: Iterable[Figure]) -> list[tuple[str, list[Figure]]]:
    return [(group, list(members)) for group, members in groupby(figures, key=lambda figure: figure.group)]


def headlines(report: Report) -> list[Figure]:
    groups = {RUN, report.primary.name if report.primary else RUN}
    return [figure for figure in figures(report) if figure.headline and figure.group in groups]


def _mean(score: ScoreReport, report: Report) -> Iterator[Figure]:
    help_text = "Rollouts without a score count as 0; skipped ones count nowhere."
    detail = ""
    if score.assumed_bounds is not None:
        low, high = score.assumed_bounds
        detail = f"assumed {low:g} to {high:g}: declare score_min, score_max (or --score-range)"
    elif score.mean_interval is None and score.bounds is None and report.rows > 1 and score.scored:
        detail = "no interval: declare score_min, score_max (or --score-range)"
    label, interval = "mean (failures as 0)", score.mean_interval
    yield Figure("mean", label, score.mean, "score", interval, detail, help_text, headline=True)
    if score.failed:
        only = f"{score.scored:,} of {score.scored + score.failed:,} have a score"
        help_text = "The mean of the rollouts that have a score."
        yield Figure("mean_scored", "mean over scored", score.mean_scored, "score", None, only, help_text)


def _passes(score: ScoreReport, report: Report) -> Iterator[Figure]:
    of = f"{score.passed:,} of {score.scored + score.failed:,} at or above {report.pass_threshold:g}"
    help_text = "The percentage of rollouts that pass. A rollout without a score does not pass."
    rate, interval = score.pass_rate, score.pass_rate_interval
    yield Figure("pass_rate", "pass rate", rate, "share", interval, of, help_text, headline=True)
    any_passes = "The probability that at least one of k attempts passes."
    all_pass = "The probability that all k attempts pass."
    points = [("pass_at_", "pass@", point, any_passes) for point in score.pass_at_k]
    points += [("pass_hat_", "pass^", point, all_pass) for point in score.pass_hat_k if point.k > 1]  # pass^1 is pass@1
    for name, label, point, help_text in points:
        rows = _over_rows(point, report)
        yield Figure(f"{name}{point.k}", f"{label}{point.k}", point.value, "share", point.interval, rows, help_text)
    if score.flake_rate is not None:
        help_text = "Rows where some attempts pass and others fail."
        yield Figure("flake_rate", "flaky rows", score.flake_rate, "share", help=help_text)
    if score.could_show is not None:
        text = f"or more against a second run of these {report.rows:,} rows"
        help_text = "The smallest true difference that they show in four of five runs; osmosis eval plan says more."
        yield Figure("could_show", "could show", score.could_show, "difference", None, text, help_text)


def _over_rows(estimate: PassAtK | Reduced, report: Report) -> str:
    return f"over {estimate.rows:,} rows" if estimate.rows != report.rows else ""


def _spread(score: ScoreReport, report: Report) -> Iterator[Figure]:
    for name in ("std", "min", "median", "max"):
        if (value := getattr(score, name)) is not None:
            about = "Standard deviation of the population." if name == "std" else ""
            yield Figure(name, name, value, detail="failures as 0" if score.failed else "", help=about)


def _unscored(score: ScoreReport, report: Report) -> Iterator[Figure]:
    skipped = f"{report.skipped:,} skipped" if report.skipped else ""
    help_text = "Rollouts without this score, for whatever reason."
    yield Figure("failed", "without a score", score.failed, "count", None, skipped, help_text, headline=True)
    if score.out_of_range:
        help_text = "The judge's number was beyond the range of the score: it counts as the nearest bound."
        detail = "replies of the judge; they count as the nearest bound"
        yield Figure("out_of_range", "out of range", score.out_of_range, "count", None, detail, help_text)


def _reduced(score: ScoreReport, report: Report) -> Iterator[Figure]:
    for estimate in score.reduced:
        name, rows = estimate.name, _over_rows(estimate, report)
        unit: Format = "share" if reducer(name).is_share else "score"
        help_text = "Of the attempts at a row, then the mean over rows; failures as 0."
        label = f"{name} of attempts"
        yield Figure(f"reduced_{name}", label, estimate.value, unit, estimate.interval, rows, help_text)


def _answers(score: ScoreReport, report: Report) -> Iterator[Figure]:
    for issue in report.answer_issues if report.primary is score else ():
        rows = ", ".join(map(str, issue.rows[:5])) + (" ..." if len(issue.rows) > 5 else "")
        detail = f"rows {rows}; they count with their score"
        yield Figure(issue.kind, f"{issue.kind} answers", issue.count, "count", None, detail, MEANING[issue.kind])


def _groups(report: Report) -> Iterator[Figure]:
    columns = dict.fromkeys(group.column for group in report.groups)
    for column, score in product(columns, report.scores):
        for group in report.groups:
            in_group = next((group_score for group_score in group.scores if group_score.name == score.name), None)
            if group.column != column or in_group is None:
                continue
            detail = f"{group.rows:,} row{'s' * (group.rows != 1)}, pass rate {formats.percent(in_group.pass_rate)}"
            name, title = f"{column}={group.value}", f"{score.name} by {column}"
            interval = in_group.mean_interval
            yield Figure(name, group.value, in_group.mean, "score", interval, detail, "Failures as 0.", title)


def _rollouts(report: Report) -> Iterator[Figure]:
    dataset = f" of {report.dataset_rows:,}" if report.dataset_rows not in (None, report.rows) else ""
    rows = f"{report.rows:,}{dataset} row" + "s" * (report.rows != 1)
    of = f"of {report.total:,}: {rows} x {report.attempts}"
    yield Figure("completed", "rollouts", report.completed, "count", None, of, "Rollouts with any outcome.")
    help_text = "The percentage of rollouts that have a score."
    yield Figure("coverage", "coverage", report.coverage, "share", None, "with a score", help_text)
    if report.failed:
        yield Figure("failed_rollouts", "failed rollouts", report.failed, "count")
    if report.skipped:
        help_text = "Rollouts that asked to be skipped."
        yield Figure("skipped", "skipped rollouts", report.skipped, "count", None, "", help_text)


def _spent(report: Report) -> Iterator[Figure]:
    usage = report.usage
    others = {"judge": report.judge_usage, "simulated user": report.user_usage}
    split = f"{usage.prompt_tokens:,} in, {usage.completion_tokens:,} out"
    if usage.reasoning_tokens:
        split += f" ({usage.reasoning_tokens:,} of them reasoning)"
    if usage.cache_write_tokens:
        split += f", {usage.cache_write_tokens:,} written to the cache"
    yield Figure("tokens", "tokens", usage.total_tokens, "count", None, split, headline=True)
    price = "Unknown when the model has no known price."
    spent = [f"{formats.dollars(each.cost_usd)} for {name}s" for name, each in others.items() if each.total_tokens]
    extra = f"plus {' and '.join(spent)}" if spent else ""
    yield Figure("cost_usd", "cost", usage.cost_usd, "usd", None, extra, price, headline=True)
    for name, each in others.items():
        if each.total_tokens:
            split, key = f"{each.prompt_tokens:,} in, {each.completion_tokens:,} out", name.split()[-1]
            yield Figure(f"{key}_tokens", f"{name} tokens", each.total_tokens, "count", None, split)
            yield Figure(f"{key}_cost_usd", f"{name} cost", each.cost_usd, "usd", None, "", price)


def _took(report: Report) -> Iterator[Figure]:
    help_text = "Wall-clock time in which rollouts ran, summed over all sessions."
    if report.duration_ms:  # not known of a log that says none, nor of a part of a run
        yield Figure("duration_ms", "duration", report.duration_ms, "ms", None, "", help_text, headline=True)
    if report.latency_ms:
        yield _per_rollout("latency_ms", "time per rollout", report.latency_ms, "ms")
    if report.tokens:
        yield _per_rollout("tokens_per_rollout", "tokens per rollout", report.tokens, "count")
    if report.stopped:
        yield Figure("stopped", "stopped", report.stopped, "text", None, "", "Why the run ended early.")


def _per_rollout(name: str, label: str, spread: Distribution, unit: Format) -> Figure:
    tail = f"p90 {_WRITE[unit](spread.p90)}, p99 {_WRITE[unit](spread.p99)}"
    return Figure(name, label, spread.median, unit, None, tail, "Median.")


def spent_line(search: Optimization) -> str:
    most = "" if search.max_cost is None else f" of {formats.dollars(search.max_cost)}"
    spent = f"{formats.dollars(search.cost_usd)}{most}, {search.reflections:,} reflections"
    return f"{search.rollouts:,} of {search.max_rollouts:,} rollouts, {spent}"


def comparison_figures(comparison: Comparison) -> Iterator[Figure]:
    return _in_group(comparison.score, _of_comparison(comparison))


def _of_comparison(comparison: Comparison) -> Iterator[Figure]:
    only = f"; scored in A alone {comparison.only_a:,}, in B alone {comparison.only_b:,}"
    wins, losses = (sum(sign * b > sign * a for _, a, b in comparison.by_row) for sign in (1, -1))
    ties = len(comparison.by_row) - wins - losses
    rows = f"on {comparison.rows:,} rows: B wins {wins:,}, loses {losses:,}, ties {ties:,}"
    rows += only if comparison.only_a or comparison.only_b else ""
    help_text = "Attempts that both runs have a score for; the means are of all attempts at a row."
    yield Figure("pairs", "pairs", comparison.pairs, "count", None, rows, help_text)
    yield Figure("mean_a", "mean of A", comparison.mean_a, help="Over rows.")
    yield Figure("mean_b", "mean of B", comparison.mean_b, help="Over rows.")
    interval, verdict = comparison.interval, comparison.verdict
    yield Figure("difference", "difference", comparison.difference, "difference", interval, verdict, "B minus A.")
    if comparison.trained_rows:
        help_text = "Rows that one of the two models was trained on: they are no proof that it is better."
        yield Figure("trained_rows", "rows trained on", comparison.trained_rows, "count", help=help_text)
    if (unseen := comparison.unseen) is not None:
        means = f"{formats.score(unseen.mean_b)} vs {formats.score(unseen.mean_a)} on {unseen.rows:,} rows"
        detail, label = f"{unseen.verdict}: {means}", "difference on unseen rows"
        help_text = "B minus A over the rows that neither model was trained on."
        interval, change = unseen.interval, unseen.difference
        yield Figure("difference_unseen", label, change, "difference", interval, detail, help_text)
    if comparison.detectable is not None:
        help_text = "The smallest true difference that these rows show in four of five runs."
        power = "or more, with 80 % power"
        yield Figure("detectable", "could have shown", comparison.detectable, "difference", None, power, help_text)
    yield Figure("pass_rate_a", "pass rate of A", comparison.pass_rate_a, "share")
    yield Figure("pass_rate_b", "pass rate of B", comparison.pass_rate_b, "share")
    if comparison.failed_a or comparison.failed_b:
        detail = f"failed: {comparison.failed_a:,} in A, {comparison.failed_b:,} in B"
        label = "difference with failures as 0"
        help_text = "B minus A over all pairs that both ran."
        interval, change = comparison.interval_failures_0, comparison.difference_failures_0
        detail += f"; both intervals hold in {200 * interval.level - 100:.3g} %" if interval else ""
        yield Figure("difference_failures_0", label, change, "difference", interval, detail, help_text)
    help_text = "Pairs that pass in B alone, and in A alone."
    flips = f"{comparison.gained:,} gained, {comparison.lost:,} lost"
    yield Figure("flips", "flips", comparison.gained + comparison.lost, "count", None, flips, help_text)
    help_text = "How likely a difference this large is by chance, by row, two-sided (docs/statistics.md)."
    yield Figure("p_value", "p", comparison.p_value, "p", None, "chance of such a difference", help_text)
    if comparison.p_value not in (None, comparison.p_value_flips):
        help_text = "The same of the pass rates: for one attempt a row it is McNemar's mid-p test."
        yield Figure("p_value_flips", "p of flips", comparison.p_value_flips, "p", help=help_text)
    if comparison.rows_differ:
        help_text = "Rows edited between the runs; interpret the difference with care."
        yield Figure("rows_differ", "rows edited", comparison.rows_differ, "count", help=help_text)
    if comparison.aside:
        help_text = "Rows of quarantine.toml: in none of these figures."
        count = len(comparison.aside)
        yield Figure("quarantined", "rows in quarantine", count, "count", None, "not counted", help_text)


@dataclass(frozen=True)
class Judged:
    report: Report
    met: SortedOut

    @property
    def note(self) -> str:
        count = len(self.met.keys)
        rows = "1 row is" if count == 1 else f"{count} rows are"
        return f"{rows} in quarantine and not counted" if count else ""

    @property
    def left_out(self) -> str:
        count = len(self.met.keys)
        return f"{count:,} row{'' if count == 1 else 's'} in quarantine left out" if count else ""

    def headlines(self, every: Report) -> list[Figure]:
        mine = {figure.name: figure for figure in headlines(self.report) if figure.group}
        return [mine.get(figure.name, figure) if figure.group else figure for figure in headlines(every)]

    def to_dict(self) -> JsonObject:
        primary = self.report.primary if self.met.active else None
        figures = {"mean": primary.mean, "pass_rate": primary.pass_rate} if primary else None
        rows = [row.to_dict() | {"expired": row.expired()} for row in (*self.met.active, *self.met.expired)]
        return {"rows": rows, "without": figures}


def judged(
    outcomes: Callable[[], Iterable[Rollout]],
    report: Report,
    quarantine: RowQuarantine,
    *,
    dataset: str,
    plan: EvalPlan | Terms | None = None,
    score_names: Sequence[str] | None = None,
) -> Judged:
    mine = quarantine.of([dataset])
    met = mine.sorted_out(rollout.row_key or "" for rollout in outcomes()) if mine.row else SortedOut((), ())
    if not met.active:
        return Judged(report, met)
    bounds = {score.name: score.bounds for score in report.scores if score.bounds}
    terms = plan or Terms(report.attempts, report.pass_threshold, score_bounds=bounds)
    names = [score.name for score in report.scores] if score_names is None else score_names
    summary, keys = Summary(terms, score_names=names), met.keys
    for outcome in outcomes():
        if outcome.row_key not in keys:
            summary.add(outcome)
    judged_report = summary.report(rows=report.rows - len(keys), duration_ms=report.duration_ms, stopped=report.stopped)
    return Judged(judged_report, met)
