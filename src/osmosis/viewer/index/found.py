"""What an index answers with: a rollout as a table shows it, and as a comparison counts it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from osmosis.records.rollout import RolloutStatus, Usage

from .query import OUTCOMES

_NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class RolloutLine:
    """One rollout in a table."""

    row_index: int
    attempt: int
    step: int
    outcome: str
    reward: float | None
    tokens: int | None = None
    cost: float | None = None
    duration_ms: float | None = None
    turns: int | None = None
    tool_calls: int | None = None
    started_at: float | None = None
    """Seconds since 1970."""
    category: str | None = None
    model: str | None = None
    prompt: str = ""
    answer: str = ""
    failure: str = ""
    finish_reason: str | None = None
    answer_issue: str | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)
    row: Mapping[str, object] = field(default_factory=dict)
    """The row of the dataset; empty when that is gone, or was edited since."""
    extra: Mapping[str, object] = field(default_factory=dict)
    labels: Sequence[str] = ()
    """Given by people."""
    fits: bool = True
    """Whether the query wanted it, where all attempts at a row are shown."""

    @property
    def expected(self) -> str:
        return expected_of(self.row)


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A score as far as a comparison needs it."""

    value: float | None
    failure: None = None
    usage: None = None


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """A rollout as far as a comparison needs it (`metrics.counted.Counted`); no figures come of it."""

    row_index: int
    attempt: int
    step: int
    row_key: str | None
    status: RolloutStatus
    scores: Mapping[str, StoredValue]
    hashes: Mapping[str, str]
    failure: None = None
    duration_ms: float = 0.0
    finish_reason: None = None
    answer_issue: None = None

    @property
    def usage(self) -> Usage:
        return _NO_USAGE

    @property
    def groups(self) -> Mapping[str, str]:
        return {}


def expected_of(row: Mapping[str, object]) -> str:
    """What the dataset says the answer is."""
    found = row.get("ground_truth", row.get("label"))
    return "" if found is None else found if isinstance(found, str) else orjson.dumps(found, default=str).decode()


def rollout_line(
    row: sqlite3.Row,
    scores: Mapping[str, float | None],
    named: Mapping[str, Mapping[int, str]],
    labels: Sequence[str],
    fits: bool,
) -> RolloutLine:
    return RolloutLine(
        row_index=row["row_index"], attempt=row["attempt"], step=row["step"], outcome=OUTCOMES[row["outcome"]],
        reward=row["reward"], tokens=row["tokens"], cost=row["cost"], duration_ms=row["duration"], turns=row["turns"],
        tool_calls=row["tools"], started_at=row["started"], category=named["category"].get(row["category"]),
        model=named["model"].get(row["model"]),
        prompt=row["prompt"], answer=row["answer"], failure=row["failure"], finish_reason=row["finish"],
        answer_issue=row["issue"], scores=scores, row=orjson.loads(row["data"]) if row["data"] else {},
        extra=orjson.loads(row["extra"]) if row["extra"] else {}, labels=labels, fits=fits,
    )  # fmt: skip


def extra_names(extra: Mapping[str, object]) -> Iterator[str]:
    for kind, found in extra.items():
        for name, one in found.items() if isinstance(found, dict) else ():
            if isinstance(one, dict):
                yield from (f"{kind}:{name}.{key}" for key in one)
            else:
                yield f"{kind}:{name}"
