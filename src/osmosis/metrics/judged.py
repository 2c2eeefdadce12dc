"""The figures by which a run is judged, wherever it is: those of all rows, or without the rows in quarantine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from osmosis.base.json_types import JsonObject
from osmosis.base.light_dataclass import dataclass
from osmosis.records.plan import EvalPlan
from osmosis.records.quarantine import RowQuarantine, SortedOut
from osmosis.records.report import Report

from .counted import Counted
from .figures import Figure, headlines
from .summary import Summary, Terms


@dataclass(frozen=True)
class Judged:
    """The figures that decide, and why they are not those of all rows."""

    report: Report
    met: SortedOut

    @property
    def note(self) -> str:
        """What to say beside a verdict; empty where all rows count."""
        count = len(self.met.keys)
        rows = "1 row is" if count == 1 else f"{count} rows are"
        return f"{rows} in quarantine and not counted" if count else ""

    @property
    def left_out(self) -> str:
        """The same beside a figure."""
        count = len(self.met.keys)
        return f"{count:,} row{'' if count == 1 else 's'} in quarantine left out" if count else ""

    def headlines(self, every: Report) -> list[Figure]:
        """The few to be seen first: those of the first score without these rows, those of the run with them."""
        mine = {figure.name: figure for figure in headlines(self.report) if figure.group}
        return [mine.get(figure.name, figure) if figure.group else figure for figure in headlines(every)]

    def to_dict(self) -> JsonObject:
        """The entries that the run meets, and the first score without their rows."""
        primary = self.report.primary if self.met.held else None
        figures = {"mean": primary.mean, "pass_rate": primary.pass_rate} if primary else None
        rows = [one.to_dict() | {"expired": one.expired()} for one in (*self.met.held, *self.met.expired)]
        return {"rows": rows, "without": figures}


def judged(
    outcomes: Callable[[], Iterable[Counted]],
    report: Report,
    quarantine: RowQuarantine,
    *,
    dataset: str,
    plan: EvalPlan | Terms | None = None,
    score_names: Sequence[str] | None = None,
) -> Judged:
    """The report without the rows in quarantine; the report itself where it has none of them.

    `outcomes` is asked only where something is in quarantine. Without a plan, its terms are the report's.
    """
    mine = quarantine.of([dataset])
    met = mine.sorted_out(one.row_key or "" for one in outcomes()) if mine.row else SortedOut((), ())
    if not met.held:
        return Judged(report, met)
    bounds = {score.name: score.bounds for score in report.scores if score.bounds}
    terms = plan or Terms(report.attempts, report.pass_threshold, score_bounds=bounds)
    names = [score.name for score in report.scores] if score_names is None else score_names
    summary, keys = Summary(terms, score_names=names), met.keys
    for outcome in outcomes():
        if outcome.row_key not in keys:
            summary.add(outcome)
    found = summary.report(rows=report.rows - len(keys), duration_ms=report.duration_ms, stopped=report.stopped)
    return Judged(found, met)
