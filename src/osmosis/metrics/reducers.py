"""One figure of the attempts at a row: `--reduce median`, `at-least-2`, `pass@3`; then the mean of that over the rows.

A failed attempt counts as 0 and as no pass, as everywhere. A row with fewer attempts than a reducer needs is left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from osmosis.base.light_dataclass import dataclass
from osmosis.base.stats import pass_at_k, pass_hat_k, quantile
from osmosis.errors import ValidationError

NAMES = ("mean", "median", "mode", "max", "at-least-K", "pass@K", "pass^K")

Values = Sequence[float]
"""Of the attempts at one row, in ascending order."""


def _mode(values: Values) -> float:
    """The most frequent value; of several, the least."""
    counted = Counter(values)
    return min(counted, key=lambda value: (-counted[value], value))


_PLAIN: dict[str, Callable[[Values], float]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "median": lambda values: quantile(values, 0.5),
    "mode": _mode,
    "max": lambda values: values[-1],
}
_COUNTING: dict[str, Callable[[int, int, int], float]] = {
    "at-least-": lambda n, c, k: float(c >= k),
    "pass@": pass_at_k,
    "pass^": pass_hat_k,
}
"""Of attempts, passes and k."""


@dataclass(frozen=True, slots=True)
class Reducer:
    """What one name means."""

    name: str
    kind: str
    k: int = 0

    @property
    def is_share(self) -> bool:
        """Whether what comes out lies between 0 and 1, whatever the score's scale."""
        return self.kind in _COUNTING

    def of(self, values: Values, passed: int) -> float | None:
        """The row's figure; `passed` of its attempts passed. None where it has too few."""
        if not self.is_share:
            return _PLAIN[self.kind](values)
        return _COUNTING[self.kind](len(values), passed, self.k) if len(values) >= self.k else None


def reducer(name: str, *, attempts: int | None = None) -> Reducer:
    """By its name. Raises ValidationError for one that does not exist, or asks for more than `attempts`."""
    if name in _PLAIN:
        return Reducer(name, name)
    match = re.fullmatch(r"(at-least-|pass@|pass\^)([1-9][0-9]{0,8})", name)
    if match is None:
        raise ValidationError(f"there is no reducer {name!r}", hint=f"one of {', '.join(NAMES)} (K is a number)")
    k = int(match[2])
    if attempts is not None and k > attempts:
        raise ValidationError(
            f"the reducer {name} needs at least {k} attempts per row, there are {attempts}", hint=f"--n {k}"
        )
    return Reducer(name, match[1], k)
