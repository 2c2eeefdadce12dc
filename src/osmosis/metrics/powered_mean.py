"""The mean score that people would give, from their labels of some rows, drawn at random, and a judge's scores of all:
PPI++ with power tuning (Angelopoulos, Duchi and Zrnic 2023, arXiv 2311.01453). Its interval joins Gaffke's intervals of
its two parts, with mid-p (Zou and Donner 2008)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from osmosis.base.jsonable import JsonObject
from osmosis.base.stats import BoundedMean
from osmosis.metrics import formats
from osmosis.metrics.agreement import LEAST, labelled_lines
from osmosis.metrics.intervals import pair_of, scale_of
from osmosis.records.run.annotations import RIGHT, WRONG, Annotation
from osmosis.records.run.report import Bounds, Interval


@dataclass(frozen=True, slots=True)
class PoweredMean:
    rows: int
    labelled_rows: int
    judge: float  # The judge's mean over all rows, failures as 0
    people: float  # Mean of the labels alone
    weight: float  # Weight of the judge's scores, 0 to 1: 0 when they say nothing about people's
    mean: float
    interval: Interval | None  # Absent with few labelled rows, and for scores whose bounds are unknown

    def to_dict(self) -> JsonObject:
        return {**asdict(self), "interval": pair_of(self.interval)}

    @property
    def text(self) -> str:
        return formats.score(self.mean) + (f" ({formats.interval(self.interval)})" if self.interval else "")

    def line(self, name: str) -> str:
        labels = f"labels of {self.labelled_rows:,} of {self.rows:,} rows"
        return f"{name} by people: {self.text}, from {labels} and the judge's {formats.score(self.judge)}"


def powered_mean(
    labelled: Sequence[tuple[float, float]], unlabelled: Sequence[float], scale: Bounds | None
) -> PoweredMean:
    """Return the mean, given the judge's and the people's score of each labelled row, and the judge's of the others."""
    judges, people = [list(side) for side in zip(*labelled, strict=True)]
    every = [*judges, *unlabelled]
    spread, shared = (
        math.fsum((j - fmean(judges)) * value for j, value in zip(judges, side, strict=True))
        for side in (judges, people)
    )
    weight = 0.0
    if unlabelled and spread:  # of the labelled rows alone: with that of all rows, few labels would bias the mean
        weight = min(1.0, max(0.0, shared / spread / (1 + len(labelled) / len(unlabelled))))
    differences = [person - weight * judge for judge, person in labelled]
    correction, predicted = fmean(differences), fmean(unlabelled) if unlabelled else 0.0
    mean = joined = weight * predicted + correction
    interval = None
    if scale is not None:
        low, high = scale
        mean = min(high, max(low, mean))
        if len(labelled) >= LEAST:
            reach = low - weight * high, high - weight * low
            least, most = BoundedMean(((value, 1) for value in differences), *reach, mid=True).interval()
            down, up = BoundedMean(((value, 1) for value in unlabelled), *scale, mid=True).interval()
            least = joined - math.hypot(correction - least, weight * (predicted - down))
            most = joined + math.hypot(most - correction, weight * (up - predicted))
            interval = Interval(low=max(low, least), high=min(high, most))
    return PoweredMean(len(every), len(labelled), fmean(every), fmean(people), weight, mean, interval)


def powered_means(
    annotations: Iterable[Annotation], rollouts: Iterable[JsonObject], bounds: Mapping[str, Bounds]
) -> dict[str, PoweredMean]:
    """Return the mean of each score that has labels; `bounds` are those that scores declare."""
    lines = [(line, own) for line, own in labelled_lines(annotations, rollouts) if line.get("status") != "skipped"]
    means = {}
    for name in dict.fromkeys(name for line, _ in lines for name in line.get("scores") or ()):
        scored = [(line["row_index"], _value(line, name), own) for line, own in lines]
        numbers = [note.score for _, _, own in scored for note in own if note.score is not None]
        seen = [*(value for _, value, _ in scored), *numbers]
        scale = scale_of((min(seen), max(seen)), bounds.get(name))
        of_label = dict(zip((WRONG, RIGHT), bounds.get(name) or (0.0, 1.0), strict=True))
        judged: dict[int, list[float]] = {}
        labels: dict[int, list[tuple[float, float]]] = {}
        for row, value, own in scored:
            judged.setdefault(row, []).append(value)
            people = [of_label.get(note.label) if note.score is None else note.score for note in own]
            labels.setdefault(row, []).extend((value, person) for person in people if person is not None)
        rows = [(fmean(pair[0] for pair in own), fmean(pair[1] for pair in own)) for own in labels.values() if own]
        if rows:
            others = [fmean(values) for row, values in judged.items() if not labels[row]]
            means[name] = powered_mean(rows, others, scale)
    return means


def _value(line: JsonObject, name: str) -> float:
    value = ((line.get("scores") or {}).get(name) or {}).get("value")
    return float(value or 0.0)
