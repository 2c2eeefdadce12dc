"""A run's folder as the viewer asks for it (`viewer.source.RunSource`): finished, going on, or cut off."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from osmosis.base.json_types import JsonObject
from osmosis.base.processes import start_token
from osmosis.datasets.scan import read_rows
from osmosis.engine.journal import Journal
from osmosis.errors import NotFound, OsmosisError
from osmosis.local.quarantine_file import file_of_run, read
from osmosis.local.run import stored_report, summary_of
from osmosis.local.run_marks import marks_of
from osmosis.records.annotation import Annotation, newest
from osmosis.records.contract.body import LogPage
from osmosis.records.contract.run_bodies import RunEvent
from osmosis.records.dataset import Row
from osmosis.records.plan import EvalPlan
from osmosis.records.quarantine import RowQuarantine
from osmosis.records.report import Report
from osmosis.records.run_status import RunStatus
from osmosis.viewer.index.file import Fillers
from osmosis.viewer.index.search import Search
from osmosis.viewer.source import (
    CodeAt,
    Fact,
    Link,
    Origin,
    RolloutTable,
    RunPlace,
    RunSettings,
    RunState,
)

from .annotation_file import AnnotationFile
from .indexed_run import IndexedRun

WAIT_S = 0.8
"""So long a page waits for its index to be filled; the rest follows."""
_FILLERS = Fillers()
_REPORTS: dict[tuple[str, int, int], Report] = {}
"""Figures of runs without a report, by folder and by how much was stored."""
_REPORTS_KEPT = 200


@dataclass(frozen=True)
class JournalRun(IndexedRun):
    """One run's folder, read for one page."""

    id: str
    """Its name in addresses."""
    folder: Path
    cache: Path
    """Where indexes are kept."""
    author: str | None = None
    """Who looks, where they may say what they think of a rollout."""

    @cached_property
    def journal(self) -> Journal:
        return Journal(self.folder)

    @cached_property
    def made(self) -> JsonObject:
        """What `run.json` says."""
        found = self.journal.run()
        return found if isinstance(found, dict) else {}

    @cached_property
    def plan(self) -> EvalPlan:
        return self.journal.plan()

    @cached_property
    def alive(self) -> bool:
        """Whether the process of the last session is still there."""
        sessions = self.made.get("sessions") or [{}]
        pid = sessions[-1].get("pid")
        return "ended_at" not in sessions[-1] and isinstance(pid, int) and start_token(pid) is not None

    @cached_property
    def _report(self) -> Report | None:
        """The stored one of a run that ended, else the figures of what is there."""
        stored = stored_report(self.journal)
        if stored is not None:
            return stored
        try:
            found = self.journal.rollouts_path.stat()
        except FileNotFoundError:
            return None
        key = (str(self.folder), found.st_ino, found.st_size)
        if key not in _REPORTS:
            while len(_REPORTS) >= _REPORTS_KEPT:
                _REPORTS.pop(next(iter(_REPORTS)))
            _REPORTS[key] = summary_of(self.journal, self.plan)
        return _REPORTS[key]

    @cached_property
    def _state(self) -> RunState:
        report, plan = self._report, self.plan
        rows = self.made.get("rows")
        total = report.total if report else (rows or 0) * plan.attempts
        done = report.completed if report else 0
        return RunState(
            url=f"/runs/{self.id}",
            name=self.folder.name,
            kind="eval",
            status=_status(done, total, alive=self.alive),
            model=plan.model.name,
            completed=done,
            total=total,
            dataset=Path(plan.dataset).stem,
            pass_threshold=plan.pass_threshold,
            duration_ms=report.duration_ms if report else None,
            staged=False,
        )

    def state(self) -> RunState:
        return self._state

    def place(self) -> RunPlace:
        marking = f"/runs/{quote(self.id)}/marks" if self.author else ""
        tabs = ("rollouts", "config")
        return RunPlace((Link("Runs", "/"),), (), tabs, self.author, marks_of(self.folder), marking)

    def report(self) -> Report | None:
        return self._report

    def quarantine(self) -> RowQuarantine:
        path = file_of_run(self.folder)
        return RowQuarantine() if path is None else read(path)

    def origin(self) -> Origin:
        plan, git = self.plan, self.plan.provenance.get("git") or {}
        dirty = "with uncommitted changes" if git.get("dirty") else ""
        branch = f"on {git['branch']}" if git.get("branch") else ""
        chosen = self.made.get("rows")
        versions = f"osmosis {plan.provenance.get('osmosis', '?')}, Python {plan.provenance.get('python', '?')}"
        commit = str(git.get("commit") or "")
        facts = (
            Fact("Agent", plan.agent, code=True),
            Fact("Model", plan.model.name, note=plan.model.base_url or ""),
            Fact("Dataset", plan.dataset, note=self._dataset_note()),
            Fact("Rows", None if chosen is None else f"{chosen:,}", note=f"x {plan.attempts} attempts"),
            Fact("Scored by", ", ".join(plan.score_fns) or "the rollout's own grader"),
            Fact("Commit", commit[:12] or None, code=True, help=commit, note=" ".join((branch, dirty)).strip()),
            Fact("Made with", versions),
            Fact("Made", _moment(self.made.get("created_at"))),
            Fact("Folder", str(self.folder), code=True),
        )
        history = [event for session in self.made.get("sessions") or [] for event in _events(session)]
        code = CodeAt(commit, rollout_folder(plan), bool(git.get("dirty"))) if commit else None
        return Origin(facts, history, code=code)

    def _dataset_note(self) -> str:
        return "" if self._dataset.is_file() else "(no longer there)"

    @cached_property
    def _dataset(self) -> Path:
        local = self.made.get("local") or {}
        return Path(local.get("base_dir") or self.folder, Path(self.plan.dataset).expanduser())

    def settings(self) -> RunSettings:
        env = (self.made.get("local") or {}).get("env")
        return RunSettings({**plan_tables(self.plan), "env": env or {}}, "Made from", self.origin().facts)

    def read_table(self) -> RolloutTable:
        name = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:24]
        path = self.cache / "viewer" / f"{name}.db"
        feed = JournalFeed(self.journal.rollouts_path, self._dataset, self.plan, str(self.made.get("created_at")))
        index, progress = _FILLERS.filled(path, feed, self.plan.pass_threshold, seconds=WAIT_S)
        index.label(AnnotationFile(self.folder).size, self.annotations)
        return RolloutTable(Search(index), progress)

    def annotations(self) -> Sequence[Annotation]:
        return newest(AnnotationFile(self.folder).read())

    def annotate(self, said: Annotation) -> None:
        """Kept beside the journal, whose rollouts stay as they are."""
        AnnotationFile(self.folder).add(said)

    def rollout(self, row_index: int, attempt: int, step: int) -> str:
        place = self._table.search.place(row_index, attempt, step)
        with self.journal.rollouts_path.open("rb") as lines:
            lines.seek(place)
            return lines.readline().decode()

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        raise NotFound("a local run has no log", hint="its rollouts have their tracebacks")


