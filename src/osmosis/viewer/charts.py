import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from osmosis.metrics.formats import short
from osmosis.metrics.training import CurveInfo, curve_info, in_order, list_changed_keys, training_figures
from osmosis.metrics.warnings import Curve
from osmosis.records.run.history import History
from osmosis.records.run.job import MetricPoint
from osmosis.viewer.page import Page, QueryParams
from osmosis.viewer.run_source import RunSource

BINS = 20
BINS_LEFT, BINS_TOP, BINS_WIDTH, BINS_HEIGHT = 44.0, 18.0, 580.0, 120.0
HISTORY_WIDTH, HISTORY_HEIGHT = 640.0, 220.0
HISTORY_LEFT, HISTORY_RIGHT, HISTORY_TOP, HISTORY_BOTTOM = 56.0, 12.0, 12.0, 26.0
MAX_SERIES = 6
CURVE_LEFT, CURVE_WIDTH, CURVE_TOP, CURVE_HEIGHT = 84.0, 506.0, 10.0, 140.0
MAX_COLUMNS = 120  # Steps that can be pointed at; of a longer run only some, the last one among them
MAX_OVERLAID = 6  # Runs in one chart: each has a colour
SMOOTHING = {"none": 0.0, "some": 0.6, "more": 0.9}  # Weight of what was before, in a moving average


@dataclass(frozen=True, slots=True)
class Histogram:
    bars: Sequence[Mapping[str, object]]
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
        area = {"x": x, "y": y, "width": round(width - 2, 1), "height": round(height, 1)}
        bars.append({**area, "title": title, "passed": passed, "count": count})
    ticks = [(BINS_LEFT + BINS_WIDTH * part, f"{low + (high - low) * part:.3g}") for part in (0, 0.25, 0.5, 0.75, 1)]
    inside = low < threshold <= high
    threshold_x = round(BINS_LEFT + BINS_WIDTH * (threshold - low) / (high - low), 1) if inside else None
    return Histogram(bars, ticks, highest, len(values), threshold_x)


@dataclass(frozen=True, slots=True)
class HistoryChart:
    marks: Sequence[Mapping[str, object]]
    lines: Sequence[tuple[int, str]]
    series: Sequence[str]
    baseline_y: float | None
    ticks: Sequence[tuple[float, str]]


def history_chart(history: History) -> HistoryChart | None:
    runs = [(run, run.value) for run in history.runs if run.value is not None]
    if len(runs) < 2:
        return None
    ends = [end for run, value in runs for end in (value, run.low, run.high) if end is not None]
    low, high = min(ends), max(ends)
    scale = _list_ticks(low, high) if low < high else [low - 0.5, low, low + 0.5]
    low, high = scale[0], scale[-1]
    names = list(dict.fromkeys(run.series for run, _ in runs))
    inner_height = HISTORY_HEIGHT - HISTORY_TOP - HISTORY_BOTTOM
    step = (HISTORY_WIDTH - HISTORY_LEFT - HISTORY_RIGHT) / (len(runs) - 1)

    def y(value: float) -> float:
        return round(HISTORY_TOP + inner_height * (high - value) / (high - low), 1)

    marks = []
    for number, (run, value) in enumerate(runs):
        interval = f" [{run.low:.3g}, {run.high:.3g}]" if run.low is not None and run.high is not None else ""
        when = f", {run.created_at:%Y-%m-%d %H:%M}" if run.created_at else ""
        is_baseline = run.id == history.baseline
        marks.append(
            {
                "x": round(HISTORY_LEFT + number * step, 1),
                "y": y(value),
                "low": None if run.low is None else y(run.low),
                "high": None if run.high is None else y(run.high),
                "series": min(names.index(run.series), MAX_SERIES - 1),
                "name": run.name,
                "title": f"{run.name}: {value:.4g}{interval}{when}{', the baseline' if is_baseline else ''}",
                "url": run.url,
                "baseline": is_baseline,
            }
        )
    lines = [
        (number, " ".join(f"{mark['x']},{mark['y']}" for mark in marks if mark["series"] == number))
        for number in range(min(len(names), MAX_SERIES))
    ]
    baseline_y = next((y(value) for run, value in runs if run.id == history.baseline), None)
    ticks = [(y(value), short(value, 3)) for value in scale]
    return HistoryChart(marks, lines, names[:MAX_SERIES], baseline_y, ticks)


def _list_ticks(low: float, high: float) -> list[float]:
    """Return round values for an axis, from one at or below `low` to one at or above `high`."""
    least = (high - low) / 3
    unit = 10.0 ** math.floor(math.log10(least))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= least)
    return [number * step for number in range(math.floor(low / step), math.ceil(high / step) + 1)]


@dataclass(frozen=True, slots=True)
class ChartedRun:
    name: str
    url: str
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    checkpoints: Sequence[tuple[int, str]] = ()

    @classmethod
    def from_source(cls, source: RunSource, points: Iterable[MetricPoint]) -> "ChartedRun":
        curves = defaultdict(list)
        for point in points:
            curves[point.key].append((point.step, point.value))
        state = source.state()
        return cls(state.name, state.url, dict(curves), [(line.step, line.name) for line in source.checkpoints()])


