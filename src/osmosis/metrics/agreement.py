"""Agreement of a judge's verdicts with people's, by row. The interval of kappa gives random weights to the rows and one
more, of the verdicts worst for the bound (Gaffke's idea, `osmosis.base.stats`)."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from osmosis.base.jsonable import JsonObject
from osmosis.base.stats import quantile
from osmosis.metrics.intervals import bounded_interval, pair_of
from osmosis.records.run.annotations import Annotation
from osmosis.records.run.report import Interval

LEAST = 10
_DRAWS = 2000
_BOTH_PASS, _JUDGE_ONLY, _PERSON_ONLY, _BOTH_FAIL = range(4)
_CELLS = {(True, True): _BOTH_PASS, (True, False): _JUDGE_ONLY, (False, True): _PERSON_ONLY}

Verdict = tuple[Hashable, bool, bool]
Cells = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Agreement:
    pairs: int
    rows: int
    both_pass: int
    judge_only: int
    person_only: int
    both_fail: int
    rate: float
    rate_interval: Interval | None
    kappa: float | None  # Absent when both always give the same verdict
    kappa_interval: Interval | None
    bias: float  # The judge's pass rate minus the people's: above 0, the judge is too kind
    bias_interval: Interval | None

    def to_dict(self) -> JsonObject:
        names = ("pairs", "rows", "both_pass", "judge_only", "person_only", "both_fail")
        return {
            **{name: getattr(self, name) for name in names},
            "agreement": self.rate,
            "agreement_ci": pair_of(self.rate_interval),
            "kappa": self.kappa,
            "kappa_ci": pair_of(self.kappa_interval),
            "bias": self.bias,
            "bias_ci": pair_of(self.bias_interval),
        }


def agreement(verdicts: Iterable[Verdict]) -> Agreement | None:
    by_row: dict[Hashable, list[int]] = {}
    for row, judge, person in verdicts:
        by_row.setdefault(row, [0, 0, 0, 0])[_CELLS.get((judge, person), _BOTH_FAIL)] += 1
    if not by_row:
        return None
    rows = [(a, b, c, d) for a, b, c, d in by_row.values()]
    sizes = [sum(row) for row in rows]
    a, b, c, d = (sum(row[cell] for row in rows) for cell in range(4))
    n = a + b + c + d
    kappa = _kappa((a, b, c, d))
    return Agreement(
        pairs=n,
        rows=len(rows),
        both_pass=a,
        judge_only=b,
        person_only=c,
        both_fail=d,
        rate=(a + d) / n,
        rate_interval=bounded_interval([row[_BOTH_PASS] + row[_BOTH_FAIL] for row in rows], sizes),
        kappa=kappa,
        kappa_interval=None if kappa is None or len(rows) < LEAST else _kappa_interval(rows),
        bias=(b - c) / n,
        bias_interval=bounded_interval([row[_JUDGE_ONLY] - row[_PERSON_ONLY] for row in rows], sizes, (-1.0, 1.0)),
    )


def _kappa(cells: Cells) -> float | None:
    a, b, c, d = cells
    n = a + b + c + d
    judge, person = (a + b) / n, (a + c) / n
    chance = judge * person + (1 - judge) * (1 - person)
    return None if chance >= 1 else ((a + d) / n - chance) / (1 - chance)


def _kappa_interval(rows: Sequence[Cells]) -> Interval:
    source = Random(0)  # the same labels have the same interval
    equal = Counter(rows)
    size = sum(map(sum, rows)) / len(rows)
    lows, highs = [], []
    for _ in range(_DRAWS):
        weighted = [(cells, source.gammavariate(count, 1.0)) for cells, count in equal.items()]
        cells = [sum(row[cell] * weight for row, weight in weighted) for cell in range(4)]
        more = source.gammavariate(1.0, 1.0) * size
        kappas = []
        for cell in range(4):
            a, b, c, d = (share + more * (i == cell) for i, share in enumerate(cells))
            kappa = _kappa((a, b, c, d))
            kappas.append(1.0 if kappa is None else kappa)
        lows.append(min(kappas[_JUDGE_ONLY], kappas[_PERSON_ONLY]))
        highs.append(max(kappas[_BOTH_PASS], kappas[_BOTH_FAIL]))
    return Interval(low=quantile(sorted(lows), 0.025), high=quantile(sorted(highs), 0.975))


Verdicts = dict[tuple[str, str], list[Verdict]]


@dataclass(frozen=True, slots=True)
class Calibrated:
    score: str
    score_hash: str  # Hash of the rubric or function that scored; empty when none was stored
    found: Agreement


def labelled_lines(
    annotations: Iterable[Annotation], rollouts: Iterable[JsonObject]
) -> Iterator[tuple[JsonObject, list[Annotation]]]:
    """Yield each rollout with the annotations that are about it, and not about an earlier one of its place."""
    by_place: dict[tuple[int, int, int], list[Annotation]] = {}
    for annotation in annotations:
        by_place.setdefault(annotation.place, []).append(annotation)
    for line in rollouts:
        at_place = by_place.get((line.get("step", 0), line["row_index"], line["attempt"]), ())
        yield line, [annotation for annotation in at_place if annotation.rollout_id in (None, line["rollout_id"])]


def verdicts(annotations: Iterable[Annotation], rollouts: Iterable[JsonObject], threshold: float) -> Verdicts:
    by_scorer: Verdicts = {}
    for line, own in labelled_lines(annotations, rollouts):
        people = [annotation.passes(threshold) for annotation in own]
        hashed = str((line.get("hashes") or {}).get("score") or "")
        scores = {name: score.get("value") for name, score in (line.get("scores") or {}).items()}
        for name, value in scores.items():
            labelled = people if value is not None else ()
            pairs = [(line["row_index"], value >= threshold, passes) for passes in labelled if passes is not None]
            if pairs:
                by_scorer.setdefault((name, hashed), []).extend(pairs)
    return by_scorer


def calibrated(by_scorer: Verdicts) -> Iterator[Calibrated]:
    for (name, hashed), pairs in by_scorer.items():
        if (compared := agreement(pairs)) is not None:
            yield Calibrated(name, hashed, compared)
