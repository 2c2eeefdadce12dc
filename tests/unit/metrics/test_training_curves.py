"""Names and order of curves, and a curve as a line of text."""

from __future__ import annotations

from osmosis.metrics.training import curve_info, in_order, sparkline


def test_reward_first_unknown_last() -> None:
    assert in_order(["zebra", "train/lr", "eval/validation/reward", "rollout/raw_reward"]) == [
        "rollout/raw_reward",
        "eval/validation/reward",
        "train/lr",
        "zebra",
    ]
    assert curve_info("zebra").title == "zebra"
    assert curve_info("rollout/raw_reward").name == "training_reward"


def test_a_curve_in_a_line() -> None:
    assert sparkline([]) == ""
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert len(sparkline(list(range(1000)), width=10)) == 10
