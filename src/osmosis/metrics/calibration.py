"""How far each score of a run agrees with what people said of its rollouts, by the hash of what scored.

A score passes at the run's pass threshold or above. A person's label passes when it says right, or has a score that
passes. A label counts only for the rollout that was seen, not for a later one of the same row and attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from osmosis.base.json_types import JsonObject
from osmosis.records.annotation import Annotation

from .agreement import Agreement, agreement

Verdicts = dict[tuple[str, str], list[tuple[bool, bool]]]
"""By score and hash: the judge's and a person's."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One score beside people."""

    score: str
    score_hash: str
    """Of the rubric or function that scored; empty where none was kept."""
    found: Agreement


def verdicts(said: Iterable[Annotation], rollouts: Iterable[JsonObject], threshold: float) -> Verdicts:
    """Of stored rollouts; those that nobody said anything about are passed over."""
    wanted: dict[tuple[int, int, int], list[Annotation]] = {}
    for one in said:
        wanted.setdefault(one.place, []).append(one)
    found: Verdicts = {}
    for line in rollouts:
        here = wanted.get((line.get("step", 0), line["row_index"], line["attempt"]), ())
        people = [one.passes(threshold) for one in here if one.rollout_id in (None, line["rollout_id"])]
        hashed = str((line.get("hashes") or {}).get("score") or "")
        for name, value in _values(line.get("scores")):
            pairs = [(value >= threshold, one) for one in people if one is not None]
            if pairs:
                found.setdefault((name, hashed), []).extend(pairs)
    return found


def calibrated(found: Verdicts) -> Iterator[Calibrated]:
    for (name, hashed), pairs in found.items():
        if (compared := agreement(pairs)) is not None:
            yield Calibrated(name, hashed, compared)


def _values(scores: object) -> Iterator[tuple[str, float]]:
    for name, one in scores.items() if isinstance(scores, Mapping) else ():
        if one.get("value") is not None:
            yield name, float(one["value"])
