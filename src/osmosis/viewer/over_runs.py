"""A row, or a figure, over the runs of a library: read from what each run has, drawn by no one here.

A run's own report says its figures; a row's attempts come from its rollouts, found by the key that names the row
wherever it stands.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from osmosis.metrics.figures import figures
from osmosis.records.history import History, PastRun
from osmosis.records.report import Report

from .library import Library, RunCard

MOST = 200
"""Runs that a history looks at, the newest ones."""
PATIENCE_S = 4.0
"""So long a page waits for rollouts to be indexed; the rest follows."""
BASELINE = "baseline"
"""The tag of the run that others are measured by."""


@dataclass(frozen=True, slots=True)
class HistoryWanted:
    """What a history is asked for."""

    row: str = ""
    metric: str = ""
    rollout: str = ""
    model: str = ""
    dataset: str = ""
    tag: str = ""
    baseline: str = ""

    def fits(self, card: RunCard) -> bool:
        if card.state is None or card.state.kind != "eval":
            return False
        pairs = ((self.rollout, card.rollout), (self.model, card.state.model), (self.dataset, card.dataset))
        return all(wanted in ("", found) for wanted, found in pairs) and (not self.tag or self.tag in card.marks.tags)


def history(library: Library, wanted: HistoryWanted, *, patience_s: float | None = PATIENCE_S) -> History:
    """The runs that fit, the oldest first; `patience_s` None waits until everything was read."""
    cards = [card for card in library.cards()[:MOST] if wanted.fits(card)][::-1]
    named: dict[str, None] = {}
    runs: list[PastRun] = []
    unread = 0
    until = None if patience_s is None else time.monotonic() + patience_s
    for card in cards:
        assert card.state is not None
        source = library.run(card.id)
        values = dict(_values(source.report()))
        named.update(dict.fromkeys(values))
        found = values.get(wanted.metric or next(iter(values), ""), (None, None, None))
        run = PastRun(
            id=card.id,
            name=card.name,
            url=card.state.url,
            rollout=card.rollout,
            model=card.state.model,
            dataset=card.dataset,
            commit=card.commit,
            created_at=card.created_at or None,
            tags=card.marks.tags,
            value=found[0],
            low=found[1],
            high=found[2],
        )
        if wanted.row:
            if until is not None and time.monotonic() > until:
                unread += 1
                continue
            if not source.whole(wait=until is None):
                unread += 1
            run.row = source.row(wanted.row)
        runs.append(run)
    metric = wanted.metric or next(iter(named), "")
    marked = next((run.id for run in reversed(runs) if BASELINE in run.tags), "")
    chosen = next((run.id for run in runs if wanted.baseline and wanted.baseline in (run.id, run.name)), marked)
    quarantine = library.quarantine()
    return History(
        metric=metric,
        metrics=list(named),
        row=wanted.row,
        runs=runs,
        unread=unread,
        baseline=chosen,
        quarantine=quarantine.about(wanted.row) if wanted.row else quarantine.row,
    )


Value = tuple[float | None, float | None, float | None]


def _values(report: Report | None) -> Iterator[tuple[str, Value]]:
    """Every figure that is a number, with its interval, by the name that a history is asked for by."""
    for figure in figures(report) if report is not None else ():
        if isinstance(figure.value, str):
            continue
        name = f"{figure.group}:{figure.name}" if figure.group else figure.name
        between = figure.interval
        yield name, (figure.value, between.low if between else None, between.high if between else None)
