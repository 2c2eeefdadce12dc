"""The page of a history: a row, or a figure, over the runs that somebody may see; with its drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from osmosis.records.history import History, PastRun, since

from .asked import Asked
from .library import Library
from .over_runs import HistoryWanted, history
from .view import View

WIDE, TALL = 640.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 12.0, 12.0, 26.0
ASKED = ("row", "metric", "rollout", "model", "dataset", "tag", "baseline")
SERIES = 6
"""Series that have a look of their own; further ones share the last."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One run in the drawing, in its units."""

    x: float
    y: float
    low: float | None
    high: float | None
    series: int
    title: str
    url: str
    baseline: bool


@dataclass(frozen=True, slots=True)
class Chart:
    marks: Sequence[Mark]
    lines: Sequence[tuple[int, str]]
    """Series and the points of its line."""
    series: Sequence[str]
    baseline_y: float | None
    bottom: str
    top: str
    """What the lowest and the highest place stand for."""


def history_page(library: Library, asked: Asked) -> View:
    """`?metric=NAME`, `?row=KEY`; `rollout`, `model`, `dataset`, `tag` choose runs, `baseline` one to measure by."""
    found = history(library, HistoryWanted(*(asked.text(name) for name in ASKED)))
    everything = [card for card in library.cards() if card.state is not None and card.state.kind == "eval"]
    choices = {
        "rollout": sorted({card.rollout for card in everything if card.rollout}),
        "model": sorted({card.state.model for card in everything if card.state and card.state.model}),
        "dataset": sorted({card.dataset for card in everything if card.dataset}),
    }
    values = {
        "found": found,
        "asked": asked,
        "choices": choices,
        "chart": chart(found),
        "since": since(found.runs) if found.row else None,
        "newest_first": found.runs[::-1],
    }
    return View("history.html", values, ("found",))


def chart(found: History) -> Chart | None:
    """None when fewer than two runs have the figure."""
    shown = [run for run in found.runs if run.value is not None]
    if len(shown) < 2:
        return None
    ends = [value for run in shown for value in (run.value, run.low, run.high) if value is not None]
    low, high = min(ends), max(ends)
    if low == high:
        low, high = low - 0.5, high + 0.5
    names = list(dict.fromkeys(run.series for run in shown))
    step = (WIDE - LEFT - RIGHT) / (len(shown) - 1)

    def tall(value: float | None) -> float | None:
        if value is None:
            return None
        return round(TOP + (TALL - TOP - BOTTOM) * (high - value) / (high - low), 1)

    marks = [_mark(run, LEFT + number * step, tall, names, found.baseline) for number, run in enumerate(shown)]
    lines = [
        (number, " ".join(f"{mark.x},{mark.y}" for mark in marks if mark.series == number))
        for number in range(min(len(names), SERIES))
    ]
    base = next((tall(run.value) for run in shown if run.id == found.baseline), None)
    return Chart(marks, lines, names[:SERIES], base, f"{low:.3g}", f"{high:.3g}")


def _mark(
    run: PastRun, x: float, tall: Callable[[float | None], float | None], names: Sequence[str], baseline: str
) -> Mark:
    value = f"{run.value:.4g}" if run.value is not None else ""
    between = f" [{run.low:.3g}, {run.high:.3g}]" if run.low is not None and run.high is not None else ""
    when = f", {run.created_at:%Y-%m-%d %H:%M}" if run.created_at else ""
    title = f"{run.name}: {value}{between}{when}{', the baseline' if run.id == baseline else ''}"
    series = min(names.index(run.series), SERIES - 1)
    y = tall(run.value) or 0.0
    return Mark(round(x, 1), y, tall(run.low), tall(run.high), series, title, run.url, run.id == baseline)
