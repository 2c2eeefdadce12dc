import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Literal

from pydantic import Field

from osmosis.base.jsonable import JsonObject, iterate_leaves
from osmosis.records.base import Record, Strict
from osmosis.records.run.report import Report
from osmosis.records.run.rows import QuarantinedRow


class RowCount(Record):
    row_index: int
    passed: int = 0
    missed: int = 0
    unscored: int = 0
    mean: float | None = None

    @property
    def attempts(self) -> int:
        return self.passed + self.missed + self.unscored

    @property
    def state(self) -> Literal["passed", "failed", "flaky", "no score"]:
        """`flaky`: some attempts pass and some do not."""
        if self.passed and self.missed:
            return "flaky"
        return "passed" if self.passed else "failed" if self.missed else "no score"


class Trade(Record):
    """The score of a run and its price."""

    about: tuple[str, str]
    """Dataset and score."""
    mean: float
    cost_usd: float | None = None
    """US dollars per rollout; None: no known price."""
    latency_ms: float | None = None
    """Median per rollout."""

    @classmethod
    def from_report(cls, report: Report | None, dataset: str) -> "Trade | None":
        if report is None or report.primary is None or report.primary.mean is None:
            return None
        cost, latency = report.usage.cost_usd, report.latency_ms
        return cls(
            about=(dataset, report.primary.name),
            mean=report.primary.mean,
            cost_usd=None if cost is None else cost / max(1, report.completed),
            latency_ms=latency.median if latency else None,
        )

    @property
    def league(self) -> tuple[tuple[str, str], bool, bool]:
        """Runs of another one, such as those of unknown price, are not compared with it."""
        return self.about, self.cost_usd is None, self.latency_ms is None

    def beats(self, other: "Trade") -> bool:
        mine, others = ((-each.mean, each.cost_usd or 0.0, each.latency_ms or 0.0) for each in (self, other))
        return self.league == other.league and mine != others and all(a <= b for a, b in zip(mine, others, strict=True))


def find_unbeaten(trades: Mapping[str, Trade | None]) -> set[str]:
    """Find the runs on the Pareto front of score, cost and time, among those that have others to compare with."""
    complete = {name: trade for name, trade in trades.items() if trade is not None}
    sizes = Counter(trade.league for trade in complete.values())
    return {
        name
        for name, trade in complete.items()
        if sizes[trade.league] > 1 and not any(other.beats(trade) for other in complete.values())
    }


class PastRun(Record):
    id: str
    name: str
    url: str = ""
    place: str = ""
    """`here` or the platform's address, where a history has runs of both."""
    rollout: str = ""
    model: str = ""
    dataset: str = ""
    commit: str = ""
    created_at: datetime | None = None
    tags: list[str] = Field(default_factory=list)
    value: float | None = None
    low: float | None = None
    high: float | None = None
    row: RowCount | None = None
    """Missing (None): the run has no rollout of the row."""
    trade: Trade | None = None

    @property
    def series(self) -> str:
        return " · ".join(part for part in (self.rollout, self.model, self.dataset) if part)


class History(Record):
    """Runs, the oldest first."""

    metric: str = ""
    """`score:figure`, or the figure alone for one of a whole run."""
    metrics: list[str] = Field(default_factory=list)
    row: str = ""
    runs: list[PastRun] = Field(default_factory=list)
    unread: int = 0
    baseline: str = ""
    """Id of the run that the others are compared with."""
    quarantine: list[QuarantinedRow] = Field(default_factory=list)
    """Present and past quarantine entries; only of `row` if it is set."""


def find_start(runs: Sequence[PastRun]) -> PastRun | None:
    first: PastRun | None = None
    for run in reversed([run for run in runs if run.row is not None]):
        if first is not None and (first.row is None or run.row is None or run.row.state != first.row.state):
            break
        first = run
    return first


