"""Read the records of a run from its folder while it is written: the run waits for no exporter."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Literal, NamedTuple, Protocol

import orjson

from osmosis.base.jsonable import JsonObject, iterate_leaves
from osmosis.bridges.table import flat_rollouts
from osmosis.engine.journal import Journal
from osmosis.metrics.figures import figures
from osmosis.metrics.summary import summarize
from osmosis.records.base import Record
from osmosis.records.run.rollout import Rollout

BATCH, MOST_ROWS, UPDATED = 200, 10_000, "perf/update_s"


class ExportedRun(Record):
    """A run as exporters see it: `folder` has a journal or `metrics.jsonl`; `id` stays the same."""

    kind: Literal["eval", "training"] = "eval"
    folder: str
    id: str
    name: str
    params: dict[str, str | int | float]
    address: str = ""
    project: str = ""
    content: bool = False


class Point(NamedTuple):
    """Values of a step; of an evaluation a step is a rollout, in the order in which they ended."""

    step: int
    at: float  # Unix time, the same whenever it is sent
    values: Mapping[str, float]


class Records(NamedTuple):
    points: list[Point]
    rollouts: list[Rollout]


Rows = Sequence[Mapping[str, object]]


class Exporter(Protocol):
    """Sends a run to a tool. What is sent again changes nothing there. Any exception: it was not sent."""

    def __init__(self, run: ExportedRun) -> None: ...
    def send(self, records: Records) -> None: ...
    def finish(self, figures: Mapping[str, float], rows: Rows) -> None: ...


class EvaluationStream:
    def __init__(self, run: ExportedRun) -> None:
        self._run, self._journal, self._count = run, Journal(Path(run.folder)), 0
        self._file = self._journal.source()
        self._sums: dict[str, tuple[float, int]] = {}

    def read(self, *, is_last: bool) -> Records:
        rollouts: list[Rollout] = []
        while not rollouts and (lines := read_lines(self._file, BATCH)):
            for line in lines:
                with suppress(ValueError):  # a damaged line, which the run reports itself
                    rollouts.append(Rollout.model_validate_json(line))
        return Records([self._point(rollout) for rollout in rollouts], rollouts)

    def _point(self, rollout: Rollout) -> Point:
        scores = {name: score.value for name, score in rollout.scores.items() if score.value is not None}
        for name, value in {**scores, "failed": float(rollout.failure is not None)}.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, count + 1)
        seconds, usage = rollout.duration_ms / 1000, rollout.usage
        values = {**scores, "tokens": usage.total_tokens, "seconds": seconds, "cost_usd": usage.cost_usd}
        for name, score in rollout.scores.items():
            values |= {f"{name}.{part}": value for part, value in (score.parts or {}).items()}
        numbers = {f"rollout/{name}": float(value) for name, value in values.items() if value is not None}
        means = {f"mean/{name}": total / count for name, (total, count) in self._sums.items()}
        self._count += 1
        return Point(self._count, rollout.started_at.timestamp() + seconds, numbers | means)

    def summarize(self) -> tuple[dict[str, float], Rows]:
        report = self._journal.report() or summarize(self._journal.rollouts(), self._journal.plan())
        named = {f"{figure.group or 'run'}/{figure.name}": figure.value for figure in figures(report)}
        hidden = () if self._run.content else ("prompt", "expected", "answer", "row.")
        rows = islice(flat_rollouts(self._journal), MOST_ROWS)
        visible = [{name: value for name, value in row.items() if not name.startswith(hidden)} for row in rows]
        return {name: float(value) for name, value in named.items() if isinstance(value, (int, float))}, visible


class TrainingStream:
    """Yields each step once, when the next one is trained: only then all of it is in the file."""

    def __init__(self, run: ExportedRun) -> None:
        path = Path(run.folder) / "metrics.jsonl"
        path.touch()
        self._file, self._trained, self._sent = path.open("rb"), -1, -1
        self._steps: dict[int, Point] = {}

    def read(self, *, is_last: bool) -> Records:
        for line in read_lines(self._file, sys.maxsize):
            value = orjson.loads(line)
            step, key = value["step"], value["key"]
            before = self._steps.get(step) or Point(step, value.get("at", step), {})
            self._steps[step] = before._replace(values={**before.values, key: value["value"]})
            self._trained = max(self._trained, step if key == UPDATED else -1)
        end = self._trained if is_last else self._trained - 1
        ready = [self._steps.pop(step) for step in sorted(self._steps) if step <= end]
        new = [point for point in ready if point.step > self._sent]  # not a step that was done again after a crash
        self._sent = max(self._sent, end)
        return Records(new, [])

    def summarize(self) -> tuple[dict[str, float], Rows]:
        return {}, []


def read_lines(file: IO[bytes], most: int) -> list[bytes]:
    lines: list[bytes] = []
    while len(lines) < most:
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)
            break
        lines.append(line)
    return lines


def stored_run(journal: Journal, **identity: str) -> ExportedRun:
    plan, created = journal.plan(), journal.run()["created_at"]
    options = plan.model_dump(mode="json", exclude_defaults=True, exclude={"name": True, "provenance": {"folder"}})
    run = {"id": f"{plan.name}-{created}", "name": plan.name, **identity}
    return ExportedRun(**run, folder=str(journal.folder.absolute()), params=dict(flatten_options(options)))


def flatten_options(options: JsonObject) -> Iterator[tuple[str, str | int | float]]:
    """Yield the leaves of nested tables as `table.key`; a list is one text."""
    for path, value in iterate_leaves(options):
        if value is not None:
            yield path, value if isinstance(value, (str, int, float)) else orjson.dumps(value).decode()
