"""The order of rows: from the seed alone, no row twice in a step, every row equally often over enough passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from osmosis.records.run.training import EnvironmentPlan
from osmosis.training.protocol.plans import TrainerPlan, rows_of_step


def test_a_step_has_the_same_rows_whoever_asks_and_none_twice() -> None:
    rows = [3, 1, 4, 15, 9, 2, 6]
    for step in range(1, 10):
        found = rows_of_step(rows, 3, step, seed=5)
        assert found == rows_of_step(rows, 3, step, seed=5)
        assert len(set(found)) == 3
    assert [rows_of_step(rows, 3, n, 5) for n in range(1, 7)] != [rows_of_step(rows, 3, n, 6) for n in range(1, 7)]


def test_passes_differ_and_leave_out_different_rows() -> None:
    rows = list(range(7))
    counts = Counter(row for step in range(1, 141) for row in rows_of_step(rows, 3, step, seed=0))
    assert set(counts) == set(rows)
    assert min(counts.values()) > 45  # 60 on average
    first, second = ([row for n in (a, a + 1) for row in rows_of_step(rows, 3, n, 0)] for a in (1, 3))
    assert len(set(first)) == len(set(second)) == 6
    assert first != second


def environment(name: str, share: float, start: int, size: int) -> EnvironmentPlan:
    rows = list(range(start, start + size))
    return EnvironmentPlan(name=name, share=share, start=start, rows=rows, validation_rows=[], test_rows=[])


def mixture(*sizes: int, shares: Sequence[float], batch: int, **more: object) -> TrainerPlan:
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    return TrainerPlan.model_validate(
        {
            **{"run": "r", "model_path": "m", "output_dir": "o", "steps": 100, "rows_per_step": batch, "lr": 1e-3},
            **{"max_prompt_length": 1, "max_response_length": 1, "rows": list(range(sum(sizes)))},
            "environments": [
                environment(str(at), share, start, size)
                for at, (share, start, size) in enumerate(zip(shares, starts, sizes, strict=True))
            ],
            **more,
        }
    )


def test_environments_are_drawn_by_weight_from_the_seed() -> None:
    plan = mixture(20, 10, shares=[0.75, 0.25], batch=4)
    steps = [plan.rows_of(step) for step in range(1, 101)]
    assert steps == [plan.rows_of(step) for step in range(1, 101)]
    assert steps != [plan.model_copy(update={"seed": 1}).rows_of(step) for step in range(1, 101)]
    assert all(Counter(map(plan.find_environment, rows)) == {0: 3, 1: 1} for rows in steps)
    assert all(len(set(rows)) == 4 for rows in steps)
    assert [steps[at][3] for at in range(10)] != [steps[at][3] for at in range(10, 20)], "each pass has its own order"
    assert sorted(rows[3] for rows in steps[:10]) == list(range(20, 30))


def test_shares_that_no_step_can_have_are_those_of_several() -> None:
    plan = mixture(50, 50, 50, shares=[0.7, 0.2, 0.1], batch=3)
    for steps in range(1, 60):
        drawn = Counter(plan.find_environment(row) for step in range(1, steps + 1) for row in plan.rows_of(step))
        assert all(abs(drawn[at] - share * 3 * steps) <= 1 for at, share in enumerate(plan.shares))


def test_the_validation_reward_is_weighted() -> None:
    plan = mixture(20, 10, shares=[0.75, 0.25], batch=4)
    assert plan.mean_reward([(0, 1.0), (1, 0.0), (2, 0.5), (25, 1.0)]) == 0.75 * 0.5 + 0.25
    assert plan.mean_reward([(25, 1.0)]) == 1.0
    assert plan.mean_reward([]) is None


def test_a_run_of_one_environment_can_be_resumed_from_what_an_earlier_version_saved() -> None:
    plan = mixture(20, shares=[1.0], batch=4, environments=[])
    older = plan.model_dump(mode="json")
    del older["environments"]
    assert TrainerPlan.model_validate(older).fingerprint == plan.fingerprint
    assert mixture(20, shares=[1.0], batch=4).fingerprint != plan.fingerprint
