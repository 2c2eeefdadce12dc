"""The metrics of a run as an append-only file, which a resumed job reads. A step that is done again reports its figures
again: the last value counts, and a curve has one point a step."""

import math
import time
from collections.abc import Mapping
from pathlib import Path

import orjson

from osmosis.metrics.warnings import training_alarms
from osmosis.records.run.job import MetricPoint


class MetricsFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, dict[int, float]] = {}
        self._told: set[str] = set()
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                point = orjson.loads(line)
                self._values.setdefault(point["key"], {})[point["step"]] = point["value"]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue  # the line that was being written when the job was killed
        self._told.update(_kind(text) for text in self.alarms())

    def add(self, step: int, values: Mapping[str, float]) -> list[MetricPoint]:
        points = [MetricPoint(key=k, step=step, value=v) for k, v in values.items() if math.isfinite(v)]
        for point in points:
            self._values.setdefault(point.key, {})[step] = point.value
        at = time.time()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            lines = ({"step": step, "key": p.key, "value": p.value, "at": round(at, 3)} for p in points)
            file.write(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        return points

    def find(self, key: str, step: int) -> float | None:
        return self._values.get(key, {}).get(step)

    def total(self, key: str) -> float:
        return sum(self._values.get(key, {}).values())

    def points(self) -> list[MetricPoint]:
        return [
            MetricPoint(key=key, step=step, value=value)
            for key, values in self._values.items()
            for step, value in sorted(values.items())
        ]

    def alarms(self) -> list[str]:
        return training_alarms({key: sorted(values.items()) for key, values in self._values.items()})

    def new_alarms(self) -> list[str]:
        now = {_kind(text): text for text in self.alarms()}
        new = [text for kind, text in now.items() if kind not in self._told]
        self._told = set(now)
        return new


def _kind(text: str) -> str:
    return "".join(char for char in text if not char.isdigit() and char not in ".-")
