import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError as PydanticError

from osmosis.base.git import Git
from osmosis.client import PlatformClient
from osmosis.datasets.scan import read_rows
from osmosis.engine.journal import read_annotations
from osmosis.errors import Forbidden, NotFound, OsmosisError
from osmosis.local.compare_answers import stored_comparisons
from osmosis.local.quarantine_file import file_of_run, read
from osmosis.local.run import mark
from osmosis.local.viewing.local_run import IndexedRun, LocalRun, index_path, plan_tables
from osmosis.records.api.body import LogPage
from osmosis.records.api.runs import NamedRef, RunDetail
from osmosis.records.config.optimize import OptimizeConfig
from osmosis.records.config.run_config import EvalConfig, Evaluation
from osmosis.records.run.annotations import Annotation, MarkChange, Marks, keep_newest
from osmosis.records.run.plan import EvalPlan, Selection
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Failure
from osmosis.records.run.rows import NAME, Row, RowQuarantine
from osmosis.records.run.status import RunStatus
from osmosis.records.run.study import Study, StudyState
from osmosis.viewer import run_source
from osmosis.viewer.index import RolloutFeed, RolloutIndex

_RUN_FILES = ("run.json", "*/run.json", ".osmosis/runs/*/run.json")
FRESH_S = 1.0
FRESH_WHEN_OVER_S = 30.0  # Seconds; not for ever, because somebody may retry the run
MAX_DATASET_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PlatformAnswer:
    at: float
    detail: RunDetail
    rollouts: int


class PlatformEvaluation:
    def __init__(self, client: PlatformClient, name: str, cache: Path) -> None:
        self.client = client
        self.cache = cache
        self.name = client.evals.get(name).run.name
        self._answer: PlatformAnswer | None = None
        self._annotations: tuple[float, Sequence[Annotation]] | None = None

    @property
    def id(self) -> str:
        return f"{self.name}~platform"

    def fetch(self) -> PlatformAnswer:
        now, last = time.monotonic(), self._answer
        if last is None or now - last.at > (FRESH_WHEN_OVER_S if last.detail.run.over else FRESH_S):
            detail = self.client.evals.get(self.name)  # before the rollouts: those of a run that is over are all
            last = self._answer = PlatformAnswer(now, detail, self.client.evals.amount(self.name))
        return last

    def annotations(self) -> Sequence[Annotation]:
        at = self.fetch().at
        if self._annotations is None or self._annotations[0] != at:
            evals = self.client.evals
            files = evals.manifest(self.name, types="annotations").files
            annotations: list[Annotation] = []
            with TemporaryDirectory(prefix="osmosis-view-") as folder:
                for url in evals.download_urls(self.name, files).values() if files else ():
                    self.client.transfer.download(url, Path(folder, "labels"))
                    annotations += read_annotations(Path(folder, "labels"))
            self._annotations = at, keep_newest(annotations)
        return self._annotations[1]

    def forget(self) -> None:
        self._answer = None


