"""Runs of a platform: what evaluations and training runs have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar
from urllib.parse import quote

from osmosis.base.short_names import meant
from osmosis.errors import NotFound
from osmosis.records.contract.body import LogPage
from osmosis.records.contract.run_bodies import MarkedRun, RunDetail, RunPage, RunPriority, RunRow
from osmosis.records.marks import MarkChange

from .http import Http

if TYPE_CHECKING:
    from osmosis.records.contract.eval_bodies import EvalMetrics
    from osmosis.records.contract.training_bodies import TrainingMetrics

LOG_PAGE = 200
NAMES = 50
"""So many of the newest runs are looked through for one that a beginning stands for."""
T = TypeVar("T")


class Runs:
    """The runs of one kind; `noun` is their path.

    What only reads also finds a run by the beginning of its name, or as `latest`; what changes one wants its name.
    """

    noun: ClassVar[str]
    listed: ClassVar[type[RunPage]]
    whole: ClassVar[type[RunDetail]]
    figures: ClassVar[type[EvalMetrics] | type[TrainingMetrics]]

    def __init__(self, http: Http) -> None:
        self._http = http
        self._tag: str | None = None
        self._full: dict[str, str] = {}
        """Beginnings and `latest`, as they were found."""

    def tagged(self, tag: str | None) -> Runs:
        """The same, of which lists hold only the runs with this tag."""
        found = type(self)(self._http)
        found._tag = tag
        return found

    def page(self, *, limit: int = 50, offset: int = 0) -> RunPage:
        """Some runs, newest first."""
        params = {"limit": limit, "offset": offset, "tag": self._tag}
        return self._http.read(self.listed, "GET", self.noun, params=params)

    def all(self) -> list[RunRow]:
        return [
            row for page in self._http.pages(self.listed, self.noun, params={"tag": self._tag}) for row in page.rows
        ]

    def get(self, name: str) -> RunDetail:
        """One run with config, dataset, rollout and results."""
        return self._found(name, lambda full: self._http.read(self.whole, "GET", self._path(full)))

    def metrics(self, name: str) -> EvalMetrics | TrainingMetrics:
        return self._found(name, lambda full: self._http.read(self.figures, "GET", self._path(full, "metrics")))

    def stop(self, name: str) -> None:
        self._http.call("POST", self._path(name, "stop"), json={})

    def mark(self, name: str, change: MarkChange) -> MarkedRun:
        """Change tags, note, pin or name."""
        return self._http.read(MarkedRun, "PATCH", self._path(name), json=change.to_dict())

    def prioritize(self, name: str, priority: int) -> RunPriority:
        """The place of a run that waits, among those of its workspace: the highest first."""
        body = RunPriority(priority=priority)
        return self._http.read(RunPriority, "PUT", self._path(name, "priority"), json=body)

    def delete(self, name: str) -> None:
        self._http.call("DELETE", self._path(name))

    def logs(self, name: str, *, limit: int = LOG_PAGE, cursor: str | None = None, newer: bool = False) -> LogPage:
        """One page, oldest first within it.

        Without a cursor: the last lines, or with `newer` the first ones. `next_cursor` goes on in that direction.
        """
        params = {"limit": limit, "direction": "newer" if newer else "older", "cursor": cursor}
        return self._found(name, lambda full: self._http.read(LogPage, "GET", self._path(full, "logs"), params=params))

    def _found(self, name: str, ask: Callable[[str], T]) -> T:
        """What `ask` says of the run with this name, or of the one that it stands for."""
        try:
            return ask(self._full.get(name, name))
        except NotFound:
            full = meant(name, [row.name for row in self.page(limit=NAMES).rows])
            if full is None or full == self._full.get(name, name):
                raise  # the run is there, and something of it is not; or there is no such run
            self._full[name] = full
            return ask(full)

    def _path(self, name: str, tail: str = "") -> str:
        return f"{self.noun}/{quote(name, safe='')}" + (f"/{tail}" if tail else "")
