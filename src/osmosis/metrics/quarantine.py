from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from osmosis.base.jsonable import JsonObject
from osmosis.metrics.figures import Figure, headlines
from osmosis.metrics.summary import Summary, Terms
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.quarantine import RowQuarantine, SortedOut
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout


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
        primary = self.report.primary if self.met.held else None
        figures = {"mean": primary.mean, "pass_rate": primary.pass_rate} if primary else None
        rows = [row.to_dict() | {"expired": row.expired()} for row in (*self.met.held, *self.met.expired)]
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
    if not met.held:
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
