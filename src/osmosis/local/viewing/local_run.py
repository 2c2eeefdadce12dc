import hashlib
import mimetypes
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from osmosis.base import safe_open
from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import start_token
from osmosis.bridges.logs import parse_time
from osmosis.datasets.scan import read_rows
from osmosis.engine.journal import ARTIFACTS, AnnotationFile, Journal
from osmosis.errors import NotFound, OsmosisError
from osmosis.local.branch import find_branches
from osmosis.local.quarantine_file import file_of_run, read
from osmosis.local.run import marks_of, stored_report, summary_of
from osmosis.records.api.body import LogPage
from osmosis.records.api.runs import RunEvent
from osmosis.records.run.annotations import Annotation, keep_newest
from osmosis.records.run.history import RowCount
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import Row, RowQuarantine
from osmosis.records.run.status import RunStatus
from osmosis.viewer import run_source
from osmosis.viewer.index import IndexFillers, RolloutFeed, RolloutIndex
from osmosis.viewer.search import Search

WAIT_S = 0.8
MAX_IMAGE_BYTES, MAX_TEXT_BYTES = 2_000_000, 20_000  # Of artifacts that a page shows; larger ones are named
_FILLERS = IndexFillers()
_REPORTS: dict[tuple[str, int, int], Report] = {}
_MAX_REPORTS = 200


def index_path(cache: Path, key: str) -> Path:
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    return cache / "viewer" / f"{name}.db"


class IndexedRun(ABC):
    @abstractmethod
    def feed(self) -> RolloutFeed: ...

    @abstractmethod
    def index_path(self) -> Path: ...

    @abstractmethod
    def label_index(self, index: RolloutIndex) -> None: ...

    @property
    @abstractmethod
    def _state(self) -> run_source.RunState: ...

    def state(self) -> run_source.RunState:
        return self._state

    def read_table(self) -> run_source.RolloutTable:
        index, progress = _FILLERS.open(self.index_path(), self.feed(), self.state().pass_threshold, wait_s=WAIT_S)
        self.label_index(index)
        return run_source.RolloutTable(Search(index), progress)

    @cached_property
    def _table(self) -> run_source.RolloutTable:
        return self.read_table()

    def table(self) -> run_source.RolloutTable:
        return self._table

    def is_indexed(self, *, wait: bool = False) -> bool:
        table = self._table
        while wait and not table.progress.complete:
            table = self.read_table()
        return table.progress.complete

    def rewards(self) -> Sequence[float]:
        return self._table.search.rewards()

    def row_count(self, key: str) -> RowCount | None:
        return self._table.search.row_count(key)

    def points(self) -> Sequence[MetricPoint]:
        return ()

    def checkpoints(self) -> Sequence[run_source.CheckpointLine]:
        return ()

    def trained_rows(self) -> set[str]:
        return set()


