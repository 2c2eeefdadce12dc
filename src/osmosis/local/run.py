"""A local run that is over, or was cut off: its report, its rollouts read from disk as they are needed, and beside
another run. Reads a run's folder; changes nothing in it.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis.engine.journal import Journal
from osmosis.errors import OsmosisError
from osmosis.metrics.compare import Comparison, compare
from osmosis.metrics.summary import Summary
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Interval, Report
from osmosis.records.rollout import Rollout

from .request import run_folder

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

CUT_OFF = "cut off"
"""How a session ends, in the journal's words, when somebody did not wait for what was in flight."""


class Rollouts:
    """The stored rollouts of a run, read anew each time: a loop over them holds one at a time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __iter__(self) -> Iterator[Rollout]:
        """In the order in which they finished."""
        return self._journal.rollouts()

    def __len__(self) -> int:
        return len(self._journal.finished())

    def __repr__(self) -> str:
        return f"<{len(self)} rollouts in {self._journal.rollouts_path}>"


@dataclass(frozen=True, repr=False)
class Run:
    """One evaluation on this machine."""

    folder: Path
    """`run.json`, `rollouts.jsonl` and `report.json` are here."""
    plan: EvalPlan
    report: Report
    baselines: Mapping[str, Run | OsmosisError] = field(default_factory=dict)
    """The runs of further models, by model; the error of one that could not be run."""

    @classmethod
    def open(cls, name: str | Path) -> Run:
        """A stored run, by name or folder. Raises NotFound, which names the runs that there are."""
        journal = Journal(run_folder(str(name), Path.cwd()))
        plan = journal.plan()
        return cls(journal.folder, plan, stored_report(journal) or summary_of(journal, plan))

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def rollouts(self) -> Rollouts:
        """Every rollout with its conversation, scores and failure; read from disk while you loop."""
        return Rollouts(Journal(self.folder))

    def compare(self, other: Run | str | Path, *, score: str | None = None) -> Comparison:
        """This run (B) against another one (A), paired by row and attempt.

        Raises ValidationError when the two have no score or no row in common.
        """
        before = other if isinstance(other, Run) else Run.open(other)
        return compare(
            Journal(before.folder).outcomes(),
            Journal(self.folder).outcomes(),
            threshold=before.plan.pass_threshold,
            score=score,
        )

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each rollout: `row_index`, `attempt`, `status`, each score by its name, `failure` (phase/category),
        `prompt_tokens`, `completion_tokens`, `cost_usd`, `duration_ms`. Raises OsmosisError without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise OsmosisError("pandas is not installed", hint="pip install pandas") from error
        return pandas.DataFrame([_flat(rollout) for rollout in self.rollouts])

    def __repr__(self) -> str:
        report = self.report
        primary = report.primary
        figures = [f"{report.completed} of {report.total} rollouts"]
        if primary is not None and primary.mean is not None:
            figures.append(f"{primary.name} {_figure(primary.mean, primary.mean_interval)}")
        figures += [f"{report.failed} failed"] if report.failed else []
        figures += [f"stopped: {report.stopped}"] if report.stopped else []
        return f"<Run {self.name}: {', '.join(figures)}>"

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        columns, rows = _table(self.report)
        table = Table(title=Text(repr(self)[1:-1]), title_justify="left")
        for name in columns:
            table.add_column(Text(name))
        for cells in rows:
            table.add_row(*(Text(cell) for cell in cells))
        return table

    def _repr_html_(self) -> str:
        columns, rows = _table(self.report)
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        title = html.escape(repr(self)[1:-1])
        return f"<p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def stored_report(journal: Journal) -> Report | None:
    """The report of a run that came to its end; None while one goes on, or after one that was killed."""
    sessions = journal.run().get("sessions") or []
    if sessions and ("ended_at" not in sessions[-1] or sessions[-1].get("stopped") == CUT_OFF):
        return None  # the report on disk, if any, is of an earlier session
    return journal.report()


def summary_of(journal: Journal, plan: EvalPlan) -> Report:
    """The figures of a run that did not end."""
    summary = Summary(plan, score_names=plan.score_fns)
    for outcome in journal.outcomes():
        summary.add(outcome)
    run = journal.run()
    spent = sum(_took(session, journal.rollouts_path) for session in run.get("sessions") or [])
    return summary.report(rows=run.get("rows"), duration_ms=spent, stopped="it goes on, or was cut off")


def _took(session: dict[str, Any], rollouts: Path) -> float:
    """Milliseconds of a session; one that was killed lasted at least until its last rollout."""
    if "ended_at" in session or not rollouts.exists():
        return float(session.get("duration_ms") or 0.0)
    return max(0.0, rollouts.stat().st_mtime - datetime.fromisoformat(session["started_at"]).timestamp()) * 1000


def _table(report: Report) -> tuple[list[str], list[list[str]]]:
    """What a notebook shows of a report: a line for each score."""
    rows = [
        [
            score.name,
            _figure(score.mean, score.mean_interval),
            _figure(score.pass_rate, score.pass_rate_interval),
            str(score.scored),
            str(score.failed),
        ]
        for score in report.scores
    ]
    return ["score", "mean (failures 0)", "pass rate", "scored", "failed"], rows


def _figure(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f} [{interval.low:.3f}, {interval.high:.3f}]" if interval else f"{value:.3f}"


def _flat(rollout: Rollout) -> dict[str, object]:
    failure = rollout.failure
    return {
        "row_index": rollout.row_index,
        "attempt": rollout.attempt,
        "status": rollout.status.value,
        **{score.name: score.value for score in rollout.scores.values()},
        "failure": f"{failure.phase.value}/{failure.category.value}" if failure else None,
        "prompt_tokens": rollout.usage.prompt_tokens,
        "completion_tokens": rollout.usage.completion_tokens,
        "cost_usd": rollout.usage.cost_usd,
        "duration_ms": rollout.duration_ms,
    }