@dataclass(frozen=True, slots=True)
class CurveChart:
    info: CurveInfo
    lines: Sequence[tuple[int, str, str]]
    """Number of the run, its smoothed line, and its points behind that; these are empty without smoothing."""
    columns: Sequence[Mapping[str, object]]
    marks: Sequence[tuple[float, str]]
    ticks: Sequence[tuple[float, str]]
    first: str
    latest: str
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class Charts:
    groups: Sequence[tuple[str, Sequence[CurveChart]]] = ()
    constant: Sequence[tuple[str, str]] = ()  # Titles and values of curves that never change
    smoothing: str = "none"
    choices: Sequence[str] = tuple(SMOOTHING)

    def __bool__(self) -> bool:
        return bool(self.groups or self.constant)


def build_charts(runs: Sequence[ChartedRun], smoothing: str = "none") -> Charts:
    groups: dict[str, list[CurveChart]] = {}
    constant = []
    for key in in_order({key for run in runs for key in run.curves}):
        info, values = curve_info(key), {value for run in runs for _, value in run.curves.get(key, ())}
        if len(values) == 1:
            constant.append((info.title, short(values.pop())))
        else:
            groups.setdefault(info.group, []).append(_chart(key, runs, SMOOTHING[smoothing]))
    return Charts(list(groups.items()), constant, smoothing)


def _chart(key: str, runs: Sequence[ChartedRun], weight: float) -> CurveChart:
    curves = [run.curves.get(key, []) for run in runs]
    values = [value for curve in curves for _, value in curve]
    steps = sorted({step for curve in curves for step, _ in curve})
    ticks, first_step, last_step = _list_ticks(min(values), max(values)), steps[0], steps[-1]
    low, high = ticks[0], ticks[-1]

    def x(step: int) -> float:
        return round(CURVE_LEFT + CURVE_WIDTH * (step - first_step) / ((last_step - first_step) or 1), 1)

    def y(value: float) -> float:
        return round(CURVE_TOP + CURVE_HEIGHT * (high - value) / (high - low), 1)

    def line(curve: Curve) -> str:
        return " ".join(f"{x(step)},{y(value)}" for step, value in curve)

    pointed = steps[:: -(-len(steps) // MAX_COLUMNS) * -1][::-1]
    edges = [x(steps[0]), *((x(a) + x(b)) / 2 for a, b in pairwise(pointed)), x(last_step)]
    columns = []
    for step, (left, right) in zip(pointed, pairwise(edges), strict=True):
        present = [(i, value) for i, curve in enumerate(curves) for at, value in curve if at == step]
        texts = [f"{runs[i].name} {short(value)}" if len(runs) > 1 else short(value) for i, value in present]
        title, url = f"step {step}: {', '.join(texts)}", f"{runs[present[0][0]].url}/rollouts?step={step}"
        dots = [(i, y(value)) for i, value in present]  # numbers of runs, and heights
        area = {"x": x(step), "left": round(left, 1), "width": round(right - left, 1)}
        columns.append({**area, "title": title, "url": url, "dots": dots})
    return CurveChart(
        info=curve_info(key),
        lines=[(i, line(_smooth(curve, weight)), line(curve) if weight else "") for i, curve in enumerate(curves)],
        columns=columns,
        marks=[(x(s), name) for run in runs for s, name in run.checkpoints if first_step <= s <= last_step],
        ticks=[(y(value), short(value, 3)) for value in ticks],
        first=short(curves[0][0][1]) if curves[0] else "",
        latest=short(curves[0][-1][1]) if curves[0] else "",
        first_step=first_step,
        last_step=last_step,
    )


def _smooth(curve: Curve, weight: float) -> Curve:
    smoothed, mean, total = [], 0.0, 0.0
    for step, value in curve:
        mean, total = weight * mean + (1 - weight) * value, weight * total + (1 - weight)
        smoothed.append((step, mean / total))
    return smoothed


def training_compare_page(sources: Sequence[RunSource], params: QueryParams) -> Page:
    sources, left_out = sources[:MAX_OVERLAID], sources[MAX_OVERLAID:]  # no more of them have a colour
    runs = [ChartedRun.from_source(source, source.points()) for source in sources]
    states = [source.state() for source in sources]
    figures = [
        {figure.label: figure.text for figure in training_figures(run.curves, duration_ms=state.duration_ms)}
        for run, state in zip(runs, states, strict=True)
    ]
    compared = {
        "runs": states,
        "figures": [
            (label, [texts.get(label, "–") for texts in figures])
            for label in dict.fromkeys(label for texts in figures for label in texts)
        ],
        "changed": list_changed_keys([source.settings().config for source in sources]),
        "charts": build_charts(runs, params.choice("smooth", SMOOTHING, "none")),
        "left_out": len(left_out),
    }
    return Page("compare_training.html", {"found": compared, "params": params}, ("found",))
