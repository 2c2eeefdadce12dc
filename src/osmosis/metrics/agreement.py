"""How far a judge's verdicts agree with people's: Cohen's kappa with its interval, and which way the judge errs.

Kappa is the agreement beyond what the two pass rates would give by chance (Cohen 1960); its standard error is that of
Fleiss, Cohen and Everitt (1969), for labels drawn independently. Refuses an interval of fewer than `LEAST` labels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from osmosis.records.report import Interval

LEAST = 10
Z_95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of pairs of verdicts: the judge's and a person's."""

    pairs: int
    both_pass: int
    judge_only: int
    """The judge lets pass what the person does not."""
    person_only: int
    both_fail: int
    rate: float
    """Share of the pairs that agree."""
    kappa: float | None
    """None when both always say the same one thing: there is nothing to agree about."""
    kappa_interval: Interval | None
    bias: float
    """The judge's pass rate minus the people's: above 0 it is too kind."""

    def to_dict(self) -> dict[str, object]:
        between = self.kappa_interval
        return {
            "pairs": self.pairs,
            "both_pass": self.both_pass,
            "judge_only": self.judge_only,
            "person_only": self.person_only,
            "both_fail": self.both_fail,
            "agreement": self.rate,
            "kappa": self.kappa,
            "kappa_ci": [between.low, between.high] if between else None,
            "bias": self.bias,
        }


def agreement(verdicts: Iterable[tuple[bool, bool]]) -> Agreement | None:
    """Of `(judge, person)` verdicts; None without any."""
    counted = Counter(verdicts)
    n = counted.total() if hasattr(counted, "total") else sum(counted.values())
    if not n:
        return None
    a, b, c, d = (counted[pair] for pair in ((True, True), (True, False), (False, True), (False, False)))
    judge, person = (a + b) / n, (a + c) / n
    observed = (a + d) / n
    chance = judge * person + (1 - judge) * (1 - person)
    kappa = None if chance == 1 else (observed - chance) / (1 - chance)
    return Agreement(n, a, b, c, d, observed, kappa, _interval(kappa, n, a, b, c, d), judge - person)


def _interval(kappa: float | None, n: int, a: int, b: int, c: int, d: int) -> Interval | None:
    if kappa is None or n < LEAST:
        return None
    error = kappa_error(a / n, b / n, c / n, d / n, n)
    return Interval(low=max(-1.0, kappa - Z_95 * error), high=min(1.0, kappa + Z_95 * error))


def kappa_error(a: float, b: float, c: float, d: float, n: int) -> float:
    """The standard error of kappa from the shares of the four cells (equation 10 of the paper of 1969)."""
    judge, person = (a + b, c + d), (a + c, b + d)
    observed, chance = a + d, (a + b) * (a + c) + (c + d) * (b + d)
    same = sum(share * ((1 - chance) - (judge[i] + person[i]) * (1 - observed)) ** 2 for i, share in enumerate((a, d)))
    other = (1 - observed) ** 2 * (b * (person[0] + judge[1]) ** 2 + c * (person[1] + judge[0]) ** 2)
    rest = (observed * chance - 2 * chance + observed) ** 2
    return math.sqrt(max(0.0, same + other - rest)) / ((1 - chance) ** 2 * math.sqrt(n))
