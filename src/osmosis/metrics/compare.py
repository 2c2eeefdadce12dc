"""Compare two runs, paired by row; attempts at a row are exchangeable. The verdict looks at the scored rows and, with
failures as zeros, at all, with the wider intervals that two looks need; rows that a model was trained on prove
nothing."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial

from osmosis.base.jsonable import JsonObject
from osmosis.errors import ValidationError
from osmosis.metrics import formats
from osmosis.metrics.intervals import LEVEL, Difference, Verdict, difference_of, pair_of, verdict_of
from osmosis.records.run.report import Bounds, Interval
from osmosis.records.run.rollout import Rollout, RolloutStatus
from osmosis.records.run.rows import DerivedKeys, Key, place_key

Attempt = tuple[str, int]  # Row key of run A, attempt
Values = Mapping[Attempt, float | None]


@dataclass(slots=True)
class Flip:
    row_index: int  # Row index in run B's dataset
    attempt: int
    before: float
    after: float
    key_a: Key = (0, "", 0)
    key_b: Key = (0, "", 0)
    row_index_a: int = 0

    @property
    def gained(self) -> bool:
        return self.after > self.before

    def to_dict(self) -> JsonObject:
        plain = {name: getattr(self, name) for name in ("row_index", "attempt", "before", "after")}
        return {**plain, "kind": "gained" if self.gained else "lost"}


@dataclass(slots=True)
class SetAside:
    """A quarantined row: its means in both runs, None without a score."""

    row_index: int
    key: str
    mean_a: float | None
    mean_b: float | None


@dataclass(slots=True)
class Comparison:
    score: str
    pairs: int
    rows: int
    only_a: int
    only_b: int
    mean_a: float  # Mean over rows
    mean_b: float
    difference: float
    interval: Interval | None
    failed_a: int  # Pairs that both ran and only B has a score for
    failed_b: int
    difference_failures_0: float  # B minus A over all pairs that both ran, failures as 0
    interval_failures_0: Interval | None
    pass_rate_a: float
    pass_rate_b: float
    rows_differ: int
    gained: int
    lost: int
    p_value: float | None
    """Two-sided, of the verdict: below 1 - level exactly when it is `better` or `worse`. None with too few rows."""
    p_value_flips: float  # Two-sided, of the difference of the pass rates by row
    verdict: Verdict
    flips: list[Flip] = field(default_factory=list)
    by_row: list[tuple[int, float, float]] = field(default_factory=list)
    """Row index in B's dataset, mean in A, mean in B, for each row that both have a score for."""
    aside: list[SetAside] = field(default_factory=list)
    """Quarantined rows that both have: no figure, flip or verdict counts them."""
    detectable: float | None = None
    """Smallest true difference that rows like these show in 80 % of runs; None with too few rows."""
    trained_rows: int = 0  # Rows of these that a model of the two runs was trained on
    unseen: "Comparison | None" = None  # The comparison of the other rows, where there are rows of both kinds
    keys: set[str] = field(default_factory=set)
    """Row keys of the rows that both have, quarantined ones included, as either run calls them."""

    def __str__(self) -> str:
        between = f" ({formats.interval(self.interval, formats.signed)})" if self.interval else ""
        means = f"{formats.score(self.mean_b)} vs {formats.score(self.mean_a)}"
        return f"{means}, difference {formats.signed(self.difference)}{between}, {self.verdict}"

    def regressed(self, margin: float = 0.0) -> bool:
        """Return whether B is worse, or with a margin may be by more than that; too few rows show nothing."""
        if margin <= 0:
            return self.verdict == "worse"
        intervals = [self.interval, *([self.interval_failures_0] if self.failed_a or self.failed_b else [])]
        return any(interval is None or interval.low < -margin for interval in intervals)

    def conclusion(self, margin: float = 0.0) -> str:
        if margin > 0 and self.regressed(margin):
            return f"{self.verdict}; B is not shown to be at most {margin:g} worse than A"
        if self.verdict == "worse" and (self.interval is None or self.interval.high >= 0):
            return "worse, because rollouts failed in B that have a score in A (failures count as 0)"
        if self.verdict == "not shown on unseen rows":
            return f"{self.verdict}: {self.trained_rows:,} of {self.rows:,} were trained on"
        return self.verdict

    def to_dict(self) -> JsonObject:
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_PLAIN}
        return {
            **plain,
            "difference_ci": pair_of(self.interval),
            "difference_failures_0_ci": pair_of(self.interval_failures_0),
            "flips": [flip.to_dict() for flip in self.flips],
            "quarantined": [asdict(entry) for entry in self.aside],
            "unseen": self.unseen and {key: value for key, value in self.unseen.to_dict().items() if key in _UNSEEN},
        }


