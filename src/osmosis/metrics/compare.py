"""Two runs side by side, paired by row and attempt: the difference, its interval, one verdict, and every flip.

Pairs that one side has no score for are counted apart; a second difference has failures as zeros, so that a run that
crashes where it is hard does not look better than one that tries. Then the verdict looks at both, and each has the
wider interval that two looks need. Interval, p-value and verdict are one test (`significance.py`): they agree always.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from osmosis.base.light_dataclass import dataclass
from osmosis.errors import ValidationError
from osmosis.records.keys import DerivedKeys, Key, place_key
from osmosis.records.report import Bounds, Interval
from osmosis.records.rollout import RolloutStatus

from .counted import Counted
from .significance import LEVEL, Difference, Verdict, difference_of, verdict_of

Attempt = tuple[str, int]
"""Row key of run A, attempt."""
Values = Mapping[Attempt, float | None]


@dataclass(slots=True)
class Flip:
    """One pair that passed on one side only."""

    row_index: int
    """Where the row stands in run B's dataset."""
    attempt: int
    before: float
    after: float
    key_a: Key = (0, "", 0)
    key_b: Key = (0, "", 0)
    row_index_a: int = 0
    """Where the row stands in run A's dataset."""

    @property
    def gained(self) -> bool:
        return self.after > self.before

    def to_dict(self) -> dict[str, Any]:
        return {
            "row_index": self.row_index,
            "attempt": self.attempt,
            "before": self.before,
            "after": self.after,
            "kind": "gained" if self.gained else "lost",
        }


@dataclass(slots=True)
class SetAside:
    """A row that does not decide: what it got in both runs, None without a score."""

    row_index: int
    """Where it stands in run B's dataset."""
    key: str
    mean_a: float | None
    mean_b: float | None

    def to_dict(self) -> dict[str, Any]:
        return {"row_index": self.row_index, "key": self.key, "mean_a": self.mean_a, "mean_b": self.mean_b}


@dataclass(slots=True)
class Comparison:
    """Run B against run A, for one score."""

    score: str
    pairs: int
    rows: int
    only_a: int
    """Scored on A's side alone."""
    only_b: int
    mean_a: float
    """Of the pairs, over rows."""
    mean_b: float
    difference: float
    """B minus A."""
    interval: Interval | None
    pass_rate_a: float
    pass_rate_b: float
    gained: int
    lost: int
    p_value: float | None
    """Two-sided, of the verdict: below 1 - level exactly when it is `better` or `worse`. None with too few rows."""
    verdict: Verdict
    p_value_flips: float = 1.0
    """Two-sided, of the difference of the pass rates by row."""
    failed_a: int = 0
    """Pairs that both ran and only B has a score for."""
    failed_b: int = 0
    difference_failures_0: float = 0.0
    """B minus A over all pairs that both ran, failures as 0."""
    interval_failures_0: Interval | None = None
    rows_differ: int = 0
    """Rows that were edited between the runs: their pairs answer different questions."""
    flips: list[Flip] = field(default_factory=list)
    by_row: list[tuple[int, float, float]] = field(default_factory=list)
    """Of each row that both have a score for: where it stands in B's dataset, its mean in A and in B."""
    aside: list[SetAside] = field(default_factory=list)
    """Rows that both have and that were to be set aside: no figure, flip or verdict counts them."""
    keys: set[str] = field(default_factory=set)
    """Of the rows that both have, those set aside among them, as either run calls them."""

    def regressed(self, margin: float = 0.0) -> bool:
        """With a margin of 0: whether the verdict is `worse`. Above: whether B may be worse than A by more than that,
        over what both have a score for or with failures as 0; too few rows show nothing."""
        if margin <= 0:
            return self.verdict == "worse"
        return any(interval is None or interval.low < -margin for interval in self._intervals)

    def conclusion(self, margin: float = 0.0) -> str:
        """The verdict in a sentence that also says what `regressed` found with this margin."""
        if margin > 0 and self.regressed(margin):
            return f"{self.verdict}; B is not shown to be at most {margin:g} worse than A"
        if self.verdict == "worse" and (self.interval is None or self.interval.high >= 0):
            return "worse, because rollouts failed in B that have a score in A (failures count as 0)"
        return self.verdict

    @property
    def _intervals(self) -> list[Interval | None]:
        return [self.interval, *([self.interval_failures_0] if self.failed_a or self.failed_b else [])]

    def to_dict(self) -> dict[str, Any]:
        return {
            "score": self.score,
            "pairs": self.pairs,
            "rows": self.rows,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "mean_a": self.mean_a,
            "mean_b": self.mean_b,
            "difference": self.difference,
            "difference_ci": _pair(self.interval),
            "failed_a": self.failed_a,
            "failed_b": self.failed_b,
            "difference_failures_0": self.difference_failures_0,
            "difference_failures_0_ci": _pair(self.interval_failures_0),
            "pass_rate_a": self.pass_rate_a,
            "pass_rate_b": self.pass_rate_b,
            "rows_differ": self.rows_differ,
            "gained": self.gained,
            "lost": self.lost,
            "p_value": self.p_value,
            "p_value_flips": self.p_value_flips,
            "verdict": self.verdict,
            "flips": [flip.to_dict() for flip in self.flips],
            "quarantined": [one.to_dict() for one in self.aside],
        }


