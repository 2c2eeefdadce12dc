"""A local run that is over, or was cut off: its report, its rollouts read from disk as they are needed, and beside
another run. Reads a run's folder; changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis.base.json_types import JsonObject
from osmosis.base.light_dataclass import dataclass
from osmosis.datasets.groups import groups_by_content
from osmosis.engine.journal import Journal
from osmosis.errors import OsmosisError
from osmosis.metrics.figures import figures, grouped
from osmosis.metrics.formats import interval, score
from osmosis.metrics.judged import Judged
from osmosis.metrics.summary import Summary
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Report
from osmosis.records.rollout import Rollout

from .quarantine_file import file_around, judged_by, read
from .request import run_folder

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

    from osmosis.metrics.compare import Comparison

CUT_OFF = "cut off"
"""How a session ends, in the journal's words, when somebody did not wait for what was in flight."""
_COLUMNS = ("score", "figure", "value", "95 % interval", "")


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
        """This run (B) against another one (A), paired by row and attempt. A name is looked for beside this run first.

        Raises ValidationError when the two have no score or no row in common.
        """
        from osmosis.metrics.compare import compare  # few runs are put beside another

        if isinstance(other, Run):
            before = other
        else:
            beside = self.folder.parent / other
            before = Run.open(beside if (beside / "run.json").exists() else other)
        return compare(
            Journal(before.folder).outcomes(),
            Journal(self.folder).outcomes(),
            threshold=before.plan.pass_threshold,
            score=score,
            bounds={**self.plan.score_bounds, **before.plan.score_bounds},
        )

    def judged(self, base_dir: Path | None = None) -> Judged:
        """The figures without the rows in the `quarantine.toml` around a folder, the current one by default."""
        quarantine = read(file_around(base_dir or Path.cwd()))
        return judged_by(quarantine, Journal(self.folder), self.plan, self.report)

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each rollout: `row_index`, `attempt`, `status`, each score by its name, `failure` (phase/category),
        `prompt_tokens`, `completion_tokens`, `cost_usd`, `duration_ms`. Raises OsmosisError without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise OsmosisError("pandas is not installed", hint="pip install pandas") from error
        return pandas.DataFrame([_flat(rollout) for rollout in self.rollouts])

    def __repr__(self) -> str:
        report, primary = self.report, self.report.primary
        said = [f"{report.completed} of {report.total} rollouts"]
        if primary is not None and primary.mean is not None:
            between = f" ({interval(primary.mean_interval, score)})" if primary.mean_interval else ""
            said.append(f"{primary.name} {score(primary.mean)}{between}")
        said += [f"{report.failed} failed"] if report.failed else []
        said += [f"stopped: {report.stopped}"] if report.stopped else []
        return f"<Run {self.name}: {', '.join(said)}>"

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(repr(self)[1:-1]), title_justify="left")
        for name in _COLUMNS:
            table.add_column(name)
        for group, members in grouped(figures(self.report)):
            for figure in members:
                cells = (group, figure.label, figure.text, figure.between, figure.detail)
                table.add_row(*(Text(cell) for cell in cells))
            table.add_section()
        return table

    def _repr_html_(self) -> str:
        import html  # with the names of two thousand characters: only a notebook asks for this

        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        lines = [
            (figure.group, figure.label, figure.text, figure.between, figure.detail) for figure in figures(self.report)
        ]
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>" for cells in lines)
        title = html.escape(repr(self)[1:-1])
        return f"<p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def stored_report(journal: Journal) -> Report | None:
    """The report of a run that came to its end; None while one goes on, or after one that was killed."""
    sessions = journal.run().get("sessions") or []
    if sessions and ("ended_at" not in sessions[-1] or sessions[-1].get("stopped") == CUT_OFF):
        return None  # the report on disk, if any, is of an earlier session
    return journal.report()


def regrouped(journal: Journal, plan: EvalPlan, ended: Report | None, dataset: Path) -> Report:
    """The figures under another plan: other reducers, or grouped by columns that the rollouts were stored without.

    Those are read from the dataset, for each row that is still what it was. `ended`: the report of the run's end.
    """
    groups = groups_by_content(dataset, plan.selection, plan.group_by) if plan.group_by else {}
    found = summary_of(journal, plan, groups)
    if ended is None:
        return found
    kept = {"rows": ended.rows, "dataset_rows": ended.dataset_rows, "duration_ms": ended.duration_ms}
    return found.model_copy(update={**kept, "stopped": ended.stopped})


def summary_of(journal: Journal, plan: EvalPlan, groups: Mapping[str, dict[str, str]] | None = None) -> Report:
    """The figures of a run that did not end. `groups`: of the rows, by the hash of their content."""
    summary = Summary(plan, score_names=plan.score_fns)
    for outcome in journal.outcomes():
        if groups:
            outcome.groups = groups.get(outcome.hashes.get("row", ""), outcome.groups)
        summary.add(outcome)
    run = journal.run()
    spent = sum(_took(session, journal.rollouts_path) for session in run.get("sessions") or [])
    return summary.report(rows=run.get("rows"), duration_ms=spent, stopped="it is still running, or was interrupted")


def _took(session: JsonObject, rollouts: Path) -> float:
    """Milliseconds of a session; one that was killed lasted at least until its last rollout."""
    if "ended_at" in session or not rollouts.exists():
        return float(session.get("duration_ms") or 0.0)
    return max(0.0, rollouts.stat().st_mtime - datetime.fromisoformat(session["started_at"]).timestamp()) * 1000


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