_NOT_PLAIN = {"interval", "interval_failures_0", "flips", "by_row", "aside", "unseen", "keys"}
_UNSEEN = ("rows", "pairs", "mean_a", "mean_b", "difference", "difference_ci", "p_value", "verdict")


def compare(
    a: Iterable[Rollout],
    b: Iterable[Rollout],
    *,
    threshold: float,
    score: str | None = None,
    bounds: Mapping[str, Bounds] | None = None,
    level: float = LEVEL,
    aside: Collection[str] = (),
    largest_change: float | None = None,
    trained: Collection[str] = (),
) -> Comparison:
    """Compare the rollouts of run `b` with those of run `a`, each read once. `aside`: keys of rows that do not count.
    `largest_change`: the most by which a row's mean can change, which narrows the interval. `trained`: keys of rows
    that a model was trained on. Raise ValidationError when nothing can be paired, or a row changed by more."""
    before, after = _Side(a), _Side(b)
    name = score or _common_score(list(before.names), list(after.names))
    declared = (bounds or {}).get(name)
    compare_rows = partial(_compare, before, after, name, threshold, declared, level, largest_change)
    comparison = compare_rows(aside, trained)
    if comparison.trained_rows:
        is_mixed = comparison.trained_rows < comparison.rows
        comparison.unseen = unseen = compare_rows({*aside, *trained}, ()) if is_mixed else None
        if comparison.verdict == "better":
            # Better means on all rows and on the unseen ones: the larger p-value is that of both.
            p_value = unseen.p_value if unseen is not None else None
            comparison.p_value = None if p_value is None else max(p_value, comparison.p_value or 0.0)
            if unseen is None or unseen.verdict != "better":
                comparison.verdict = "not shown on unseen rows"
    return comparison


def _compare(
    before: "_Side",
    after: "_Side",
    name: str,
    threshold: float,
    declared: Bounds | None,
    level: float,
    largest_change: float | None,
    aside: Collection[str],
    trained: Collection[str],
) -> Comparison:
    row_of = _same_rows(before, after)
    values_a: Values = before.values(name)
    values_b: Values = {(row_of.get(row, row), attempt): value for (row, attempt), value in after.values(name).items()}
    set_aside = _set_aside(row_of, aside, after, values_a, values_b)
    excluded = {*aside, *set_aside}
    values_a, values_b = ({k: v for k, v in values.items() if k[0] not in excluded} for values in (values_a, values_b))
    ran = sorted((key for key in values_a if key in values_b), key=lambda key: (before.places[key[0]], key[1]))
    shared = [key for key in ran if values_a[key] is not None and values_b[key] is not None]
    both = [key for key in ran if (values_a[key], values_b[key]) != (None, None)]
    b_of = {row_a: row_b for row_b, row_a in row_of.items()}
    in_order = sorted(b_of, key=lambda row: before.places[row])
    by_row = _rows(in_order, values_a), _rows(in_order, values_b)
    scored = _Paired(*({row: [v for v in by[row] if v is not None] for row in in_order} for by in by_row))
    if not row_of:
        raise ValidationError("the two runs have no rows in common", hint="compare runs over the same dataset")
    if not scored.rows and len(set_aside) == len(row_of):
        message = "every row that the two runs have in common is in quarantine"
        raise ValidationError(message, hint="osmosis eval quarantine")
    if not scored.rows:
        hint = f"compare runs over the same rows; scores: {', '.join(before.names) or 'none'}"
        raise ValidationError(f"the two runs have no rows that both have the score {name!r} of", hint=hint)
    some = [row for row in in_order if any(value is not None for by in by_row for value in by[row])]
    zeros = _Paired(*({row: [v or 0.0 for v in by[row]] for row in some} for by in by_row))
    edited = {row for row, key in b_of.items() if len({before.hashes.get(row), after.hashes.get(key), None}) > 2}
    scores = ((key, values_a[key] or 0.0, values_b[key] or 0.0) for key in shared)
    flips = [
        Flip(after.places[b_of[row]], attempt, x, y, (0, row, attempt), (0, b_of[row], attempt), before.places[row])
        for (row, attempt), x, y in scores
        if (x >= threshold) != (y >= threshold)
    ]
    gained = sum(1 for flip in flips if flip.gained)
    looks = 2 if any(None in by[row] for by in by_row for row in some) else 1
    differences = [side.difference(declared, looks, level, largest_change) for side in (scored, zeros)[:looks]]
    verdict, p_value = verdict_of(differences, level)
    passes = scored.passes(threshold)
    return Comparison(
        score=name,
        pairs=len(shared),
        rows=len(scored.rows),
        only_a=sum(1 for value in values_a.values() if value is not None) - len(shared),
        only_b=sum(1 for value in values_b.values() if value is not None) - len(shared),
        mean_a=scored.mean_a,
        mean_b=scored.mean_b,
        difference=scored.mean_b - scored.mean_a,
        interval=differences[0].interval,
        pass_rate_a=passes.mean_a,
        pass_rate_b=passes.mean_b,
        gained=gained,
        lost=len(flips) - gained,
        p_value=p_value,
        verdict=verdict,
        p_value_flips=passes.difference((0.0, 1.0)).tails.p_value,
        failed_a=sum(1 for key in both if values_a[key] is None),
        failed_b=sum(1 for key in both if values_b[key] is None),
        difference_failures_0=zeros.mean_b - zeros.mean_a,
        interval_failures_0=differences[-1].interval,
        rows_differ=len(edited & scored.rows.keys()),
        flips=flips,
        by_row=[(after.places[b_of[row]], *means) for row, means in scored.rows.items()],
        detectable=max((d for difference in differences if (d := difference.detectable)), default=None),
        aside=sorted(set_aside.values(), key=lambda side: side.row_index),
        trained_rows=sum(1 for row in scored.rows if row in trained or b_of[row] in trained),
        keys={*row_of, *row_of.values()},
    )