def merge_histories(histories: Iterable[History]) -> History:
    every = list(histories)
    first = every[0] if every else History()
    update = {
        "quarantine": [entry for history in every for entry in history.quarantine],
        "runs": sorted([run for history in every for run in history.runs], key=lambda run: str(run.created_at or "")),
        "metrics": list(dict.fromkeys(name for history in every for name in history.metrics)),
        "unread": sum(history.unread for history in every),
        "baseline": next((history.baseline for history in every if history.baseline), ""),
    }
    return first.model_copy(update=update)


@dataclass(frozen=True)
class SetRun:
    key: str  # How it differs from the others of its set; the same in every execution
    config: str
    model: str | None
    params: JsonObject
    settings: JsonObject  # Changes of the plan in its arm, by path: `program.folder`
    first: str  # Key of the run in the first arm; its own there


class EvalSet(Strict):
    """The keys of the file. Every config runs with every model, every set of parameters and in every arm."""

    configs: list[str] = Field(min_length=1, examples=[["multiply", "configs/eval/chat.toml"]])
    """Configs under `configs/eval/`, by path or name."""
    models: list[str] = Field(default_factory=list, examples=[["openai/gpt-5-mini", "qwen@http://127.0.0.1:8000/v1"]])
    """Models, as `--model` takes them, or `NAME@URL`. Default: each config's own."""
    params: list[JsonObject] = Field(default_factory=list, examples=[[{"temperature": 0.0}, {"temperature": 1.0}]])
    """Sampling parameters, over the config's. Default: the config's."""
    arms: dict[str, JsonObject] = Field(default_factory=dict, examples=[{"plain": {}, "skill": {"program.home": "s"}}])
    """Surroundings of the model, by name: keys as `--set` takes them, and `config`, to run another one. Each arm is
    compared with the first."""
    n: int | None = Field(default=None, ge=1)
    """Attempts per row. Default: the config's."""
    limit: int | None = Field(default=None, ge=1)
    """Run the first N rows of each dataset. Default: the config's."""
    max_cost: float | None = Field(default=None, gt=0)
    """US dollars that all runs of the set may spend together."""
    prices: dict[str, tuple[float, float]] = Field(default_factory=dict, examples=[{"my-model": [0.5, 1.5]}])
    """US dollars per million prompt and completion tokens, of models that no price table knows."""

    def runs(self) -> Iterator[SetRun]:
        keys: set[str] = set()
        models: list[str | None] = [*self.models] or [None]
        for config, model, params in itertools.product(self.configs, models, self.params or [{}]):
            parts = [PurePath(config).stem, *([model] if model else []), *(f"{k}={v}" for k, v in params.items())]
            first = None
            for arm, changes in (self.arms or {"": {}}).items():
                words = [
                    re.sub(r"[^A-Za-z0-9._=-]+", "-", part).strip("-") for part in [*parts, *([arm] if arm else [])]
                ]
                stem = "--".join(words).replace("=", "-")[:70]
                key = next(k for i in itertools.count(1) if (k := stem if i == 1 else f"{stem}-{i}") not in keys)
                keys.add(key)
                first, settings = first or key, dict(iterate_leaves(changes))
                yield SetRun(key, str(settings.pop("config", config)), model, params, settings, first)


class Look(Record):
    rollouts: int = Field(ge=1)
    limit: int | None = None
    """Rows of the dataset at this look; None: the rows that the runs have."""
    attempts: int = Field(ge=1)
    level: float
    """The two-sided p-value below which this look ends the test."""
    done: bool = False
    p_value: float | None = None
    """Missing (None): not computed, or too few rows to tell."""
    difference: float | None = None


class Decision(Record):
    a: str
    b: str
    score: str
    max_rollouts: int
    max_cost_usd: float | None = None
    rollouts_before: int
    cost_before: float | None = None
    looks: list[Look]
    verdict: str | None = None
    """`better` or `worse`, of B; None: not decided."""

    @property
    def next_look(self) -> int | None:
        if self.verdict is not None:
            return None
        return next((i for i, look in enumerate(self.looks) if not look.done), None)

    @property
    def last_made(self) -> Look | None:
        return next((look for look in reversed(self.looks) if look.done), None)
