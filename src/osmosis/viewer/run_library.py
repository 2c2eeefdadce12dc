from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from osmosis.records.run.annotations import Marks
from osmosis.records.run.quarantine import RowQuarantine
from osmosis.records.run.report import Interval, Report
from osmosis.viewer.diff import CodePair
from osmosis.viewer.page import Page, QueryParams
from osmosis.viewer.run_source import RunSource, RunState


@dataclass(frozen=True, slots=True)
class RunCard:
    id: str
    name: str
    state: RunState | None = None
    score: str = ""
    mean: float | None = None
    interval: Interval | None = None
    pass_rate: float | None = None
    cost_usd: float | None = None
    failed: int = 0
    dataset: str = ""
    rollout: str = ""
    commit: str = ""
    marks: Marks = field(default_factory=Marks)
    problem: str = ""


class Library(Protocol):
    def run(self, id: str) -> RunSource: ...
    def cards(self) -> Sequence[RunCard]: ...
    def code(self, a: str, b: str) -> CodePair: ...
    def quarantine(self) -> RowQuarantine: ...


def build_card(
    id_: str, state: RunState, report: Report | None, marks: Marks, *, dataset: str, rollout: str, commit: str
) -> RunCard:
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
        marks=marks,
    )


def runs_page(library: Library, params: QueryParams) -> Page:
    words, tag = params.text("q").lower().split(), params.text("tag")
    cards = sorted(library.cards(), key=lambda card: not card.marks.pinned)
    matching = [card for card in cards if all(word in _search_text(card) for word in words)]
    matching = [card for card in matching if not tag or tag in card.marks.tags]
    going = any(card.state is not None and not card.state.over for card in cards)
    values = {"found": matching, "total": len(cards), "params": params, "going": going}
    return Page("runs.html", values, ("found", "total"), live="_runs.html", final=not going)


def _search_text(card: RunCard) -> str:
    model = card.state.model if card.state else ""
    return " ".join((card.name, model, card.dataset, card.score, *card.marks.tags)).lower()