def _set_aside(
    row_of: Mapping[str, str], excluded: Collection[str], after: "_Side", a: Values, b: Values
) -> dict[str, SetAside]:
    entries = {}
    for row_b, row_a in row_of.items():
        if row_a in excluded or row_b in excluded:
            scored = ([v for (row, _), v in values.items() if row == row_a and v is not None] for values in (a, b))
            means = [_mean(values) if values else None for values in scored]
            entries[row_a] = SetAside(after.places[row_b], row_b if row_b in excluded else row_a, means[0], means[1])
    return entries


class _Side:
    def __init__(self, rollouts: Iterable[Rollout]) -> None:
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
            self._scores[(row, rollout.attempt)] = {name: score.value for name, score in rollout.scores.items()}

    def values(self, name: str) -> dict[Attempt, float | None]:
        return {key: scores.get(name) for key, scores in self._scores.items()}


def _same_rows(a: _Side, b: _Side) -> dict[str, str]:
    matches = {row: row for row in b.places if row in a.places}
    left: dict[str, list[str]] = {}
    for row, content_hash in a.hashes.items():
        if row not in matches:
            left.setdefault(content_hash, []).append(row)
    for row, content_hash in b.hashes.items():
        if row not in matches and left.get(content_hash):
            matches[row] = left[content_hash].pop(0)
    matched = set(matches.values())
    at = {index: row for row, index in a.places.items() if row not in matched}
    for row, index in b.places.items():
        if row not in matches and index in at and place_key(index) in (row, at[index]):
            matches[row] = at[index]
    return matches


def _rows(rows: Iterable[str], values: Values) -> dict[str, list[float | None]]:
    by_row: dict[str, list[float | None]] = {row: [] for row in rows}
    for (row, _), value in values.items():
        if row in by_row:
            by_row[row].append(value)
    return by_row


class _Paired:
    def __init__(self, a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]) -> None:
        self._values = [(row, a[row], b[row]) for row in a if a[row] and b[row]]
        self.rows = {row: (_mean(x), _mean(y)) for row, x, y in self._values}
        self.mean_a = _mean([x for x, _ in self.rows.values()]) if self.rows else 0.0
        self.mean_b = _mean([y for _, y in self.rows.values()]) if self.rows else 0.0

    def passes(self, threshold: float) -> "_Paired":
        a = {row: [float(value >= threshold) for value in x] for row, x, _ in self._values}
        b = {row: [float(value >= threshold) for value in y] for row, _, y in self._values}
        return _Paired(a, b)

    def difference(
        self, declared: Bounds | None, looks: int = 1, level: float = LEVEL, largest_change: float | None = None
    ) -> Difference:
        values = [value for _, x, y in self._values for value in (*x, *y)]
        changes = [y - x for x, y in self.rows.values()]
        if largest_change is not None and max(map(abs, changes)) > largest_change * (1 + 1e-9):
            message = f"a row changed by {max(map(abs, changes)):g}, more than the largest change of {largest_change:g}"
            hint = "name a larger change, or none: then a row may change by the score's whole range"
            raise ValidationError(message, hint=hint)
        return difference_of(changes, (min(values), max(values)), declared, looks, level, largest_change)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _common_score(first: list[str], second: list[str]) -> str:
    for name in first:
        if name in second:
            return name
    if len(first) == 1 and len(second) == 1:
        raise ValidationError(f"the runs have different scores: {first[0]!r} and {second[0]!r}", hint="regrade one")
    message = f"the runs have no scores in common: {', '.join(first) or 'none'} and {', '.join(second) or 'none'}"
    raise ValidationError(message, hint="give the score functions the same names, or regrade one run")
