"""Answer questions about arms while their runs grow. The chance of a false answer is spent over the looks (alpha
spending) and over the questions by Holm's procedure, repeated at each look (Maurer and Bretz, Statistics in
Biopharmaceutical Research 5, 2013). A question that the budget would hardly answer is given up."""

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

from osmosis.base.stats import BoundedMean
from osmosis.errors import UsageError, ValidationError
from osmosis.metrics.formats import p_value
from osmosis.metrics.intervals import ALPHA, levels, scale_of
from osmosis.metrics.planning import Pilot, pilot_of, scores_by_row
from osmosis.records.run.report import Bounds
from osmosis.records.run.rollout import Rollout, RolloutStatus
from osmosis.records.run.study import Question, Stage, Study

LOOKS = (0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.17, 0.24, 0.34, 0.5, 0.7, 1.0)
"""Shares of the largest number of rollouts: a large difference is seen early, a small one late."""
FIRST_ROWS = 20
HOPELESS = 0.15  # A question is given up when its chance to be answered within the budget falls below this
SETTLED_SHARE = 2 / 3  # How often settled rows are run for each time that others are
HISTORY = 5  # Newest runs over the dataset that tell which of its rows are settled
MOST_ROWS = 10_000
EVEN = 0.25  # Variance of passing half of the time, the largest there is
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


PastRun = tuple[Mapping[int, Sequence[float]], float]
"""Scores of each row in an earlier run, and the threshold from which on they passed."""
ScoreFacts = tuple[str, Mapping[str, Bounds]]  # Name of a run's primary score, and the declared bounds of its scores


class StudySource(Protocol):
    """The store of the rollouts: journals of this machine, or on a platform."""

    def rollouts(self, run: str) -> Sequence[Rollout]: ...
    def score_facts(self, run: str) -> ScoreFacts: ...


@dataclass
class Growth:
    """Rows and attempts that the run of an arm must have; `left`: US dollars that it may have cost by then."""

    arm: str
    run: str
    rows: list[int]
    attempts: int
    missing: Mapping[int, int]  # Attempts that rows lack
    cost: float  # US dollars that it has cost so far
    left: float | None
    error: str | None = None


def slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60]


def check_words(study: Study, draft: Study) -> None:
    """Raise UsageError when the study was begun for something else."""
    if changed := [key for key, value in draft.facts.items() if study.facts.get(key) != value]:
        message = f"{study.name} began with other values of {', '.join(changed)}; its error rate holds for those"
        raise UsageError(message, hint="--name NAME begins another one")


def begin_study(draft: Study, rows: Sequence[int]) -> Study:
    """Return the study of these questions and arms, with its runs and looks."""
    limits, arms = draft.limits, draft.arms
    equal = {label: next(k for k, v in arms.items() if v == own) for label, own in arms.items()}
    slugs = {first: slug(first)[:34] for first in equal.values()}
    for i, first in enumerate(slugs):
        if list(slugs.values()).count(slugs[first]) > 1:
            slugs[first] = f"{slugs[first][:30]}-{i + 1}"
    runs = {label: f"{draft.name}--{slugs[first]}" for label, first in equal.items()}
    usable, most, count = list(rows[:MOST_ROWS]), limits.max_rollouts, len(set(runs.values()))
    each = len(usable) if most is None else most // count
    if not usable or not each:
        message = f"{len(usable)} rows and {most} rollouts are too few for {count} arms"
        raise ValidationError(message, hint="--limit, --max-rollouts")
    questions = [Question(left=q.left, right=q.right, margin=q.margin) for q in draft.questions]
    begun = {"questions": questions, "order": usable, "stages": plan_stages(len(usable), each), "runs": runs}
    return draft.model_copy(update={**begun, "is_planned": not limits.max_cost})


def settle_rows(study: Study, history: Iterable[PastRun]) -> Study:
    """Return the study with its rows in order; settled are those that earlier runs always passed, or never."""
    passed: dict[int, list[bool]] = {}
    for rows, threshold in history:
        for row, scores in rows.items():
            passed.setdefault(row, []).extend(score >= threshold for score in scores)
    usable = set(study.order)
    settled = sorted(row for row, tries in passed.items() if row in usable and len(tries) > 1 and len(set(tries)) == 1)
    return study.model_copy(update={"order": order_rows(study.order, settled), "settled": settled})


def announce(study: Study) -> Iterator[str]:
    last, arms = study.stages[-1], {study.runs[label]: changes for label, changes in study.arms.items()}
    for question in study.questions:
        yield f"  {question.text}" + (f": {question.answer}" if question.answer else "")
    for name, changes in arms.items():
        yield f"  {name}: {', '.join(f'{key} {value}' for key, value in changes.items())}"
    settled = f"; {len(study.settled):,} rows are settled by earlier runs" if study.settled else ""
    most = f"{len(arms):,} arms, at most {last.rows:,} rows x {last.attempts} in each"
    yield f"{most}: {study.planned_rollouts:,} rollouts{settled}"
    pilot = Pilot(last.rows, last.attempts, 0.0, EVEN, 0.0, (0.0, 1.0))
    yield f"{_reach(pilot, last)}, if half of the attempts pass; sooner where arms agree"


