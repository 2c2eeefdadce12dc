from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.git import Git
from osmosis.errors import Forbidden, NotFound, OsmosisError
from osmosis.local.quarantine_file import file_of_run, read
from osmosis.local.run import mark
from osmosis.local.viewing.local_run import LocalRun
from osmosis.local.viewing.remote_run import PlatformEvaluation, RemoteRun
from osmosis.records.run.annotations import Annotation, MarkChange
from osmosis.records.run.quarantine import NAME, RowQuarantine
from osmosis.viewer.run_source import CodePair, RunCard, build_card, pair_code

_RUN_FILES = ("run.json", "*/run.json", ".osmosis/runs/*/run.json")


@dataclass(frozen=True)
class LocalLibrary:
    folders: Sequence[Path]
    cache: Path
    author: str | None = None
    remote: Sequence[PlatformEvaluation] = ()
    workspace: Path | None = None
    """The current workspace: its quarantine applies to platform runs, its repository may have their code."""

    def _run_folders(self) -> dict[str, Path]:
        folders: dict[str, Path] = {}
        found = (sorted(folder.glob(pattern)) for folder in self.folders for pattern in _RUN_FILES)
        for folder in dict.fromkeys(path.parent for paths in found for path in paths):
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

    def cards(self) -> list[RunCard]:
        cards = [_card(LocalRun(id_, folder, self.cache)) for id_, folder in self._run_folders().items()]
        cards += [_card(RemoteRun(evaluation)) for evaluation in self.remote]
        return sorted(cards, key=lambda card: card.state.created_at if card.state else "", reverse=True)

    def code(self, a: str, b: str) -> CodePair:
        runs = self.run(a), self.run(b)
        folders = [run.folder.parent for run in runs if isinstance(run, LocalRun)]
        if self.workspace is not None:
            folders.append(self.workspace)
        return pair_code(*runs, [Git(folder) for folder in dict.fromkeys(folders)])

    def quarantine(self) -> RowQuarantine:
        files = [file_of_run(folder) for folder in self._run_folders().values()]
        if self.remote and self.workspace is not None:
            files.append(self.workspace / NAME)
        rows = [row for path in dict.fromkeys(files) if path is not None for row in read(path).row]
        return RowQuarantine(row=[row for number, row in enumerate(rows) if row not in rows[:number]])


def _card(run: LocalRun | RemoteRun) -> RunCard:
    try:
        about = run.state(), run.report(), run.context().marks
        return build_card(run.id, *about, dataset=run.dataset, rollout=run.rollout_name, commit=run.commit)
    except OsmosisError as error:
        return RunCard(run.id, run.name, problem=error.message)
