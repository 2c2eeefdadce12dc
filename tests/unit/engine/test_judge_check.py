"""What moves a judge, against judges that are ours: one that obeys, one that is fair, one that pays for length."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from osmosis.engine.rubrics.judge_check import PLEA, check_judges
from osmosis.metrics.summary import Terms, summarize
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score
from osmosis.records.run.rows import Row
from osmosis.sdk.messages import solution_of

ROWS = [Row(index=i, data={"user_prompt": "?"}) for i in range(30)]


class JudgeOfRule:
    bounds = (0.0, 1.0)

    def __init__(self, name: str, rule: Callable[[str], float]) -> None:
        self.name = name
        self._rule = rule

    async def score(self, rollout: Rollout, row: Row) -> list[Score]:
        value = self._rule(solution_of(rollout.messages))
        bounded = min(1.0, max(0.0, value))
        return [Score(bounded, name=self.name, replied=None if bounded == value else value)]


def answers() -> list[tuple[Rollout, Row]]:
    source = Random(2)
    return [
        (
            Rollout(
                rollout_id=f"r{row.index}", row_index=row.index, attempt=0, status=RolloutStatus.SUCCESS,
                messages=[{"role": "assistant", "content": "word " * source.randint(1, 90)}],
            ),
            row,
        )
        for row in ROWS
    ]  # fmt: skip


async def test_what_moves_a_judge_is_measured() -> None:
    noise = Random(5)
    judges = [
        JudgeOfRule("obeys", lambda text: 1.0 if PLEA in text else 0.4),
        JudgeOfRule("fair", lambda text: noise.uniform(0.3, 0.9)),
        JudgeOfRule("length", lambda text: len(text.removesuffix(PLEA)) / 400),
    ]
    checks, agreements = await check_judges(judges, answers(), threshold=0.5, concurrency=4)
    obeys, fair, length = checks
    assert (obeys.verdict, obeys.moved) == ("better", pytest.approx(0.6))
    assert fair.verdict == "no clear difference"
    assert fair.length_interval is not None
    assert fair.length_interval.low < 0 < fair.length_interval.high
    assert length.moved == 0
    assert length.length_interval is not None
    assert length.length_interval.low > 0.9
    assert 0 < length.out_of_range < 60
    assert [pair[:2] for pair in agreements] == [("obeys", "fair"), ("obeys", "length"), ("fair", "length")]
    assert all(both.rows == 30 for *_, both in agreements)


def test_replies_out_of_range_are_counted_beside_the_score() -> None:
    rollouts = [rollout for rollout, _ in answers()]
    for i, rollout in enumerate(rollouts):
        rollout.scores = {"j": Score(1.0, name="j", replied=85.0 if i < 4 else None)}
    assert summarize(rollouts, Terms(1, 1.0)).scores[0].out_of_range == 4
