"""Runs of this machine and evaluations on the platform in one list: what `osmosis view` serves.

What lies here is read and written by its folder's library; what is fetched is only looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.git import Git
from osmosis.errors import Forbidden, OsmosisError
from osmosis.local.quarantine_file import read
from osmosis.records.annotation import Annotation
from osmosis.records.marks import MarkChange
from osmosis.records.quarantine import NAME, RowQuarantine
from osmosis.viewer.code_diff import CodePair, code_pair
from osmosis.viewer.library import RunCard, card_of
from osmosis.viewer.source import RunSource

from .disk_library import DiskLibrary
from .fetched_run import FetchedRun, PlatformEvaluation
from .journal_run import JournalRun


@dataclass(frozen=True)
class MixedLibrary:
    """`viewer.library.Library` of both."""

    here: DiskLibrary
    fetched: Sequence[PlatformEvaluation] = ()
    workspace: Path | None = None
    """In which one looks: platform runs are judged by its quarantine, as `eval compare` does, and their code is looked
    for in its repository."""

    def run(self, id: str) -> RunSource:
        found = self._fetched(id)
        return self.here.run(id) if found is None else FetchedRun(found)

    def _fetched(self, id: str) -> PlatformEvaluation | None:
        return next((one for one in self.fetched if one.id == id), None)

    def _own(self, id: str) -> JournalRun:
        """A run that may be written on."""
        found = self._fetched(id)
        if found is not None:
            hint = f"on the platform's own page: {found.seen().detail.run.platform_url or found.name}"
            raise Forbidden(f"{found.name} is on the platform and only looked at here", hint=hint)
        return self.here.run(id)

    def mark(self, id: str, change: MarkChange) -> str:
        """Writes on a run; the name that it has in addresses afterwards."""
        return self.here.mark(self._own(id).id, change)

    def annotate(self, id: str, said: Annotation) -> None:
        self._own(id).annotate(said)

    def only(self) -> str | None:
        """The run when there is one alone."""
        names = [*self.here.names(), *(one.id for one in self.fetched)]
        return names[0] if len(names) == 1 else None

    def cards(self) -> list[RunCard]:
        """Every run, the newest first; one that cannot be read says why."""
        found = [*self.here.cards(), *map(_card, self.fetched)]
        return sorted(found, key=lambda card: card.created_at or "", reverse=True)

    def code(self, a: str, b: str) -> CodePair:
        """By the repositories in which they lie, or the one in which one looks."""
        runs = self.run(a), self.run(b)
        folders = [run.folder.parent for run in runs if isinstance(run, JournalRun)]
        if self.workspace is not None:
            folders.append(self.workspace)
        return code_pair(*runs, [Git(folder) for folder in dict.fromkeys(folders)])

    def quarantine(self) -> RowQuarantine:
        found = self.here.quarantine()
        more = read(self.workspace / NAME).row if self.fetched and self.workspace is not None else []
        return RowQuarantine(row=[*found.row, *(one for one in more if one not in found.row)])


def _card(of: PlatformEvaluation) -> RunCard:
    run = FetchedRun(of)
    try:
        return card_of(
            run, of.id, dataset=run.dataset, rollout=run.rollout_name, commit=run.commit, created_at=run.created_at
        )
    except OsmosisError as error:  # deleted meanwhile, or nobody answers
        return RunCard(of.id, run.name, problem=error.message)
