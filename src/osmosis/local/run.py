from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic

from osmosis.base.files import write_json
from osmosis.base.installation import install_command
from osmosis.base.jsonable import JsonObject
from osmosis.base.locks import locked
from osmosis.bridges.table import flat_rollouts
from osmosis.datasets.scan import read_groups_by_content
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict, OsmosisError, ValidationError
from osmosis.local.quarantine_file import file_around, judged_by, read
from osmosis.local.run_options import check_name, run_folder
from osmosis.metrics.figures import Figure, Judged, figures, grouped
from osmosis.metrics.formats import interval, score
from osmosis.metrics.summary import Summary
from osmosis.records.run.annotations import MOST_TAGS, MarkChange, Marks
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

    from osmosis.metrics.compare import Comparison

CUT_OFF = "cut off"  # End of a session, in the journal's words, when a person did not wait for rollouts in flight
_COLUMNS = ("score", "figure", "value", "95 % interval", "")


class Rollouts:
    """The stored rollouts of a run, read from disk each time: a loop over them holds one at a time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __iter__(self) -> Iterator[Rollout]:
        return self._journal.rollouts()

    def __len__(self) -> int:
        return len(self._journal.finished())

    def __repr__(self) -> str:
        return f"<{len(self)} rollouts in {self._journal.rollouts_path}>"


@dataclass(frozen=True, repr=False)
class Run:
    """One evaluation on this machine."""

    folder: Path
    plan: EvalPlan
    report: Report
    baselines: "Mapping[str, Run | OsmosisError]" = field(default_factory=dict)
    """The runs of further models, by model; the error of one that could not be run."""

    @classmethod
    def open(cls, name: str | Path) -> "Run":
        """Open a stored run, by name or folder; raise NotFound, which names the existing runs."""
        journal = Journal(run_folder(str(name), Path.cwd()))
        plan = journal.plan()
        return cls(journal.folder, plan, stored_report(journal) or summary_of(journal, plan))

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def rollouts(self) -> Rollouts:
        """Return every rollout with its conversation, scores and failure; read from disk while you loop."""
        return Rollouts(Journal(self.folder))

    def compare(self, other: "Run | str | Path", *, score: str | None = None) -> "Comparison":
        """Compare this run (B) with another one (A); raise ValidationError without a common score or row."""
        from osmosis.metrics.compare import compare  # few runs are put beside another

        if isinstance(other, Run):
            before = other
        else:
            sibling = self.folder.parent / other
            before = Run.open(sibling if (sibling / "run.json").exists() else other)
        rollouts = Journal(before.folder).rollouts(), Journal(self.folder).rollouts()
        bounds = {**self.plan.score_bounds, **before.plan.score_bounds}
        return compare(*rollouts, threshold=before.plan.pass_threshold, score=score, bounds=bounds)

    def judged(self, base_dir: Path | None = None) -> Judged:
        """Return the figures without the rows in the `quarantine.toml` around a folder, the current one by default."""
        return judged_by(read(file_around(base_dir or Path.cwd())), Journal(self.folder), self.plan, self.report)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a data frame with a row for each rollout, with the columns of `osmosis.bridges.table.flatten`: its
        place, prompt, expected, answer, each score by its name with reason and parts, failure, tokens, cost in US
        dollars, milliseconds, and the columns of its dataset row. Raise OsmosisError without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise OsmosisError("pandas is not installed", hint=install_command("pandas")) from error
        return pandas.DataFrame(flat_rollouts(Journal(self.folder)))

    def __repr__(self) -> str:
        report, primary = self.report, self.report.primary
        parts = [f"{report.completed} of {report.total} rollouts"]
        if primary is not None and primary.mean is not None:
            between = f" ({interval(primary.mean_interval, score)})" if primary.mean_interval else ""
            parts.append(f"{primary.name} {score(primary.mean)}{between}")
        parts += [f"{report.failed} failed"] if report.failed else []
        parts += [f"stopped: {report.stopped}"] if report.stopped else []
        return f"<Run {self.name}: {', '.join(parts)}>"

    def __rich__(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(repr(self)[1:-1]), title_justify="left")
        for name in _COLUMNS:
            table.add_column(name)
        for _, members in grouped(figures(self.report)):
            for figure in members:
                table.add_row(*map(Text, _cells(figure)))
            table.add_section()
        return table

    def _repr_html_(self) -> str:
        import html  # with the names of two thousand characters: only a notebook asks for this

        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        lines = map(_cells, figures(self.report))
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>" for cells in lines)
        title = html.escape(repr(self)[1:-1])
        return f"<p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(figure: Figure) -> tuple[str, ...]:
    return figure.group, figure.label, figure.text, figure.between, figure.detail


def stored_report(journal: Journal) -> Report | None:
    sessions = journal.run().get("sessions") or []
    if sessions and ("ended_at" not in sessions[-1] or sessions[-1].get("stopped") == CUT_OFF):
        return None  # the report on disk, if any, is of an earlier session
    return journal.report()


def regrouped(journal: Journal, plan: EvalPlan, ended: Report | None, dataset: Path) -> Report:
    groups = read_groups_by_content(dataset, plan.selection, plan.group_by) if plan.group_by else {}
    summary = summary_of(journal, plan, groups)
    if ended is None:
        return summary
    figures = {"rows": ended.rows, "dataset_rows": ended.dataset_rows, "duration_ms": ended.duration_ms}
    return summary.model_copy(update={**figures, "stopped": ended.stopped})


def summary_of(journal: Journal, plan: EvalPlan, groups: Mapping[str, dict[str, str]] | None = None) -> Report:
    summary = Summary(plan, score_names=plan.score_fns)
    for rollout in journal.rollouts():
        if groups:
            rollout.groups = groups.get(rollout.hashes.get("row", ""), rollout.groups)
        summary.add(rollout)
    run = journal.run()
    spent = sum(_took(session, journal.rollouts_path) for session in run.get("sessions") or [])
    return summary.report(rows=run.get("rows"), duration_ms=spent, stopped="it is still running, or was interrupted")


def _took(session: JsonObject, rollouts: Path) -> float:
    if "ended_at" in session or not rollouts.exists():
        return float(session.get("duration_ms") or 0.0)
    return max(0.0, rollouts.stat().st_mtime - datetime.fromisoformat(session["started_at"]).timestamp()) * 1000


FILE = "marks.json"


def marks_of(folder: Path) -> Marks:
    try:
        return Marks.model_validate_json((folder / FILE).read_bytes())
    except (FileNotFoundError, pydantic.ValidationError):
        return Marks()


def mark(folder: Path, change: MarkChange) -> Path:
    """Change the marks of a run and return its folder; raise Conflict when its new name is taken."""
    with locked(folder / ".marks.lock"):
        try:
            after = change.of(marks_of(folder))
        except pydantic.ValidationError as error:
            hint = "take some away with --remove"
            raise ValidationError(f"a run has at most {MOST_TAGS} tags", field="tags", hint=hint) from error
        if after != marks_of(folder):
            write_json(folder / FILE, after.to_dict())
    if change.name is None or change.name == folder.name:
        return folder
    name = check_name(change.name, "the new name")
    target, journal = folder.with_name(name), Journal(folder)
    journal.lock()
    try:
        if target.exists():
            raise Conflict(f"there is already a run named {name}", hint="choose another name")
        folder.rename(target)
    finally:
        journal.close()
    return target
