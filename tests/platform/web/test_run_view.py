from __future__ import annotations

from typing import Any

import pytest

from osmosis.platform import tables
from osmosis.platform.web.run_pages import row_ranges
from osmosis.platform.web.run_view import config_lines, curves, histogram, view
from osmosis.testing.platform_data import report


def run(**more: Any) -> tables.Run:
    known: dict[str, Any] = {
        "kind": "eval",
        "status": "running",
        "config": {"evaluation": {"n": 3}},
        "sampled_rows": 10,
    }
    return tables.Run(**{**known, "model_path": "openai/x", "rollout": "m", "dataset": "d", **more})


def test_before_the_first_report_the_total_comes_from_the_config() -> None:
    shown = view(run(progress={"stage": "environment", "completed": 0, "total": 0}), 0)
    assert (shown.total, shown.share, shown.cards) == (30, 0.0, [])
    assert dict(shown.steps)["environment"] == "now"
    assert dict(shown.steps)["checkout"] == "done"
    assert "training" not in dict(shown.steps)


def test_the_cards_are_the_headlines_and_the_tables_have_every_figure() -> None:
    shown = view(run(report=report().to_dict()), 30)
    cards = {card.name: card for card in shown.cards}
    assert (cards["mean"].text, cards["mean"].between) == ("0.700", "0.550 to 0.830")
    assert "tokens" in cards
    assert [group for group, _ in shown.groups] == ["reward", ""]
    assert sum(len(members) for _, members in shown.groups) > len(cards)


def test_alarms_are_shown_with_the_run() -> None:
    assert "stand-in" in view(run(model_path="offline/calculator"), 0).alarms[0]


def test_histogram_counts_every_value_once() -> None:
    values = sorted([0.0] * 5 + [0.5] * 3 + [1.0] * 10)
    bars = histogram(values, 1.0)
    shown = [bar for bar in bars if bar.height]
    assert [bar.title.split()[0] for bar in shown] == ["5", "3", "10"]
    assert [bar.passed for bar in shown] == [False, False, True]
    assert max(bar.height for bar in bars) == 120


@pytest.mark.parametrize("values", [[], [1.0], [0.5, 0.5]])
def test_no_histogram_of_one_value(values: list[float]) -> None:
    assert histogram(values, 1.0) == []


def test_curves() -> None:
    points = [tables.MetricPoint(key="loss", step=step, value=value) for step, value in ((1, 2.0), (3, 1.0), (5, 0.0))]
    found = curves(points)[0]
    assert (found.first, found.latest, found.low, found.high, found.steps) == (2.0, 0.0, 0.0, 2.0, 5)
    assert found.points == "10.0,10.0 300.0,80.0 590.0,150.0"


def test_config_is_shown_in_the_order_of_the_file() -> None:
    lines = config_lines({"secrets": {"required": []}, "experiment": {"rollout": 'a"b'}, "evaluation": {}})
    assert [table for table, _ in lines] == ["experiment", "secrets"]
    assert lines[0][1] == [("rollout", '"a\\"b"')]


def test_row_ranges() -> None:
    assert row_ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert row_ranges(list(range(0, 400, 2))).endswith("… (200 rows)")