def count_missing(rollouts: Iterable[Rollout], rows: Collection[int], attempts: int) -> dict[int, int]:
    have = Counter(rollout.row_index for rollout in rollouts if rollout.status is not RolloutStatus.SKIPPED)
    return {row: attempts - have[row] for row in rows if have[row] < attempts}


def cost_of(rollouts: Iterable[Rollout]) -> float:
    return sum(rollout.usage.cost_usd or 0.0 for rollout in rollouts)


def list_growths(study: Study, source: StudySource) -> Iterator[Growth]:
    """Yield what each arm of an open question lacks for the next look; nothing when none is due."""
    if study.due is None:
        return
    stage, max_cost = study.stages[study.due], study.limits.max_cost
    rows = sorted(study.order[: stage.rows])
    for name, arm in {study.runs[label]: label for label in study.open_arms}.items():
        own = source.rollouts(name)
        if missing := count_missing(own, rows, stage.attempts):
            others = set(study.runs.values()) - {name}
            left = None if max_cost is None else max_cost - sum(cost_of(source.rollouts(other)) for other in others)
            yield Growth(arm, name, rows, stage.attempts, missing, cost_of(own), left)


def take_look(study: Study, source: StudySource, say: Callable[[str], object]) -> Study:
    """Return the study after its next look, for which its runs lack nothing."""
    due = study.due
    assert due is not None
    stage, open_arms = study.stages[due], study.open_arms
    if not study.is_planned:
        return _plan(study, stage, source, say)
    primary, bounds = source.score_facts(study.runs[open_arms[0]])
    score = study.limits.score or primary
    rollouts = {label: source.rollouts(study.runs[label]) for label in open_arms}
    if silent := [k for k, own in rollouts.items() if not any(score in rollout.scores for rollout in own)]:
        message = f"no rollout of {silent[0]} has a score {score}"
        raise ValidationError(message, hint=f"osmosis eval show {study.runs[silent[0]]}")
    scores = {label: scores_by_row(own, score) for label, own in rollouts.items()}
    values = [value for rows in scores.values() for row in rows.values() for value in row]
    scale = scale_of((min(values), max(values)), bounds.get(score))
    if scale is None:
        message = f"{score} has values between {min(values):g} and {max(values):g}, and its bounds are unknown"
        raise ValidationError(message, hint="write score_min and score_max into [evaluation] of the config")
    changes = {
        i: [_change(scores[q.right].get(row), scores[q.left].get(row)) for row in study.order[: stage.rows]]
        for i, q in enumerate(study.questions)
        if q.answer is None
    }
    after = answer_questions(study, changes, scale[1] - scale[0])
    arms = len({study.runs[label] for label in open_arms})
    say(f"look {due + 1} of {len(study.stages)}: {stage.rows:,} rows x {stage.attempts}, {arms} arms")
    for i, row_changes in changes.items():
        q = after.questions[i]
        say(f"  {q.text}: {q.answer or 'open'}, difference {q.difference or 0.0:+.3f}, p {p_value(q.p_value or 0.0)}")
        if due == 0:
            pilot = pilot_of([list(scores[side].values()) for side in (q.left, q.right)], row_changes, scale)
            say(f"    by these rows: {_reach(pilot, study.stages[-1])}")
    return after


def _plan(study: Study, stage: Stage, source: StudySource, say: Callable[[str], object]) -> Study:
    """Return the study with the looks that the budget in USD reaches, now that the first rows have a cost."""
    limits, most = study.limits, study.stages[-1].rollouts
    spent = sum(cost_of(source.rollouts(name)) for name in set(study.runs.values()))
    if spent and limits.max_cost is not None:
        affordable = max(stage.rollouts, int(limits.max_cost / spent * stage.rollouts))
        most = affordable if limits.max_rollouts is None else min(most, affordable)
    stages = plan_stages(len(study.order), most)
    price = f"${spent / stage.rollouts:.4f} for an attempt in all arms" if spent else "nothing was priced"
    say(f"{price}: at most {stages[-1].rows:,} rows x {stages[-1].attempts} in each arm")
    return study.model_copy(update={"stages": stages, "is_planned": True})


def _reach(pilot: Pilot, stage: Stage) -> str:
    difference = pilot.detectable(stage.rows, stage.attempts)
    return f"a difference of {difference:.2g} is decided in 4 of 5 cases" if difference else "too few rows to decide"


def _change(before: Sequence[float] | None, after: Sequence[float] | None) -> float:
    return sum(after) / len(after) - sum(before) / len(before) if before and after else 0.0