@dataclass(frozen=True)
class RemoteRun(IndexedRun):
    evaluation: PlatformEvaluation

    @property
    def id(self) -> str:
        return self.evaluation.id

    @property
    def name(self) -> str:
        return f"platform:{self.evaluation.name}"

    @cached_property
    def _answer(self) -> PlatformAnswer:
        return self.evaluation.fetch()

    @property
    def _detail(self) -> RunDetail:
        return self._answer.detail

    @cached_property
    def _state(self) -> run_source.RunState:
        detail, rollouts = self._detail, self._answer.rollouts
        status = parse_status(detail)
        config = detail.config or {}
        return run_source.RunState(
            url=f"/runs/{self.id}",
            name=self.name,
            kind="eval",
            status=status,
            model=str(config.get("model_path") or ""),
            completed=rollouts,
            total=max(detail.counted[1], rollouts),
            dataset=self.dataset,
            created_at=self._detail.run.created_at or "",
            pass_threshold=Evaluation.model_validate(config.get("evaluation") or {}).pass_threshold,
            stage=detail.stage,
            stopping=bool(detail.run.stop_requested) and not status.over,
            duration_ms=detail.report.duration_ms if detail.report else None,
            failure=_parse_failure(detail) if status.over else None,
        )

    @property
    def dataset(self) -> str:
        return (self._detail.dataset or NamedRef()).name or ""

    @property
    def rollout_name(self) -> str:
        return (self._detail.rollout or NamedRef()).name or ""

    @property
    def commit(self) -> str:
        return self._detail.commit_sha or ""

    def context(self) -> run_source.RunContext:
        run = self._detail.run
        marks = Marks(tags=run.tags or [], note=run.note or "", pinned=bool(run.pinned))
        return run_source.RunContext(in_list=True, marks=marks)

    def report(self) -> Report | None:
        return self._detail.report

    def trained_rows(self) -> set[str]:
        return self.evaluation.client.evals.trained_rows(self.evaluation.name)

    def quarantine(self) -> RowQuarantine:
        return self._detail.quarantine or RowQuarantine()

    def origin(self) -> run_source.Origin:
        detail = self._detail
        branch = f"on {detail.branch}" if detail.branch else ""
        facts = (
            run_source.Fact("Where", "on the platform", url=detail.run.platform_url, note="only looked at here"),
            run_source.Fact("Rollout", self.rollout_name),
            run_source.Fact("Model", self._state.model),
            run_source.Fact("Dataset", self.dataset),
            run_source.Fact("Commit", self.commit[:12] or None, code=True, help=self.commit, note=branch),
            run_source.Fact("Submitted", detail.run.created_at or None, note=f"by {detail.run.creator_name}"),
        )
        folder = f"rollouts/{self.rollout_name}" if self.rollout_name else ""
        code = run_source.CodeVersion(self.commit, folder) if self.commit else None
        return run_source.Origin(facts, detail.events, detail.snapshot, code=code)

    def settings(self) -> run_source.RunSettings:
        detail = self._detail
        try:
            plan = EvalPlan.from_config(config_of(detail), name=self.evaluation.name, dataset=self.dataset)
        except PydanticError:  # of a run that was uploaded, or of another server
            return run_source.RunSettings(detail.config or {}, "Submitted", self.origin().facts)
        tables = {**plan_tables(plan), "env": detail.env_config or {}}
        return run_source.RunSettings(tables, "Pinned at submit", self.origin().facts)

    def feed(self) -> RolloutFeed:
        return RemoteFeed(self.evaluation, self._answer)

    def index_path(self) -> Path:
        return index_path(self.evaluation.cache, self.feed().epoch)

    def label_index(self, index: RolloutIndex) -> None:
        annotations = self.annotations()
        digest = hashlib.sha256(b"".join(annotation.to_line() for annotation in annotations)).digest()
        index.set_labels(int.from_bytes(digest[:6], "big") if annotations else 0, lambda: annotations)

    def annotations(self) -> Sequence[Annotation]:
        return self.evaluation.annotations()

    def rollout(self, row_index: int, attempt: int, step: int) -> str:
        if step:
            raise NotFound(f"{self.name} has no step {step}", hint="an evaluation has no steps")
        return self.evaluation.client.evals.rollout(self.evaluation.name, row_index, attempt).model_dump_json()

    def log(self, level: str, *, cursor: str | None = None, newer: bool = False) -> LogPage:
        page = self.evaluation.client.evals.logs(self.evaluation.name, cursor=cursor, newer=newer)
        levels = run_source.LEVELS[run_source.LEVELS.index(level) :]
        return page.model_copy(update={"logs": [line for line in page.logs if line.level in levels]})


@dataclass(frozen=True)
class RemoteFeed:
    """Its rollouts as a `viewer.index.RolloutFeed`; a place is the number of a rollout by arrival."""

    evaluation: PlatformEvaluation
    answer: PlatformAnswer

    @property
    def epoch(self) -> str:
        """Return a value that changes with a retry, which drops the rollouts that it runs again."""
        detail = self.answer.detail
        starts = sum(event.status == RunStatus.PENDING.value for event in detail.events)
        return f"{self.evaluation.client.url}|{detail.run.id}|{starts}"

    def extent(self) -> int:
        return self.answer.rollouts

    def since(self, place: int) -> Iterator[tuple[int, int, bytes]]:
        for page in self.evaluation.client.evals.arrived(self.evaluation.name, after=place):
            for outcome in page.outcomes:
                yield place, place + 1, outcome.model_dump_json().encode()
                place += 1

    def dataset_rows(self) -> Iterable[Row]:
        dataset = self.answer.detail.dataset
        if dataset is None or not dataset.name:
            return
        try:
            yield from fetch_rows(self.evaluation.client, dataset.name)
        except OsmosisError:
            return  # deleted, or no longer a dataset: the rollouts are shown without it


def fetch_rows(client: PlatformClient, name: str) -> Iterator[Row]:
    dataset = client.datasets.get(name)
    if (dataset.file_size or 0) > MAX_DATASET_BYTES:
        return
    with TemporaryDirectory(prefix="osmosis-view-") as folder:
        path = Path(folder, f"dataset.{dataset.file_format or 'jsonl'}")
        client.datasets.download(name, path)
        yield from read_rows(path, Selection(), skip_bad=True)


def parse_status(detail: RunDetail) -> RunStatus:
    try:
        return RunStatus(detail.run.status)
    except ValueError:
        return RunStatus.FAILED if detail.run.over else RunStatus.RUNNING


def _parse_failure(detail: RunDetail) -> Failure | None:
    try:
        return Failure.model_validate(detail.failure.to_dict()) if detail.failure is not None else None
    except PydanticError:
        return None


def config_of(run: RunDetail) -> EvalConfig:
    config = run.config or {}
    kind = OptimizeConfig if "optimize" in config else EvalConfig
    tables = {name: config[name] for name in kind.model_fields if name in config}
    experiment = {name: value for name, value in config.items() if name not in tables}
    return kind.model_validate({"secrets": {}, **tables, "experiment": experiment, "env": run.env_config or {}})


