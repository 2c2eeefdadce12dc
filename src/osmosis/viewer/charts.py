from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from osmosis.records.run.history import History

BINS = 20
BINS_LEFT, BINS_TOP, BINS_WIDTH, BINS_HEIGHT = 44.0, 18.0, 580.0, 120.0
HISTORY_WIDTH, HISTORY_HEIGHT = 640.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 12.0, 12.0, 26.0
MAX_SERIES = 6


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    title: str
    passed: bool
    count: int


@dataclass(frozen=True, slots=True)
class Histogram:
    bars: Sequence[Bar]
    ticks: Sequence[tuple[float, str]]
    highest: int
    total: int
    threshold_x: float | None


def histogram(values: Sequence[float], threshold: float) -> Histogram | None:
    if len(values) < 2 or values[0] == values[-1]:
        return None
    low, high = values[0], values[-1]
    step, width = (high - low) / BINS, BINS_WIDTH / BINS
    ends = [bisect_left(values, number, key=lambda value: int((value - low) / step)) for number in range(1, BINS)]
    counts = [end - start for start, end in pairwise([0, *ends, len(values)])]
    highest = max(counts)
    bars = []
    for number, count in enumerate(counts):
        height = max(2.0, BINS_HEIGHT * count / highest) if count else 0.0
        start, end = low + number * step, low + (number + 1) * step
        title = f"{count} rollouts from {start:.2f} to {end:.2f}"
        passed = start >= threshold or (number == BINS - 1 and high >= threshold)
        x, y = round(BINS_LEFT + number * width + 1, 1), round(BINS_TOP + BINS_HEIGHT - height, 1)
        bars.append(Bar(x, y, round(width - 2, 1), round(height, 1), title, passed, count))
    ticks = [
        (BINS_LEFT + BINS_WIDTH * part, f"{low + (high - low) * part:.3g}") for part in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    inside = low < threshold <= high
    threshold_x = round(BINS_LEFT + BINS_WIDTH * (threshold - low) / (high - low), 1) if inside else None
    return Histogram(bars, ticks, highest, len(values), threshold_x)


@dataclass(frozen=True, slots=True)
class HistoryMark:
    x: float
    y: float
    low: float | None
    high: float | None
    series: int
    title: str
    url: str
    baseline: bool


@dataclass(frozen=True, slots=True)
class HistoryChart:
    marks: Sequence[HistoryMark]
    lines: Sequence[tuple[int, str]]
    series: Sequence[str]
    baseline_y: float | None
    bottom: str
    top: str


def history_chart(history: History) -> HistoryChart | None:
    runs = [(run, run.value) for run in history.runs if run.value is not None]
    if len(runs) < 2:
        return None
    ends = [end for run, value in runs for end in (value, run.low, run.high) if end is not None]
    low, high = min(ends), max(ends)
    if low == high:
        low, high = low - 0.5, high + 0.5
    names = list(dict.fromkeys(run.series for run, _ in runs))
    step = (HISTORY_WIDTH - LEFT - RIGHT) / (len(runs) - 1)

    def y(value: float) -> float:
        return round(TOP + (HISTORY_HEIGHT - TOP - BOTTOM) * (high - value) / (high - low), 1)

    marks = []
    for number, (run, value) in enumerate(runs):
        interval = f" [{run.low:.3g}, {run.high:.3g}]" if run.low is not None and run.high is not None else ""
        when = f", {run.created_at:%Y-%m-%d %H:%M}" if run.created_at else ""
        is_baseline = run.id == history.baseline
        marks.append(
            HistoryMark(
                x=round(LEFT + number * step, 1),
                y=y(value),
                low=None if run.low is None else y(run.low),
                high=None if run.high is None else y(run.high),
                series=min(names.index(run.series), MAX_SERIES - 1),
                title=f"{run.name}: {value:.4g}{interval}{when}{', the baseline' if is_baseline else ''}",
                url=run.url,
                baseline=is_baseline,
            )
        )
    lines = [
        (number, " ".join(f"{mark.x},{mark.y}" for mark in marks if mark.series == number))
        for number in range(min(len(names), MAX_SERIES))
    ]
    baseline_y = next((mark.y for mark in marks if mark.baseline), None)
    return HistoryChart(marks, lines, names[:MAX_SERIES], baseline_y, f"{low:.3g}", f"{high:.3g}")