def compare(
    a: Iterable[Counted],
    b: Iterable[Counted],
    *,
    threshold: float,
    score: str | None = None,
    bounds: Mapping[str, Bounds] | None = None,
    level: float = LEVEL,
    aside: Collection[str] = (),
) -> Comparison:
    """The rollouts of run `b` against those of run `a`; each is read once.

    `score` defaults to the first that both have. `bounds`: what scores declare, by name. `level`: how sure the verdict
    is, and how wide its interval. `aside`: keys of rows that do not count. Raises ValidationError when nothing can be
    paired.
    """
    before, after = _Side(a), _Side(b)
    name = score or _common_score(list(before.names), list(after.names))
    row_of = _same_rows(before, after)
    values_a: Values = before.values(name)
    values_b: Values = {(row_of.get(row, row), attempt): value for (row, attempt), value in after.values(name).items()}
    found_aside = _set_aside(row_of, aside, after, values_a, values_b)
    values_a, values_b = (_without(values, {*aside, *found_aside}) for values in (values_a, values_b))
    ran = sorted((key for key in values_a if key in values_b), key=lambda key: (before.places[key[0]], key[1]))
    shared = [key for key in ran if values_a[key] is not None and values_b[key] is not None]
    b_of = {row_a: row_b for row_b, row_a in row_of.items()}
    _check_pairs(shared, row_of, name, before, found_aside)
    both = [key for key in ran if (values_a[key], values_b[key]) != (None, None)]
    scored, zeros = _Paired(shared, values_a, values_b), _Paired(both, values_a, values_b)
    flips = _flips(scored, before, after, b_of, threshold)
    gained = sum(1 for flip in flips if flip.gained)
    pairs = list(scored.pairs.values())
    declared = (bounds or {}).get(name)
    looks = 1 if len(both) == len(shared) else 2
    differences = [one.difference(declared, looks, level) for one in (scored, zeros)[:looks]]
    verdict, p_value = verdict_of(differences, level)
    return Comparison(
        score=name,
        pairs=len(pairs),
        rows=len(scored.rows),
        only_a=_scored(values_a) - len(pairs),
        only_b=_scored(values_b) - len(pairs),
        mean_a=scored.mean_a,
        mean_b=scored.mean_b,
        difference=scored.mean_b - scored.mean_a,
        interval=differences[0].interval,
        pass_rate_a=sum(1 for value, _ in pairs if value >= threshold) / len(pairs),
        pass_rate_b=sum(1 for _, value in pairs if value >= threshold) / len(pairs),
        gained=gained,
        lost=len(flips) - gained,
        p_value=p_value,
        verdict=verdict,
        p_value_flips=scored.passes(threshold).difference((0.0, 1.0)).tails.p_value,
        failed_a=sum(1 for key in both if values_a[key] is None),
        failed_b=sum(1 for key in both if values_b[key] is None),
        difference_failures_0=zeros.mean_b - zeros.mean_a,
        interval_failures_0=differences[-1].interval,
        rows_differ=len(_edited(before, after, b_of) & scored.rows.keys()),
        flips=flips,
        by_row=[(after.places[b_of[row]], *means) for row, means in scored.rows.items()],
        aside=sorted(found_aside.values(), key=lambda one: one.row_index),
        keys={*row_of, *row_of.values()},
    )


def _set_aside(
    row_of: Mapping[str, str], aside: Collection[str], after: _Side, a: Values, b: Values
) -> dict[str, SetAside]:
    """The rows of both runs that do not count, by their keys in A; a key of either run names one."""
    found = {}
    for row_b, row_a in row_of.items():
        if row_a in aside or row_b in aside:
            means = [_mean(scored) if scored else None for scored in (_of_row(values, row_a) for values in (a, b))]
            found[row_a] = SetAside(after.places[row_b], row_b if row_b in aside else row_a, means[0], means[1])
    return found


def _of_row(values: Values, row: str) -> list[float]:
    return [value for (key, _), value in values.items() if key == row and value is not None]


def _without(values: Values, rows: Collection[str]) -> Values:
    return {key: value for key, value in values.items() if key[0] not in rows} if rows else values


