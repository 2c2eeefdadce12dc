"""Questions about arms, answered while their runs grow. The chance of a false answer is distributed over the looks
(alpha spending), and over the questions by Holm's procedure, which may be repeated at each look (Maurer and Bretz,
Statistics in Biopharmaceutical Research 5, 2013). A question that the rest of the budget would hardly answer is given
up, which only makes false answers rarer."""

import math
import random
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist

from osmosis.base.stats import BoundedMean
from osmosis.errors import UsageError
from osmosis.metrics.intervals import ALPHA, levels
from osmosis.records.run.study import Question, Stage, Study

LOOKS = (0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.17, 0.24, 0.34, 0.5, 0.7, 1.0)
"""Shares of the largest number of rollouts: a large difference is seen early, a small one late."""
FIRST_ROWS = 20
HOPELESS = 0.15
"""A question is given up when its chance to be answered within the budget falls below this."""
SETTLED_SHARE = 2 / 3
"""How often settled rows are run for each time that others are."""
_QUESTION = re.compile(r"\s*(\S+)\s*(>=|<=|>|<)\s*(\S+)(?:\s+([+-])\s*(\d*\.?\d+))?\s*")
_NORMAL = NormalDist()


def parse_question(text: str) -> Question:
    match = _QUESTION.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a question", hint='"A >= B - 0.02", with spaces around the minus')
    left, sign, right, direction, points = match.groups()
    margin = float(points or 0) * (1 if direction == "-" else -1)
    if sign in ("<=", "<"):
        left, right, margin = right, left, -margin
    return Question(left=left, right=right, margin=margin or 0.0)


def order_rows(rows: Sequence[int], settled: Collection[int], seed: int = 0) -> list[int]:
    """Return the rows as they are run: at random, and settled ones so that each beginning has its share of them."""
    shuffled = random.Random(seed).sample(list(rows), len(rows))
    calm = [row for row in shuffled if row in settled]
    lively = [row for row in shuffled if row not in settled]
    pace = SETTLED_SHARE * len(calm) / max(1, len(lively))
    due = {row: (i + 0.5) / pace for i, row in enumerate(calm)} | {row: i + 0.5 for i, row in enumerate(lively)}
    return sorted(shuffled, key=lambda row: due[row])


def weigh_rows(study: Study, rows: int) -> list[float]:
    """Return what each of the first rows counts, so that they stand for all: 1 where no row is settled."""
    settled = set(study.settled)
    share = len(settled) / len(study.order)
    calm = sum(row in settled for row in study.order[:rows])
    weights = share * rows / max(1, calm), (1 - share) * rows / max(1, rows - calm)
    return [weights[row not in settled] for row in study.order[:rows]]


def plan_stages(rows: int, rollouts: int) -> list[Stage]:
    """Return the looks: up to all rows, then more attempts at each, at most so many rollouts of an arm."""
    total = rollouts // rows * rows if rollouts >= rows else rollouts
    stages: list[Stage] = []
    for share in LOOKS:
        goal = round(share * total)
        stage = Stage(rows=goal) if 0 < goal <= rows else Stage(rows=rows, attempts=max(1, round(goal / rows)))
        is_more = not stages or stage.rollouts > stages[-1].rollouts
        if is_more and (goal >= FIRST_ROWS or share == 1):
            stages.append(stage)
    return stages


def answer_questions(study: Study, changes: Mapping[int, Sequence[float]], scale: float) -> Study:
    """Return the study after its next look. `changes`: of each open question, by its number, the differences of the
    rows' means, left minus right, in the study's order; `scale`: the largest possible one."""
    look = study.due
    assert look is not None
    questions = list(study.questions)
    shares = tuple(round(stage.rollouts / study.stages[-1].rollouts, 2) for stage in study.stages)
    tests = {i: _Test(questions[i], values, weigh_rows(study, len(values)), scale) for i, values in changes.items()}
    unanswered = sum(not question.is_answered for question in questions)
    for i in sorted(tests, key=lambda i: tests[i].p_value):
        test = tests[i]
        ends = look_levels(shares, ALPHA / unanswered)
        update = test.to_dict()
        if test.is_below(ends[look]):
            update["answer"] = "yes" if test.is_above else "no"
            unanswered -= 1
        elif look == len(shares) - 1:
            update |= {"answer": "undecided", "reason": "the budget is used up"}
        elif (chance := test.predict(shares[look], ends[-1])) < HOPELESS:
            update |= {"answer": "undecided", "reason": f"the rest would answer it with a chance of {chance:.0%}"}
        if "answer" in update:
            update["interval"] = test.tested.interval(1 - ends[look])
        questions[i] = questions[i].model_copy(update=update)
    stages = [stage.model_copy(update={"done": stage.done or i == look}) for i, stage in enumerate(study.stages)]
    return study.model_copy(update={"questions": questions, "stages": stages})


@lru_cache(1024)
def look_levels(shares: tuple[float, ...], alpha: float) -> list[float]:
    """Return the two-sided p-value below which each look ends a question. More is spent early than in
    `--until-decided`, because the end is rarely reached (Lan and DeMets 1983, their function for Pocock's bounds)."""
    return levels(shares, alpha, spending=lambda share, alpha: alpha * math.log1p((math.e - 1) * min(1.0, share)))


class _Test:
    def __init__(self, question: Question, changes: Sequence[float], weights: Sequence[float], scale: float) -> None:
        values = [weight * change for weight, change in zip(weights, changes, strict=True)]
        reach = max(weights) * scale
        self.tested = BoundedMean(((value, 1) for value in values), -reach, reach, mid=True)
        self._rows, self._distance = len(values), self.tested.mean + question.margin
        tails = self.tested.tails(-question.margin)
        self.p_value, self.is_above = tails.p_value, tails.above < tails.below
        squares = math.fsum((value - self.tested.mean) ** 2 for value in values)
        self._error = math.sqrt(squares / max(1, self._rows - 1) / self._rows)

    def is_below(self, level: float) -> bool:
        return self.p_value < level and 0.5**self._rows < level

    def predict(self, share: float, last_level: float) -> float:
        """Return the chance that the last look answers the question, by what is seen, with no opinion before."""
        if not self._error:
            return 1.0
        z, bound = abs(self._distance) / self._error, _NORMAL.inv_cdf(1 - last_level / 2)
        return _NORMAL.cdf((z - bound * math.sqrt(share)) / math.sqrt(1 - share))

    def to_dict(self) -> dict[str, object]:
        return {"rows": self._rows, "difference": self.tested.mean, "p_value": self.p_value}
