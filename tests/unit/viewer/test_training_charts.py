"""The charts of training runs: alone, overlaid, smoothed."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from osmosis.errors import UsageError
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.status import RunStatus
from osmosis.viewer import routes
from osmosis.viewer.charts import ChartedRun, build_charts
from osmosis.viewer.page import Page, QueryParams, build_environment
from osmosis.viewer.run_source import RunSettings, RunState
from support.kept_run import KeptRun, Shelf

REWARD = "rollout/raw_reward"


def test_a_curve_and_the_values_of_its_steps() -> None:
    run = ChartedRun("a", "/runs/a", {"loss": [(1, 2.0), (3, 1.0), (5, 0.0)]}, [(3, "a-step-3")])
    ((group, (chart,)),) = build_charts([run]).groups
    assert (group, chart.title, chart.first, chart.latest, chart.last_step) == ("Other", "loss", "2", "0", 5)
    assert chart.lines == [(0, "70.0,10.0 330.0,80.0 590.0,150.0", "")]
    assert chart.ticks == [(10.0, "2"), (80.0, "1"), (150.0, "0")]
    assert [(column.title, column.url) for column in chart.columns][1] == ("step 3: 1", "/runs/a/rollouts?step=3")
    assert [(column.left, column.width) for column in chart.columns] == [(70.0, 130.0), (200.0, 260.0), (460.0, 130.0)]
    assert chart.marks == [(330.0, "a-step-3")]


def test_charts_stand_in_groups_and_what_never_changes_is_folded_away() -> None:
    curves = {key: [(step, float(step)) for step in range(1000)] for key in ("train/lr", REWARD, "train/kl")}
    charts = build_charts([ChartedRun("a", "/runs/a", {**curves, "rollout/forks": [(0, 0.0), (1, 0.0)]})])
    titles = [(group, [chart.title for chart in members]) for group, members in charts.groups]
    assert titles == [("Reward", ["Training reward"]), ("Update", ["KL", "Learning rate"])]
    assert charts.constant == [("Forks", "0")]
    columns = charts.groups[0][1][0].columns
    assert len(columns) <= 120
    assert columns[-1].title == "step 999: 999"


def test_smoothing_keeps_the_points_behind_the_line() -> None:
    run = ChartedRun("a", "/runs/a", {"loss": [(1, 0.0), (2, 1.0)]})
    ((_, (chart,)),) = build_charts([run], "some").groups
    ((_, smoothed, behind),) = chart.lines
    assert (smoothed, behind) == ("70.0,150.0 590.0,62.5", "70.0,150.0 590.0,10.0")


def training(name: str, rewards: Sequence[float], lr: float) -> KeptRun:
    state = RunState(f"/runs/{name}", name, "training", RunStatus.FINISHED, "tiny", 2, 2, created_at=name)
    points = [MetricPoint(key=REWARD, step=step, value=value) for step, value in enumerate(rewards, 1)]
    return KeptRun(state, curve=points, fixed=RunSettings({"training": {"lr": lr}, "seed": 1}, "Fixed", ()))


def test_training_runs_are_compared_on_one_page() -> None:
    runs = {"a": training("a", [0.25, 0.5], 0.1), "b": training("b", [0.25, 0.75, 1.0], 0.2)}
    library = Shelf(runs)
    page = routes.build_page(library, "/compare", QueryParams([("run", "a"), ("run", "b"), ("smooth", "more")]))
    assert isinstance(page, Page)
    text = build_environment().get_template(page.template).render(**page.values)
    plain = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert "Best training reward 0.500 1.000" in plain
    assert "training.lr 0.1 0.2" in plain
    assert "<title>step 2: a 0.5, b 0.75</title>" in text
    assert 'href="?run=a&amp;run=b#curves"' in text
    runs["b"].run = replace(runs["b"].run, kind="eval")
    with pytest.raises(UsageError, match="nothing in common"):
        routes.build_page(library, "/compare", QueryParams([("run", "a"), ("run", "b")]))
