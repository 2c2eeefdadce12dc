"""Several runs: what a list of them shows, and what a server must bring so that they can be listed and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from osmosis.records.marks import Marks
from osmosis.records.quarantine import RowQuarantine
from osmosis.records.report import Interval

from .asked import Asked
from .code_diff import CodePair
from .source import RunSource, RunState
from .view import View


@dataclass(frozen=True, slots=True)
class RunCard:
    """A run in a list."""

    id: str
    name: str
    state: RunState | None = None
    score: str = ""
    """Name of the first score."""
    mean: float | None = None
    interval: Interval | None = None
    pass_rate: float | None = None
    cost_usd: float | None = None
    failed: int = 0
    dataset: str = ""
    rollout: str = ""
    """What ran: the rollout's name, or the agent."""
    commit: str = ""
    created_at: str = ""
    marks: Marks = field(default_factory=Marks)
    problem: str = ""
    """Why it cannot be read."""


class Library(Protocol):
    """The runs of a server, for who looks."""

    def run(self, id: str) -> RunSource:
        """NotFound when there is none of this id."""

    def cards(self) -> Sequence[RunCard]:
        """The newest first."""

    def code(self, a: str, b: str) -> CodePair:
        """Two runs whose code is to be compared; starts no git."""

    def quarantine(self) -> RowQuarantine:
        """Rows that do not decide a comparison; empty where no workspace's file can be read."""


def card_of(
    source: RunSource, id_: str, *, dataset: str, created_at: str, rollout: str = "", commit: str = ""
) -> RunCard:
    """A run in a list, from what its pages are made of."""
    state, report = source.state(), source.report()
    primary = report.primary if report else None
    return RunCard(
        id=id_,
        name=state.name,
        state=state,
        score=primary.name if primary else "",
        mean=primary.mean if primary else None,
        interval=primary.mean_interval if primary else None,
        pass_rate=primary.pass_rate if primary else None,
        cost_usd=report.usage.cost_usd if report else None,
        failed=primary.failed if primary else 0,
        dataset=dataset,
        rollout=rollout,
        commit=commit,
        created_at=created_at,
        marks=source.place().marks,
    )


def runs_page(library: Library, asked: Asked) -> View:
    """All runs, or those whose name, model, tags or dataset hold what was searched for; pinned ones stand first."""
    words, tag = asked.text("q").lower().split(), asked.text("tag")
    every = sorted(library.cards(), key=lambda card: not card.marks.pinned)
    found = [card for card in every if all(word in _words(card) for word in words)]
    found = [card for card in found if not tag or tag in card.marks.tags]
    going = any(card.state is not None and not card.state.over for card in every)
    values = {"found": found, "total": len(every), "asked": asked, "going": going}
    return View("runs.html", values, ("found", "total"), live="_runs.html", final=not going)


def _words(card: RunCard) -> str:
    model = card.state.model if card.state else ""
    return " ".join((card.name, model, card.dataset, card.score, *card.marks.tags)).lower()