@dataclass(frozen=True)
class LocalRun(IndexedRun):
    id: str
    folder: Path
    cache: Path
    author: str | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def journal(self) -> Journal:
        return Journal(self.folder)

    @cached_property
    def run_file(self) -> JsonObject:
        content = self.journal.run()
        return content if isinstance(content, dict) else {}

    @cached_property
    def plan(self) -> EvalPlan:
        return self.journal.plan()

    @property
    def dataset(self) -> str:
        return Path(self.plan.dataset).name

    @property
    def rollout_name(self) -> str:
        return self.plan.agent

    @property
    def commit(self) -> str:
        return str((self.plan.provenance.get("git") or {}).get("commit") or "")

    @cached_property
    def is_alive(self) -> bool:
        sessions = self.run_file.get("sessions") or [{}]
        pid = sessions[-1].get("pid")
        return "ended_at" not in sessions[-1] and isinstance(pid, int) and start_token(pid) is not None

    @cached_property
    def _report(self) -> Report | None:
        stored = stored_report(self.journal)
        if stored is not None:
            return stored
        try:
            status = self.journal.rollouts_path.stat()
        except FileNotFoundError:
            return None
        key = (str(self.folder), status.st_ino, status.st_size)
        if key not in _REPORTS:
            while len(_REPORTS) >= _MAX_REPORTS:
                _REPORTS.pop(next(iter(_REPORTS)))
            _REPORTS[key] = summary_of(self.journal, self.plan)
        return _REPORTS[key]

    @cached_property
    def _state(self) -> run_source.RunState:
        report, plan = self._report, self.plan
        total = report.total if report else (self.run_file.get("rows") or 0) * plan.attempts
        completed = report.completed if report else 0
        finished = total and completed >= total
        pulse = self.journal.pulse() if self.is_alive else {}
        return run_source.RunState(
            url=f"/runs/{self.id}",
            name=self.name,
            kind="eval",
            status=RunStatus.RUNNING if self.is_alive else RunStatus.FINISHED if finished else RunStatus.STOPPED,
            model=plan.model.name,
            completed=completed,
            total=total,
            dataset=Path(plan.dataset).stem,
            created_at=str(self.run_file.get("created_at") or ""),
            pass_threshold=plan.pass_threshold,
            duration_ms=report.duration_ms if report else None,
            staged=False,
            in_flight=pulse.get("stages") or {},
            longest=[(name, stage, seconds) for name, stage, seconds in pulse.get("longest") or ()],
        )

    def context(self) -> run_source.RunContext:
        return run_source.RunContext(
            in_list=True,
            tabs=("rollouts", "config"),
            author=self.author,
            marks=marks_of(self.folder),
            branches=partial(find_branches, self.folder.parent),
            artifacts=self._artifacts,
        )

    def _artifacts(self, rollout: Rollout) -> Iterator[run_source.Artifact]:
        folder = [ARTIFACTS, rollout.rollout_id, ARTIFACTS]
        for path, size in safe_open.list_artifacts(self.folder, folder, most_bytes=1 << 50) or ():
            kind = mimetypes.guess_type(path)[0] or ""
            is_image = kind.startswith("image/")
            most = MAX_IMAGE_BYTES if is_image else MAX_TEXT_BYTES
            file = safe_open.open_artifact(self.folder, [*folder, *path.split("/")], most_bytes=most)
            content = b"".join(file.pieces()) if file else b""
            image = f"data:{kind};base64,{b64encode(content).decode()}" if content and is_image else ""
            text = "" if image or b"\0" in content else content.decode(errors="replace")
            yield run_source.Artifact(path, size, image, text)

    def report(self) -> Report | None:
        return self._report

    def quarantine(self) -> RowQuarantine:
        path = file_of_run(self.folder)
        return RowQuarantine() if path is None else read(path)

    def origin(self) -> run_source.Origin:
        plan, git = self.plan, self.plan.provenance.get("git") or {}
        dirty = "with uncommitted changes" if git.get("dirty") else ""
        branch = f"on {git['branch']}" if git.get("branch") else ""
        rows = self.run_file.get("rows")
        versions = f"osmosis {plan.provenance.get('osmosis', '?')}, Python {plan.provenance.get('python', '?')}"
        commit = self.commit
        facts = (
            run_source.Fact("Agent", plan.agent, code=True),
            run_source.Fact("Model", plan.model.name, note=plan.model.base_url or ""),
            run_source.Fact("Dataset", plan.dataset, note="" if self._dataset_path.is_file() else "(no longer there)"),
            run_source.Fact("Rows", None if rows is None else f"{rows:,}", note=f"x {plan.attempts} attempts"),
            run_source.Fact("Scored by", ", ".join(plan.score_fns) or "the rollout's own grader"),
            run_source.Fact(
                "Commit", commit[:12] or None, code=True, help=commit, note=" ".join((branch, dirty)).strip()
            ),
            run_source.Fact("Made with", versions),
            run_source.Fact("Made", parse_time(self.run_file.get("created_at"))),
            run_source.Fact("Folder", str(self.folder), code=True),
        )
        events = [event for session in self.run_file.get("sessions") or [] for event in _session_events(session)]
        code = run_source.CodeVersion(commit, rollout_folder(plan), bool(git.get("dirty"))) if commit else None
        return run_source.Origin(facts, events, code=code)

    @cached_property
    def _dataset_path(self) -> Path:
        local = self.run_file.get("local") or {}
        return Path(local.get("base_dir") or self.folder, Path(self.plan.dataset).expanduser())

    def settings(self) -> run_source.RunSettings:
        env = (self.run_file.get("local") or {}).get("env")
        return run_source.RunSettings({**plan_tables(self.plan), "env": env or {}}, "Made from", self.origin().facts)

    def feed(self) -> RolloutFeed:
        created_at = str(self.run_file.get("created_at"))
        return LocalFeed(self.journal.rollouts_path, self._dataset_path, self.plan, created_at)

    def index_path(self) -> Path:
        return index_path(self.cache, str(self.folder.resolve()))

    def label_index(self, index: RolloutIndex) -> None:
        index.set_labels(AnnotationFile(self.folder).size, self.annotations)

    def annotations(self) -> Sequence[Annotation]:
        return keep_newest(AnnotationFile(self.folder).read())

    def annotate(self, annotation: Annotation) -> None:
        AnnotationFile(self.folder).add(annotation)

    def rollout(self, row_index: int, attempt: int, step: int) -> str:
        offset = self._table.search.place(row_index, attempt, step)
        with self.journal.rollouts_path.open("rb") as lines:
            lines.seek(offset)
            return lines.readline().decode()

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        raise NotFound("a local run has no log", hint="its rollouts have their tracebacks")


@dataclass(frozen=True)
class LocalFeed:
    """A journal as a `viewer.index.RolloutFeed`; a place is an offset in `rollouts.jsonl`."""

    path: Path
    dataset: Path
    plan: EvalPlan
    created_at: str

    @property
    def epoch(self) -> str:
        try:
            return f"{self.path}:{self.path.stat().st_ino}:{self.created_at}"
        except FileNotFoundError:
            return f"{self.path}:{self.created_at}"

    def extent(self) -> int:
        try:
            with self.path.open("rb") as lines:
                end = lines.seek(0, 2)
                tail = min(end, 1 << 16)
                lines.seek(end - tail)
                return end - tail + lines.read(tail).rfind(b"\n") + 1
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
    top, _, rest = plan.agent.partition("/")
    name = rest.partition("/")[0]
    return f"{top}/{name}" if top == "rollouts" and name else ""


def plan_tables(plan: EvalPlan) -> JsonObject:
    values = plan.to_dict()
    experiment = {key: values.get(key) for key in ("agent", "dataset", "dataset_hash") if values.get(key) is not None}
    model = {key: value for key, value in values["model"].items() if key != "params" and value is not None}
    flat = {key: value for key, value in values.items() if not isinstance(value, dict) and key not in experiment}
    apart = ("model", "provenance")
    tables = {key: value for key, value in values.items() if isinstance(value, dict) and key not in apart}
    config = {"experiment": experiment, "model": model, "sampling": values["model"].get("params"), "evaluation": flat}
    return {**config, **tables}


def _session_events(session: Mapping[str, object]) -> Iterator[RunEvent]:
    yield RunEvent(timestamp=str(session.get("started_at") or ""), status="started", reason="")
    if session.get("ended_at"):
        reason = session.get("stopped")
        status = "stopped" if reason else "finished"
        yield RunEvent(timestamp=str(session["ended_at"]), status=status, reason=str(reason or ""))
