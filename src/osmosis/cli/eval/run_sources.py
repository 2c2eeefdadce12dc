"""Stored runs and rows by name: a local run first (name, path, prefix, `latest`), else the platform's."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from osmosis.cli.core.context import AppContext
from osmosis.client import PlatformClient
from osmosis.datasets.scan import read_rows
from osmosis.engine.agent import RecordedRollouts
from osmosis.engine.journal import ARTIFACTS, Journal
from osmosis.errors import NotFound, OsmosisError
from osmosis.local.run import stored_report
from osmosis.local.run_options import NO_RUNS, run_folder
from osmosis.local.viewing.library import fetch_rows
from osmosis.records.config.run_config import Evaluation
from osmosis.records.run.plan import Selection
from osmosis.records.run.report import Bounds
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import Key, Row, place_key
from osmosis.workspace.layout import find_workspace

PLATFORM = "platform:"
T = TypeVar("T")


class RunFinder:
    def __init__(self, ctx: AppContext) -> None:
        self._ctx = ctx
        self.cwd = ctx.cwd

    def find(self, name: str, *, of_folder: Callable[[Path], T], of_platform: Callable[[PlatformClient, str], T]) -> T:
        if name.startswith(PLATFORM):
            return of_platform(self._client, name.removeprefix(PLATFORM))
        try:
            folder = run_folder(name, self._ctx.cwd)
        except NotFound as here:
            try:
                client = self._client
                client.evals.get(name)
            except NotFound as there:
                message = f"{here.message}, nor an evaluation of that name on the platform"
                raise NotFound(message, hint="osmosis eval list") from there
            except OsmosisError as silent:  # not logged in, no workspace, nobody answers
                message = f"{here.message}; nor could the platform be asked: {silent.message}"
                raise NotFound(message, hint=silent.hint if here.hint == NO_RUNS else here.hint) from silent
            return of_platform(client, name)
        return of_folder(folder)

    def on_platform(self, name: str) -> bool:
        try:
            return bool(self._client.evals.get(name).run.name == name)
        except OsmosisError:
            return False

    @cached_property
    def _client(self) -> PlatformClient:
        return self._ctx.client()


@dataclass(frozen=True)
class RowName:
    key: str
    dataset: str = ""  # Name of the dataset; empty when only the row's key was given


def row_named(text: str, cwd: Path) -> RowName:
    name, _, index = text.rpartition(":")
    if not (name and index.isdigit()):
        return RowName(text)
    try:
        journal = Journal(run_folder(name, cwd))
    except NotFound:
        return RowName(text)
    for outcome in journal.rollouts():
        if outcome.row_index == int(index):
            return RowName(outcome.row_key or place_key(outcome.row_index), Path(journal.plan().dataset).stem)
    raise NotFound(f"run {journal.folder.name} has no rollout of row {index}", hint=f"osmosis eval show {name}")


class LocalRun:
    where = "this machine"

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.journal = Journal(folder)
        self.plan = self.journal.plan()
        self.dataset = Path(self.plan.dataset).stem
        self.pass_threshold = self.plan.pass_threshold
        self.score_bounds: Mapping[str, Bounds] = self.plan.score_bounds

    @cached_property
    def primary(self) -> str | None:
        report = stored_report(self.journal)
        return report.primary.name if report is not None and report.primary is not None else self.plan.primary

    def trained_rows(self) -> set[str]:
        return set()

    @cached_property
    def _recorded(self) -> RecordedRollouts:
        return RecordedRollouts(self.journal.folder)

    def outcomes(self) -> Iterable[Rollout]:
        return self.journal.rollouts()

    def read(self, key: Key) -> Rollout:
        return self._recorded.read(key)

    def find(self, row: int, attempt: int) -> Rollout:
        for line in self.journal.lines():
            if (line["row_index"], line["attempt"]) == (row, attempt):
                return Rollout.model_validate(line)
        raise NotFound(f"run {self.name} has no rollout {row}/{attempt}", hint=f"osmosis eval show {self.name}")

    def artifacts(self, rollout: Rollout) -> str | None:
        folder = self.journal.folder / ARTIFACTS / rollout.rollout_id / ARTIFACTS
        return str(folder) if folder.is_dir() else None

    def rows(self, indices: Collection[int]) -> dict[int, Row]:
        base = (self.journal.run().get("local") or {}).get("base_dir")
        return _read_rows(Path(base or ".", self.plan.dataset).expanduser(), indices)


class PlatformRun:
    def __init__(self, client: PlatformClient, name: str, cwd: Path) -> None:
        detail = client.evals.get(name)
        self.name = detail.run.name
        self.where = client.url
        self.dataset = (detail.dataset.name if detail.dataset else None) or ""
        evaluation = Evaluation.model_validate((detail.config or {}).get("evaluation") or {})
        self.pass_threshold = evaluation.pass_threshold
        self.score_bounds: Mapping[str, Bounds] = evaluation.score_bounds()
        self.primary = detail.report.primary.name if detail.report and detail.report.primary else None
        self.client, self._cwd = client, cwd
        self._places: dict[Key, tuple[int, int]] = {}

    def outcomes(self) -> Iterator[Rollout]:
        for rollout in self.client.evals.outcomes(self.name):
            self._places[rollout.key] = rollout.place
            yield rollout

    def trained_rows(self) -> set[str]:
        return self.client.evals.trained_rows(self.name)

    def read(self, key: Key) -> Rollout:
        return self.find(*self._places[key])

    def find(self, row: int, attempt: int) -> Rollout:
        return self.client.evals.rollout(self.name, row, attempt)

    def rows(self, indices: Collection[int]) -> dict[int, Row]:
        try:
            local = find_workspace(self._cwd).local_dataset(self.dataset)
        except OsmosisError:
            local = None
        if local is not None:
            return _read_rows(local, indices)
        try:
            return {row.index: row for row in fetch_rows(self.client, self.dataset) if row.index in indices}
        except OsmosisError:
            return {}


StoredRun = LocalRun | PlatformRun


def open_run(runs: RunFinder, name: str) -> StoredRun:
    def on_platform(client: PlatformClient, name: str) -> StoredRun:
        return PlatformRun(client, name, runs.cwd)

    return runs.find(name, of_folder=LocalRun, of_platform=on_platform)


def find_row(run: StoredRun, rollout: Rollout) -> Row | None:
    row = run.rows([rollout.row_index]).get(rollout.row_index)
    return row if row is not None and is_same_row(row, rollout) else None


def is_same_row(row: Row, rollout: Rollout) -> bool:
    return rollout.hashes.get("row") in (None, row.content_hash)


def _read_rows(path: Path, indices: Collection[int]) -> dict[int, Row]:
    try:
        return {row.index: row for row in read_rows(path, Selection(rows=sorted(set(indices))), skip_bad=True)}
    except OsmosisError:
        return {}