def _flips(scored: _Paired, before: _Side, after: _Side, b_of: Mapping[str, str], threshold: float) -> list[Flip]:
    """The pairs of which one side passes."""
    return [
        Flip(after.places[b_of[row]], attempt, *pair, (0, row, attempt), (0, b_of[row], attempt), before.places[row])
        for (row, attempt), pair in scored.pairs.items()
        if (pair[0] >= threshold) != (pair[1] >= threshold)
    ]


def _edited(before: _Side, after: _Side, b_of: Mapping[str, str]) -> set[str]:
    """The rows of `before` whose content is known on both sides and is not the same."""
    return {row for row, key in b_of.items() if len({before.hashes.get(row), after.hashes.get(key), None}) > 2}


class _Side:
    """One run's rollouts that were not skipped: their scores, None where one failed, and the hash of each row."""

    def __init__(self, rollouts: Iterable[Counted]) -> None:
        self.names: dict[str, None] = {}
        self.places: dict[str, int] = {}
        self.hashes: dict[str, str] = {}
        self._scores: dict[Attempt, dict[str, float | None]] = {}
        keys = DerivedKeys()
        for rollout in rollouts:
            self.names.update(dict.fromkeys(rollout.scores))
            content_hash = rollout.hashes.get("row")
            row = keys.of(rollout.row_key, rollout.row_index, content_hash)
            if rollout.status is RolloutStatus.SKIPPED:
                continue
            self.places[row] = rollout.row_index
            if content_hash is not None:
                self.hashes[row] = content_hash
            key = (row, rollout.attempt)
            self._scores[key] = {name: score.value for name, score in rollout.scores.items()}

    def values(self, name: str) -> dict[Attempt, float | None]:
        return {key: scores.get(name) for key, scores in self._scores.items()}


def _same_rows(a: _Side, b: _Side) -> dict[str, str]:
    """The row keys of `b` to those of `a`: by the key itself, by content, at last by place where no more is known."""
    found = {row: row for row in b.places if row in a.places}
    left: dict[str, list[str]] = {}
    for row, content_hash in a.hashes.items():
        if row not in found:
            left.setdefault(content_hash, []).append(row)
    for row, content_hash in b.hashes.items():
        if row not in found and left.get(content_hash):
            found[row] = left[content_hash].pop(0)
    taken = set(found.values())
    at = {place: row for row, place in a.places.items() if row not in taken}
    for row, place in b.places.items():
        if row not in found and place in at and place_key(place) in (row, at[place]):
            found[row] = at[place]
    return found


class _Paired:
    """Both values of each pair, a missing one as 0, and the mean of each row on both sides."""

    def __init__(self, keys: Iterable[Attempt], a: Values, b: Values) -> None:
        self.pairs = {key: (a[key] or 0.0, b[key] or 0.0) for key in keys}
        by_row: dict[str, list[tuple[float, float]]] = {}
        for (row, _), pair in self.pairs.items():
            by_row.setdefault(row, []).append(pair)
        self.rows = {row: (_mean([x for x, _ in found]), _mean([y for _, y in found])) for row, found in by_row.items()}
        self.mean_a = _mean([x for x, _ in self.rows.values()])
        self.mean_b = _mean([y for _, y in self.rows.values()])

    def passes(self, threshold: float) -> _Paired:
        """The same with 1 for a value that passes and 0 for one that does not."""
        a = {key: float(x >= threshold) for key, (x, _) in self.pairs.items()}
        return _Paired(self.pairs, a, {key: float(y >= threshold) for key, (_, y) in self.pairs.items()})

    def difference(self, declared: Bounds | None, looks: int = 1, level: float = LEVEL) -> Difference:
        values = [value for pair in self.pairs.values() for value in pair]
        return difference_of([y - x for x, y in self.rows.values()], (min(values), max(values)), declared, looks, level)


def _check_pairs(shared: list[Attempt], row_of: Mapping[str, str], name: str, a: _Side, aside: Collection[str]) -> None:
    if not row_of:
        raise ValidationError("the two runs have no rows in common", hint="compare runs over the same dataset")
    if not shared and len(aside) == len(row_of):
        raise ValidationError(
            "every row that the two runs have in common is in quarantine", hint="osmosis eval quarantine list"
        )
    if not shared:
        raise ValidationError(
            f"the two runs have no pairs with the score {name!r}",
            hint=f"compare runs over the same rows and attempts; scores: {', '.join(a.names) or 'none'}",
        )


def _scored(values: Values) -> int:
    return sum(1 for value in values.values() if value is not None)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _pair(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval else None


def _common_score(first: list[str], second: list[str]) -> str:
    for name in first:
        if name in second:
            return name
    if len(first) == 1 and len(second) == 1:
        raise ValidationError(f"the runs have different scores: {first[0]!r} and {second[0]!r}", hint="regrade one")
    raise ValidationError(
        f"the runs have no scores in common: {', '.join(first) or 'none'} and {', '.join(second) or 'none'}",
        hint="give the score functions the same names, or regrade one run",
    )