@dataclass(frozen=True)
class LocalLibrary:
    folders: Sequence[Path]
    cache: Path
    author: str | None = None
    remote: Sequence[PlatformEvaluation] = ()
    workspace: Path | None = None

    def _run_folders(self) -> dict[str, Path]:
        folders: dict[str, Path] = {}
        files = (sorted(folder.glob(pattern)) for folder in self.folders for pattern in _RUN_FILES)
        for folder in dict.fromkeys(path.parent for paths in files for path in paths):
            name, number = folder.name, 1
            while name in folders:
                number += 1
                name = f"{folder.name}~{number}"
            folders[name] = folder
        return folders

    def run(self, id: str) -> LocalRun | RemoteRun:
        evaluation = self._find_remote(id)
        return self._local_run(id) if evaluation is None else RemoteRun(evaluation)

    def _find_remote(self, id: str) -> PlatformEvaluation | None:
        return next((evaluation for evaluation in self.remote if evaluation.id == id), None)

    def _local_run(self, id: str) -> LocalRun:
        folder = self._run_folders().get(id)
        if folder is None:
            raise NotFound(f"there is no run {id!r} here", hint="it may have been removed; see the list of runs")
        return LocalRun(id, folder, self.cache, self.author)

    def _writable_run(self, id: str) -> LocalRun:
        evaluation = self._find_remote(id)
        if evaluation is not None:
            hint = f"on the platform's own page: {evaluation.fetch().detail.run.platform_url or evaluation.name}"
            raise Forbidden(f"{evaluation.name} is on the platform and only looked at here", hint=hint)
        return self._local_run(id)

    def mark(self, id: str, change: MarkChange) -> str:
        folder = mark(self._writable_run(id).folder, change)
        return next((name for name, other in self._run_folders().items() if other == folder), folder.name)

    def annotate(self, id: str, annotation: Annotation) -> None:
        self._writable_run(id).annotate(annotation)

    def is_empty(self) -> bool:
        return not self.remote and not self._run_folders()

    def only_run(self) -> str | None:
        ids = [*self._run_folders(), *(evaluation.id for evaluation in self.remote)]
        return ids[0] if len(ids) == 1 else None

    def cards(self) -> list[run_source.RunCard]:
        cards = [_card(LocalRun(id_, folder, self.cache)) for id_, folder in self._run_folders().items()]
        cards += [_card(RemoteRun(evaluation)) for evaluation in self.remote]
        return sorted(cards, key=lambda card: card.state.created_at if card.state else "", reverse=True)

    def code(self, a: str, b: str) -> run_source.CodePair:
        runs = self.run(a), self.run(b)
        folders = [run.folder.parent for run in runs if isinstance(run, LocalRun)]
        if self.workspace is not None:
            folders.append(self.workspace)
        return run_source.pair_code(*runs, [Git(folder) for folder in dict.fromkeys(folders)])

    def decisions(self, id_: str = "") -> list[StudyState]:
        cards, states = {card.name: card.to_study_run() for card in self.cards()}, list[StudyState]()
        folders = dict.fromkeys(folder.parent / "decisions" for folder in self.folders)
        paths = [path for folder in folders for path in folder.glob("*.json") if id_ in ("", path.stem)]
        for path in sorted(paths, key=lambda path: -path.stat().st_mtime):
            study = Study.model_validate_json(path.read_bytes())
            at = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
            runs = {name: [cards[name]] for name in dict.fromkeys(study.runs.values()) if name in cards}
            going = any(run.status == RunStatus.RUNNING.value for own in runs.values() for run in own)
            status = "decided" if study.due is None else "running" if going else "interrupted"
            own = {"id": path.stem, "url": f"/decisions/{path.stem}", "created_at": at.isoformat()}
            states.append(StudyState(study=study, runs=runs, status=status, **own))
        return states

    def preferences(self, ids: Sequence[str]) -> Sequence[str]:
        runs = [run.folder for run in map(self.run, ids) if isinstance(run, LocalRun)]
        return [f'{c.judge} by "{c.rubric}"\n{c}' for c in stored_comparisons(runs)] if len(runs) > 1 else []

    def quarantine(self) -> RowQuarantine:
        files = [file_of_run(folder) for folder in self._run_folders().values()]
        if self.remote and self.workspace is not None:
            files.append(self.workspace / NAME)
        rows = [row for path in dict.fromkeys(files) if path is not None for row in read(path).row]
        return RowQuarantine(row=[row for number, row in enumerate(rows) if row not in rows[:number]])


def _card(run: LocalRun | RemoteRun) -> run_source.RunCard:
    try:
        about = run.state(), run.report(), run.context().marks
        return run_source.build_card(run.id, *about, dataset=run.dataset, rollout=run.rollout_name, commit=run.commit)
    except OsmosisError as error:
        return run_source.RunCard(run.id, run.name, problem=error.message)