@dataclass(frozen=True)
class JournalFeed:
    """`viewer.index.file.Feed` of a journal; a place is an offset in `rollouts.jsonl`."""

    path: Path
    dataset: Path
    plan: EvalPlan
    made_at: str

    @property
    def epoch(self) -> str:
        """Of this file: a rewritten journal is another one."""
        try:
            return f"{self.path}:{self.path.stat().st_ino}:{self.made_at}"
        except FileNotFoundError:
            return f"{self.path}:{self.made_at}"

    def extent(self) -> int:
        """Behind the last whole line."""
        try:
            with self.path.open("rb") as lines:
                end = lines.seek(0, 2)
                back = min(end, 1 << 16)
                lines.seek(end - back)
                return end - back + lines.read(back).rfind(b"\n") + 1
        except FileNotFoundError:
            return 0

    def since(self, place: int) -> Iterator[tuple[int, int, bytes]]:
        try:
            lines = self.path.open("rb")
        except FileNotFoundError:
            return
        with lines:
            lines.seek(place)
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                yield place, place + len(line), line
                place += len(line)

    def dataset_rows(self) -> Iterable[Row]:
        if not self.dataset.is_file():
            return
        try:
            yield from read_rows(self.dataset, self.plan.selection, skip_bad=True)
        except OsmosisError:
            return  # edited since into something that is no dataset: the rollouts are shown without it


def rollout_folder(plan: EvalPlan) -> str:
    """Of the rollout that ran, in its workspace; empty for an agent that is none."""
    top, _, rest = plan.agent.partition("/")
    name = rest.partition("/")[0]
    return f"{top}/{name}" if top == "rollouts" and name else ""


def plan_tables(plan: EvalPlan) -> JsonObject:
    """A plan as the tables of a config."""
    every = plan.to_dict()
    experiment = {key: every.get(key) for key in ("agent", "dataset", "dataset_hash") if every.get(key) is not None}
    model = {key: value for key, value in every["model"].items() if key != "params" and value is not None}
    flat = {key: value for key, value in every.items() if not isinstance(value, dict) and key not in experiment}
    tables = {
        key: value for key, value in every.items() if isinstance(value, dict) and key not in ("model", "provenance")
    }
    config = {"experiment": experiment, "model": model, "sampling": every["model"].get("params"), "evaluation": flat}
    return {**config, **tables}


def _status(done: int, total: int, *, alive: bool) -> RunStatus:
    if alive:
        return RunStatus.RUNNING
    return RunStatus.FINISHED if total and done >= total else RunStatus.STOPPED


def _events(session: Mapping[str, object]) -> Iterator[RunEvent]:
    yield RunEvent(timestamp=str(session.get("started_at") or ""), status="started", reason="")
    if session.get("ended_at"):
        stopped = session.get("stopped")
        yield RunEvent(
            timestamp=str(session["ended_at"]), status="stopped" if stopped else "finished", reason=str(stopped or "")
        )


def _moment(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        return None
