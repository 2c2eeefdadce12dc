"""How often the search of `osmosis rollout branch` finds a planted fatal step, with simulated agents.

    python benchmarks/fatal_step.py [--rollouts 400] [--budget 40]

An agent works through the steps of a task. A planted rollout is good up to its fatal step and lost from there on. A
continuation from a step up to the fatal one has a good conversation: each further step loses it with some hazard, and
at the end it succeeds with the agent's rate. One from a later step is lost, and recovers with the chance of a rescue.
The search sees nothing but successes and failures.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from osmosis.local.branch import search_steps
from osmosis.metrics.fatal_step import CERTAIN

RATES = ((1.0, 0.0, 0.0), (0.9, 0.0, 0.05), (0.8, 0.01, 0.05), (0.7, 0.0, 0.1), (0.5, 0.0, 0.0))
"""Rate, hazard of each step, chance of a rescue."""
STEPS = (8, 20, 40)


@dataclass
class SimulatedAgent:
    source: Random
    steps: int
    fatal: int
    rate: float
    hazard: float
    rescue: float

    def continues(self, step: int) -> bool:
        is_lost = step > self.fatal
        for _ in range(step, self.steps + 1):
            is_lost = is_lost or self.source.random() < self.hazard
        return self.source.random() < (self.rescue if is_lost else self.rate)


@dataclass(frozen=True)
class Found:
    right: float
    near: float
    certain: float
    wrong: float
    continuations: float


def measure(agent: SimulatedAgent, counts: dict[int, tuple[int, int]], step: int, n: int) -> tuple[int, int]:
    passed, before = counts.get(step, (0, 0))
    return passed + sum(agent.continues(step) for _ in range(n - before)), n


def simulate(steps: int, cell: tuple[float, float, float], rollouts: int, budget: int, seed: int = 1) -> Found:
    source = Random(f"{seed} {steps} {cell}")
    right = near = certain = wrong = spent = 0
    for _ in range(rollouts):
        agent = SimulatedAgent(source, steps, source.randint(1, steps), *cell)
        counts: dict[int, tuple[int, int]] = {}
        found = search_steps(steps, counts, partial(measure, agent, counts), budget)
        spent += sum(n for _, n in counts.values())
        right += found.fatal_step == agent.fatal
        near += abs(found.fatal_step - agent.fatal) <= 1
        certain += found.chance >= CERTAIN
        wrong += found.chance >= CERTAIN and found.fatal_step != agent.fatal
    return Found(right / rollouts, near / rollouts, certain / rollouts, wrong / max(1, certain), spent / rollouts)


def lines(rollouts: int, budget: int) -> Iterator[str]:
    yield "| rate, hazard, rescue | steps | found | found or next to it | certain | of these wrong | continuations |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for cell in RATES:
        for steps in STEPS:
            found = simulate(steps, cell, rollouts, budget)
            shares = f"{found.right:.0%} | {found.near:.0%} | {found.certain:.0%} | {found.wrong:.1%}"
            yield f"| {', '.join(f'{value:g}' for value in cell)} | {steps} | {shares} | {found.continuations:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=400)
    parser.add_argument("--budget", type=int, default=40)
    options = parser.parse_args()
    for line in lines(options.rollouts, options.budget):
        print(line, flush=True)


if __name__ == "__main__":
    main()
