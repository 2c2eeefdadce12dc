"""The runs below some folders of this machine, found anew for each page, with the names they have in addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.git import Git
from osmosis.errors import NotFound, OsmosisError
from osmosis.local.quarantine_file import file_of_run, read
from osmosis.local.run_marks import mark
from osmosis.records.marks import MarkChange
from osmosis.records.quarantine import RowQuarantine
from osmosis.viewer.code_diff import CodePair, code_pair
from osmosis.viewer.library import RunCard, card_of

from .journal_run import JournalRun

DEEPEST = ("run.json", "*/run.json", ".osmosis/runs/*/run.json")


@dataclass(frozen=True)
class DiskLibrary:
    """`viewer.library.Library` of folders: each a run, a folder of runs, or a workspace."""

    folders: Sequence[Path]
    cache: Path
    author: str | None = None
    """Who looks and may label; None: nobody may."""

    def _found(self) -> dict[str, Path]:
        """Run folders by the names they have in addresses: a name that was taken gets a number."""
        named: dict[str, Path] = {}
        for folder in dict.fromkeys(path for given in self.folders for path in _runs_in(given)):
            name, number = folder.name, 1
            while name in named:
                number += 1
                name = f"{folder.name}~{number}"
            named[name] = folder
        return named

    def names(self) -> list[str]:
        """Those that runs have in addresses."""
        return list(self._found())

    def run(self, id: str) -> JournalRun:
        found = self._found().get(id)
        if found is None:
            raise NotFound(f"there is no run {id!r} here", hint="it may have been removed; see the list of runs")
        return JournalRun(id, found, self.cache, self.author)

    def mark(self, id: str, change: MarkChange) -> str:
        """Writes on a run; the name that it has in addresses afterwards."""
        there = mark(self.run(id).folder, change)
        return next((name for name, folder in self._found().items() if folder == there), there.name)

    def cards(self) -> list[RunCard]:
        """Every run, the newest first; one that cannot be read says why."""
        found = [card for id_, folder in self._found().items() if (card := self._card(id_, folder)) is not None]
        return sorted(found, key=lambda card: card.created_at or "", reverse=True)

    def code(self, a: str, b: str) -> CodePair:
        """By the repositories in which the runs lie."""
        runs = self.run(a), self.run(b)
        return code_pair(*runs, [Git(run.folder.parent) for run in runs])

    def quarantine(self) -> RowQuarantine:
        """That of the workspaces in which the runs lie, all together."""
        files = dict.fromkeys(file_of_run(folder) for folder in self._found().values())
        return RowQuarantine(row=[one for path in files if path is not None for one in read(path).row])

    def _card(self, id_: str, folder: Path) -> RunCard | None:
        run = JournalRun(id_, folder, self.cache)
        try:
            git = run.plan.provenance.get("git") or {}
            return card_of(
                run,
                id_,
                dataset=Path(run.plan.dataset).name,
                rollout=run.plan.agent,
                commit=str(git.get("commit") or ""),
                created_at=str(run.made.get("created_at") or ""),
            )
        except OsmosisError as error:
            return RunCard(id_, folder.name, problem=error.message)


def _runs_in(folder: Path) -> Iterator[Path]:
    """The folders of runs in a folder that is one itself, holds some, or is a workspace."""
    for pattern in DEEPEST:
        yield from sorted(path.parent for path in folder.glob(pattern))
