"""How often the intervals of `osmosis judge compare` hold the truth, and how often equal runs get a verdict.

    python benchmarks/pairwise.py                  # 500 studies in each cell, about fifteen minutes
    python benchmarks/pairwise.py --studies 50

It simulates the code of `osmosis.metrics.bradley_terry`. A run answers a row as well as its strength and the row's own
luck allow; the judge sees the difference with an error of its own, and adds its bias to the answer that comes first.
Both orders are asked. The truth is the strength that 20,000 rows give. `orders apart` is a sign test that takes the two
orders of a pair for two observations.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from random import Random

from osmosis.metrics.bradley_terry import ELO, Outcomes, compare_pairs, fit_strengths, rank_runs
from osmosis.metrics.intervals import bounded_interval, difference_of

NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Judge:
    bias: float
    """Points that the first answer gets more, where answers differ by about 1."""
    noise: float = 1.0
    indifferent: float = 0.3
    """Differences below it are a tie."""

    def prefers(self, source: Random, difference: float) -> float:
        seen = difference + self.bias + source.gauss(0, self.noise)
        return 0.5 if abs(seen) < self.indifferent else float(seen > 0)


@dataclass(frozen=True)
class Study:
    rows: list[Outcomes]
    firsts: list[float]
    """How often the first answer was preferred, of two questions for each pair of a row."""
    apart: list[float]


def simulate(source: Random, judge: Judge, strengths: tuple[float, ...], rows: int) -> Study:
    study = Study([], [], [])
    for _ in range(rows):
        first = 0.0
        answers = [strength + source.gauss(0, 1) for strength in strengths]
        outcomes: dict[tuple[int, int], float] = {}
        for b in range(len(answers)):
            for a in range(b):
                ahead = judge.prefers(source, answers[a] - answers[b])
                behind = judge.prefers(source, answers[b] - answers[a])
                outcomes[a, b] = behind if ahead + behind == 1 else 0.5
                first += ahead + behind
                study.apart.extend([1 - 2 * ahead, 2 * behind - 1])
        study.rows.append(outcomes)
        study.firsts.append(first)
    return study


def true_strengths(judge: Judge, strengths: tuple[float, ...]) -> list[float]:
    rows = simulate(Random(99), judge, strengths, 20_000).rows
    wins = [[0.0] * len(strengths) for _ in strengths]
    for row in rows:
        for (a, b), share in row.items():
            wins[b][a] += share
            wins[a][b] += 1 - share
    return [ELO * strength for strength in fit_strengths(wins)]


def print_cell(judge: Judge, strengths: tuple[float, ...], rows: int, studies: int) -> None:
    truth = true_strengths(judge, strengths)
    holds = verdicts = biased = apart = 0
    width = first = 0.0
    questions = len(strengths) * (len(strengths) - 1)
    for number in range(studies):
        study = simulate(Random(f"{number} {judge} {strengths} {rows}"), judge, strengths, rows)
        ranked = rank_runs(NAMES[: len(strengths)], study.rows, draws=200)
        for strength, true in zip(ranked, truth, strict=True):
            holds += strength.interval.low <= true <= strength.interval.high
            width += strength.interval.high - strength.interval.low
        verdicts += any(pair.verdict in ("better", "worse") for pair in compare_pairs(ranked, study.rows))
        between = bounded_interval(study.firsts, [questions] * rows)
        biased += between is not None and not between.low <= 0.5 <= between.high
        first += sum(study.firsts) / (questions * rows)
        apart += difference_of(study.apart, (0.0, 1.0), (0.0, 1.0)).tails.p_value < 0.05
    total = studies * len(strengths)
    cells = [", ".join(f"{strength:g}" for strength in strengths), f"{judge.bias:g}", f"{rows}"]
    cells += [f"{max(truth) - min(truth):.0f}", f"{holds / total:.3f}", f"{width / total:.0f}"]
    shares = (verdicts, biased) if len(strengths) > 2 else (verdicts, biased, apart)
    cells += [f"{first / studies:.1%}", *(f"{share / studies:.1%}" for share in shares)]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=500)
    studies = parser.parse_args().studies
    print(
        "| strengths | bias | rows | Elo apart | coverage | width | first preferred | verdict | biased | orders apart |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for bias in (0.0, 1.0, 4.0):
        for rows in (20, 100):
            print_cell(Judge(bias), (0.0, 0.0), rows, studies)
    for strengths in ((0.0, 0.5), (0.0, 1.5), (0.0, 0.0, 0.0), (0.0, 0.4, 1.0)):
        for rows in (20, 100):
            print_cell(Judge(0.3), strengths, rows, studies)


if __name__ == "__main__":
    main()
