"""How many rollouts questions about arms take, beside a fixed design of equal power, and how often an answer is wrong.

    python benchmarks/decide.py                    # 500 scenarios, 10,000 simulations of the error
    python benchmarks/decide.py --runs 4 --errors 500

It simulates the code of `osmosis.metrics.decide`. A scenario has one to four questions about arms, each with an arm
of its own beside the arm they share. Random are its planned difference, the spread of the rows' pass rates, the kind of
score, how far each true difference is from its threshold, and whether there is a history. The fixed design runs all
arms over the rows that `osmosis eval plan` gives for the planned difference, and tests once with Holm's correction.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from osmosis.base.stats import BoundedMean
from osmosis.metrics.decide import answer_questions, order_rows, plan_stages
from osmosis.metrics.intervals import ALPHA, adjusted
from osmosis.metrics.planning import pilot_of
from osmosis.records.run.study import Question, Study

Floats = NDArray[np.float64]
Generator = np.random.Generator
BUDGET = 1.5
"""Rows that a decision by looks may use, of those of the fixed design."""
FARTHEST = 4.0
"""True differences are at most so many planned differences from their thresholds; a fifth of them are at it."""
MOST_ROWS = 1_500


@dataclass(frozen=True)
class Scenario:
    planned: float
    mean: float
    spread: float
    """Correlation of the attempts at a row."""
    other: float
    """Share of the rows whose rate in another arm has nothing to do with that in the first."""
    noise: float | None
    """Of graded scores; None: pass or fail."""
    away: tuple[float, ...]
    margin: float
    history: int
    """Earlier attempts at each row."""
    logit: bool
    """Rows change by the same logit, so that easy and hopeless ones hardly do."""
    larger: int
    """Rows of the dataset, as a multiple of the budget."""

    @property
    def differences(self) -> list[float]:
        return [self.planned * away - self.margin for away in self.away]

    def draw(self, rng: Generator, rows: int) -> tuple[list[Floats], Floats]:
        """Return the scores of each arm, the shared one first, and the history of the rows."""
        rates = self._rates(rng, rows)
        scores = [self._scores(rng, rates)]
        for change in self.differences:
            own = np.where(rng.random(rows) < self.other, self._rates(rng, rows), rates)
            scores.append(self._scores(rng, self._change(own, change)))
        history = np.array([self._scores(rng, rates) for _ in range(self.history)])
        return scores, history

    def _change(self, rates: Floats, change: float) -> Floats:
        if not self.logit:  # the same share of what is not there yet, or of what is, at every row
            share = change / (1 - self.mean) if change > 0 else -change / self.mean
            return (1 - share) * rates + share * (change > 0)
        grid = self._rates(np.random.default_rng(0), 20_000)
        low, high = -12.0, 12.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if _shifted(grid, middle).mean() - grid.mean() < change else (low, middle)
        return _shifted(rates, low if change else 0.0)

    def _rates(self, rng: Generator, rows: int) -> Floats:
        size = (1 - self.spread) / self.spread
        return rng.beta(self.mean * size, (1 - self.mean) * size, rows)

    def _scores(self, rng: Generator, rates: Floats) -> Floats:
        if self.noise is None:
            return (rng.random(len(rates)) < rates).astype(float)
        size = 1 / self.noise - 1
        return rng.beta(np.maximum(rates * size, 1e-3), np.maximum((1 - rates) * size, 1e-3))


def _shifted(rates: Floats, logit: float) -> Floats:
    odds = np.exp(logit) * rates
    return odds / (1 - rates + odds)


def draw_scenario(rng: Generator, *, at_threshold: float = 0.2) -> Scenario:
    """Draw a scenario; that share of its differences is exactly at the threshold."""
    while True:
        planned, mean = float(rng.choice([0.06, 0.08, 0.1, 0.15])), float(rng.uniform(0.25, 0.85))
        scenario = Scenario(
            planned=planned,
            mean=mean,
            spread=float(rng.choice([0.1, 0.4, 0.8])),
            other=float(rng.choice([0.0, 0.3])),
            noise=float(rng.choice([0.1, 0.3])) if rng.random() < 1 / 3 else None,
            away=tuple(
                0.0 if rng.random() < at_threshold else float(rng.uniform(-FARTHEST, FARTHEST))
                for _ in range(int(rng.integers(1, 5)))
            ),
            margin=float(rng.choice([0.0, planned])),
            history=int(rng.choice([0, 4])),
            logit=bool(rng.integers(2)),
            larger=int(rng.integers(1, 3)),
        )
        if all(-mean < change < 1 - mean for change in scenario.differences):
            return scenario


def plan_rows(scenario: Scenario, rng: Generator) -> int | None:
    """Return the rows that `eval plan` gives, from a pilot of two runs of 300 rows."""
    away = (scenario.margin / scenario.planned,)
    plain = Scenario(**{**vars(scenario), "away": away})
    (first, second), _ = plain.draw(rng, 300)
    pilot = pilot_of([[[x] for x in first], [[x] for x in second]], list(second - first), (0.0, 1.0))
    return pilot.rows_needed(scenario.planned, 1)


def judge(scenario: Scenario, answers: Sequence[str | None]) -> tuple[int, int, int]:
    """Return how many questions that have an answer got it, how many have one, and how many answers are wrong."""
    right = [away and ("yes" if away > 0 else "no") for away in scenario.away]
    hits = sum(answer == truth for answer, truth in zip(answers, right, strict=True) if truth)
    wrong = sum(answer in ("yes", "no") and answer != truth for answer, truth in zip(answers, right, strict=True))
    return hits, sum(bool(truth) for truth in right), wrong


def decide(scenario: Scenario, rng: Generator, budget: int) -> tuple[list[str | None], int]:
    rows = budget * scenario.larger
    scores, history = scenario.draw(rng, rows)
    passed = history >= 0.99, history <= 0.01
    settled = [int(i) for i in np.flatnonzero(passed[0].all(0) | passed[1].all(0))] if len(history) else []
    names = [f"arm {i}" for i in range(len(scores))]
    study = Study(
        questions=[Question(left=name, right=names[0], margin=scenario.margin) for name in names[1:]],
        order=order_rows(range(rows), settled, int(rng.integers(2**31))),
        settled=settled,
        stages=plan_stages(rows, budget),
        arms={name: {} for name in names},
    )
    used = dict.fromkeys(names, 0)
    while (due := study.due) is not None:
        stage = study.stages[due]
        used.update(dict.fromkeys(study.open_arms, stage.rollouts))
        first = study.order[: stage.rows]
        changes = {
            i: (scores[i + 1][first] - scores[0][first]).tolist()
            for i, question in enumerate(study.questions) if question.answer is None
        }  # fmt: skip
        study = answer_questions(study, changes, 1.0)
    return [question.answer for question in study.questions], sum(used.values())


def test_once(scenario: Scenario, rng: Generator, rows: int) -> tuple[list[str | None], int]:
    scores, _ = scenario.draw(rng, rows)
    tails = [
        BoundedMean(((x, 1) for x in (other - scores[0]).tolist()), -1, 1, mid=True).tails(-scenario.margin)
        for other in scores[1:]
    ]
    values = adjusted([each.p_value for each in tails])
    answers = [
        ("yes" if each.above < each.below else "no") if value is not None and value < ALPHA else None
        for each, value in zip(tails, values, strict=True)
    ]
    return answers, rows * len(scores)


def bet(scenario: Scenario, rng: Generator, budget: int) -> tuple[list[str | None], int]:
    """Decide by betting (Waudby-Smith and Ramdas 2023, hedged, predictable plug-in bets), looking after every row."""
    scores, _ = scenario.draw(rng, budget)
    ends: list[int] = []
    answers: list[str | None] = []
    alpha = ALPHA / len(scenario.away)
    for other in scores[1:]:
        x, null = (other - scores[0] + 1) / 2, (1 - scenario.margin) / 2
        t = np.arange(1, budget + 1)
        means = np.concatenate([[0.5], (0.5 + np.cumsum(x)) / (t + 1)])[:-1]
        squares = np.concatenate([[0.25], (0.25 + np.cumsum((x - means) ** 2)) / (t + 1)])[:-1]
        bets = np.sqrt(2 * np.log(2 / alpha) / (squares * t * np.log(t + 1)))
        up = np.cumsum(np.log1p(np.minimum(bets, 0.5 / null) * (x - null)))
        down = np.cumsum(np.log1p(-np.minimum(bets, 0.5 / (1 - null)) * (x - null)))
        over = np.flatnonzero(np.maximum(up, down) - np.log(2) >= np.log(1 / alpha))
        ends.append(int(over[0]) + 1 if len(over) else budget)
        answers.append(("yes" if up[over[0]] > down[over[0]] else "no") if len(over) else None)
    return answers, sum(ends) + max(ends)


@dataclass(frozen=True)
class Outcome:
    scenario: Scenario
    totals: dict[str, Floats]
    """By design: answers hit, answers there are, wrong answers, rollouts."""


def simulate(seed: int, runs: int) -> Outcome:
    rng = np.random.default_rng([seed, 1])
    while True:
        scenario = draw_scenario(rng)
        rows = plan_rows(scenario, rng)
        if rows is not None and rows <= MOST_ROWS:
            break
    budget = round(BUDGET * rows)
    sums: dict[str, Floats] = {}
    for name, run, size in (("decide", decide, budget), ("fixed", test_once, rows), ("betting", bet, budget)):
        total = np.zeros(4)
        for _ in range(runs):
            answers, rollouts = run(scenario, rng, size)
            total += [*judge(scenario, answers), rollouts]
        sums[name] = total
    return Outcome(scenario, sums)


def err(seed: int, runs: int) -> tuple[int, int, int]:
    """Return the runs with a wrong answer, with every difference at its threshold and with some of them there."""
    rng = np.random.default_rng([seed, 2])
    wrong = [0, 0]
    for i in range(runs):
        mixed = i % 2
        scenario = draw_scenario(rng, at_threshold=0.5 if mixed else 1.0)
        answers, _ = decide(scenario, rng, int(rng.choice([30, 100, 400])))
        wrong[mixed] += judge(scenario, answers)[2] > 0
    return wrong[0], wrong[1], runs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenarios", type=int, default=500)
    parser.add_argument("--runs", type=int, default=20, help="simulations of each scenario")
    parser.add_argument("--errors", type=int, default=10_000, help="simulations of the error")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        seeds = range(options.seed * 1_000_000, options.seed * 1_000_000 + options.scenarios)
        outcomes = list(pool.map(partial(simulate, runs=options.runs), seeds, chunksize=5))
        parts = list(pool.map(partial(err, runs=options.errors // 50), range(50)))
    print_lines(outcomes)
    at, mixed, runs = (sum(part[i] for part in parts) for i in range(3))
    lines = {"errors, all at the threshold": at / (runs / 2), "errors, mixed": mixed / (runs / 2), "runs": runs}
    print(json.dumps(lines))


def print_lines(outcomes: Sequence[Outcome]) -> None:
    groups = {
        "all": outcomes,
        **{f"{n} questions": [o for o in outcomes if len(o.scenario.away) == n] for n in (1, 2, 3, 4)},
        "history": [o for o in outcomes if o.scenario.history],
        "no history": [o for o in outcomes if not o.scenario.history],
        "graded": [o for o in outcomes if o.scenario.noise is not None],
        "pass or fail": [o for o in outcomes if o.scenario.noise is None],
        **{
            f"one question, {low} to {low + 1} planned differences away": [
                o for o in outcomes if len(o.scenario.away) == 1 and low <= abs(o.scenario.away[0]) < low + 1
            ]
            for low in range(4)
        },
    }
    for label, group in groups.items():
        if not group:
            continue
        totals = {name: np.sum([o.totals[name] for o in group], axis=0) for name in group[0].totals}
        line: dict[str, object] = {"group": label, "scenarios": len(group)}
        for name, total in totals.items():
            line[name] = {
                "power": round(total[0] / max(1, total[1]), 4),
                "wrong": int(total[2]),
                "times fewer": round(totals["fixed"][3] / total[3], 2),
            }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
