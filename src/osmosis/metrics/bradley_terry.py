"""Strengths of runs by which of their answers were preferred (R. Bradley and M. Terry, Biometrika 39, 1952), a tie as
half a win. Each pair has one tie more than was judged, so that a run that wins all is finite. Intervals: bootstrap with
random weights of the rows (D. Rubin, Annals of Statistics 9, 1981) and Gaffke's further row (`osmosis.base.stats`)."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from random import Random
from statistics import fmean

from osmosis.base.stats import quantile
from osmosis.metrics.formats import interval as format_interval, p_value as format_p_value, percent
from osmosis.metrics.intervals import LEVEL, Verdict, adjusted, difference_of, verdict_of
from osmosis.records.base import Record
from osmosis.records.run.report import Interval

Pair = tuple[int, int]  # numbers of two runs, the lower one first
Outcomes = Mapping[Pair, float]  # of a row: 1 when the second run won, 0 when the first did, 0.5 for a tie
ELO = 400 / math.log(10)  # Elo points of one unit of log-odds: 400 points are odds of 10 to 1
_STEPS, _CLOSE = 1000, 1e-7


class Strength(Record):
    run: str
    elo: float  # Elo points above the mean of the runs
    interval: Interval


class Preference(Record):
    a: str
    b: str
    rows: int
    wins_a: int
    ties: int
    wins_b: int
    rate: float  # share of the rows that B won, a tie as half
    interval: Interval | None
    p_value: float | None  # two-sided, of a sign test over rows with mid-p; Holm's with more than two runs
    verdict: Verdict
    chance: float  # chance that B beats A on another row, by the strengths of both

    def __str__(self) -> str:
        is_clear = self.verdict in ("better", "worse")
        head = f"{self.b} is {self.verdict} than {self.a}" if is_clear else f"{self.b} and {self.a}: {self.verdict}"
        counts = f"{self.wins_b:,} wins, {self.ties:,} ties, {self.wins_a:,} losses, preferred in {percent(self.rate)}"
        if self.interval:
            counts += f" ({format_interval(self.interval, percent)}), p {format_p_value(self.p_value)}"
        return f"{head}: {counts}; chance to beat it on another row {percent(self.chance)}"


def fit_strengths(wins: Sequence[Sequence[float]], tie: float = 0.5) -> list[float]:
    """Return log-odds with mean 0; `wins[i][j]`: how often i won against j. By the iteration of M. Newman ("Efficient
    computation of rankings from pairwise comparisons", Journal of Machine Learning Research 24, 2023)."""
    runs = range(len(wins))
    odds = [math.sqrt((tie + sum(wins[i])) / (tie + sum(line[i] for line in wins))) for i in runs]
    for _ in range(_STEPS):
        before = odds.copy()
        for i in runs:
            gain = sum([(wins[i][j] + tie) * odds[j] / (odds[i] + odds[j]) for j in runs if j != i])
            odds[i] = gain / sum([(wins[j][i] + tie) / (odds[i] + odds[j]) for j in runs if j != i])
        middle = math.exp(fmean(map(math.log, odds)))
        odds = [value / middle for value in odds]
        if all(abs(new - old) <= _CLOSE * old for new, old in zip(odds, before, strict=True)):
            break
    return [math.log(value) for value in odds]


def rank_runs(names: Sequence[str], rows: Sequence[Outcomes], draws: int = 1000) -> list[Strength]:
    source = Random(0)  # the same verdicts have the same interval
    equal = Counter(tuple(sorted(row.items())) for row in rows)
    ends: list[list[list[float]]] = [[[] for _ in names] for _ in range(2)]
    for _ in range(draws):
        weights = [source.gammavariate(count, 1.0) for count in equal.values()]
        more = source.gammavariate(1.0, 1.0)
        unit = (len(rows) + 1) / (sum(weights) + more)
        wins = _count_wins(zip(equal, (weight * unit for weight in weights), strict=True), len(names))
        for end in range(2):
            for i in range(len(names)):
                drawn = [
                    [won + more * unit * (a != b and i == (a if end else b)) for b, won in enumerate(line)]
                    for a, line in enumerate(wins)
                ]
                ends[end][i].append(ELO * fit_strengths(drawn)[i])
    estimates = fit_strengths(_count_wins(equal.items(), len(names)))
    return [
        Strength(run=run, elo=ELO * value, interval=Interval(low=quantile(low, 0.025), high=quantile(high, 0.975)))
        for run, value, low, high in zip(names, estimates, *(map(sorted, end) for end in ends), strict=True)
    ]


def _count_wins(weighted: Iterable[tuple[tuple[tuple[Pair, float], ...], float]], runs: int) -> list[list[float]]:
    wins = [[0.0] * runs for _ in range(runs)]
    for row, weight in weighted:
        for (a, b), share in row:
            wins[b][a] += weight * share
            wins[a][b] += weight * (1 - share)
    return wins


def compare_pairs(strengths: Sequence[Strength], rows: Sequence[Outcomes]) -> list[Preference]:
    pairs = list(combinations(range(len(strengths)), 2))
    outcomes = [[row[pair] for row in rows if pair in row] for pair in pairs]
    differences = [difference_of([2 * share - 1 for share in own], (0.0, 1.0), (0.0, 1.0)) for own in outcomes]
    verdicts = [verdict_of([difference]) for difference in differences]
    p_values = adjusted([p_value for _, p_value in verdicts])
    reaches = [difference.interval for difference in differences]
    return [
        Preference(
            a=strengths[a].run,
            b=strengths[b].run,
            rows=len(own),
            wins_a=own.count(0.0),
            ties=own.count(0.5),
            wins_b=own.count(1.0),
            rate=fmean(own or [0.5]),
            interval=reach and Interval(low=(1 + reach.low) / 2, high=(1 + reach.high) / 2),
            p_value=p_value,
            verdict="no clear difference" if p_value is not None and p_value >= 1 - LEVEL else verdict,
            chance=1 / (1 + math.exp((strengths[a].elo - strengths[b].elo) / ELO)),
        )
        for (a, b), own, reach, (verdict, _), p_value in zip(pairs, outcomes, reaches, verdicts, p_values, strict=True)
    ]
