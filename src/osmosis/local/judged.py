"""The figures by which a local run is judged: those of all rows, or without the rows in quarantine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from osmosis.base.json_types import JsonObject
from osmosis.engine.journal import Journal
from osmosis.metrics.summary import Summary
from osmosis.records.plan import EvalPlan
from osmosis.records.quarantine import RowQuarantine, SortedOut
from osmosis.records.report import Report


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

    def to_dict(self) -> JsonObject:
        """The entries that the run meets, and the first score without their rows."""
        primary = self.report.primary if self.met.held else None
        figures = {"mean": primary.mean, "pass_rate": primary.pass_rate} if primary else None
        rows = [one.to_dict() | {"expired": one.expired()} for one in (*self.met.held, *self.met.expired)]
        return {"rows": rows, "without": figures}


def judged(journal: Journal, plan: EvalPlan, report: Report, quarantine: RowQuarantine) -> Judged:
    """The report without the rows in quarantine; the report itself where it has none of them."""
    mine = quarantine.of([Path(plan.dataset).stem])
    met = mine.sorted_out(one.row_key or "" for one in journal.outcomes()) if mine.row else SortedOut((), ())
    if not met.held:
        return Judged(report, met)
    summary, keys = Summary(plan, score_names=plan.score_fns), met.keys
    for outcome in journal.outcomes():
        if outcome.row_key not in keys:
            summary.add(outcome)
    found = summary.report(rows=report.rows - len(keys), duration_ms=report.duration_ms, stopped=report.stopped)
    return Judged(found, met)
