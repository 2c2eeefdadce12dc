"""The charts of training runs: alone, overlaid, smoothed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from osmosis.errors import UsageError
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.status import RunStatus
from osmosis.viewer import routes
from osmosis.viewer.charts import ChartedRun, build_charts
from osmosis.viewer.page import Page, QueryParams
from osmosis.viewer.run_source import RunSettings, RunState
from support.kept_run import KeptRun, Shelf, html_of, text_of

REWARD = "rollout/raw_reward"


def test_a_curve_and_the_values_of_its_steps() -> None:
    run = ChartedRun("a", "/runs/a", {"loss": [(1, 2.0), (3, 1.0), (5, 0.0)]}, [(3, "a-step-3")])
    ((group, (chart,)),) = build_charts([run]).groups
    assert (group, chart.info.title, chart.first, chart.latest, chart.last_step) == ("Other", "loss", "2", "0", 5)
    assert chart.lines == [(0, "84.0,10.0 337.0,80.0 590.0,150.0", "")]
    assert chart.ticks == [(150.0, "0"), (80.0, "1"), (10.0, "2")]
    assert [(column["title"], column["url"]) for column in chart.columns][1] == ("step 3: 1", "/runs/a/rollouts?step=3")
    assert [(column["left"], column["width"]) for column in chart.columns] == [
        (84.0, 126.5),
        (210.5, 253.0),
        (463.5, 126.5),
    ]
    assert chart.marks == [(337.0, "a-step-3")]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((0.23, 0.91), ["0", "0.5", "1"]),
        ((-0.0029, 0.0026), ["-0.004", "-0.002", "0", "0.002", "0.004"]),
        ((0.0, 9.9e-06), ["0", "5e-06", "1e-05"]),
        ((161.0, 325.0), ["100", "200", "300", "400"]),
        ((5e4, 6.1e6), ["0", "5M", "10M"]),
    ],
)
def test_an_axis_has_round_values_around_the_curve(values: tuple[float, float], texts: list[str]) -> None:
    run = ChartedRun("a", "/runs/a", {"loss": list(enumerate(values))})
    ((_, (chart,)),) = build_charts([run]).groups
    assert [text for _, text in chart.ticks] == texts


def test_charts_stand_in_groups_and_what_never_changes_is_folded_away() -> None:
    curves = {key: [(step, float(step)) for step in range(1000)] for key in ("train/lr", REWARD, "train/kl")}
    charts = build_charts([ChartedRun("a", "/runs/a", {**curves, "rollout/forks": [(0, 0.0), (1, 0.0)]})])
    titles = [(group, [chart.info.title for chart in members]) for group, members in charts.groups]
    assert titles == [("Reward", ["Training reward"]), ("Update", ["KL", "Learning rate"])]
    assert charts.constant == [("Forks", "0")]
    columns = charts.groups[0][1][0].columns
    assert len(columns) <= 120
    assert columns[-1]["title"] == "step 999: 999"


def test_smoothing_keeps_the_points_behind_the_line() -> None:
    run = ChartedRun("a", "/runs/a", {"loss": [(1, 0.0), (2, 1.0)]})
    ((_, (chart,)),) = build_charts([run], "some").groups
    ((_, smoothed, behind),) = chart.lines
    assert (smoothed, behind) == ("84.0,150.0 590.0,62.5", "84.0,150.0 590.0,10.0")


def training(name: str, rewards: Sequence[float], lr: float) -> KeptRun:
    state = RunState(f"/runs/{name}", name, "training", RunStatus.FINISHED, "tiny", 2, 2, created_at=name)
    points = [MetricPoint(key=REWARD, step=step, value=value) for step, value in enumerate(rewards, 1)]
    return KeptRun(state, curve=points, fixed=RunSettings({"training": {"lr": lr}, "seed": 1}, "Fixed", ()))


def test_training_runs_are_compared_on_one_page() -> None:
    runs = {"a": training("a", [0.25, 0.5], 0.1), "b": training("b", [0.25, 0.75, 1.0], 0.2)}
    library = Shelf(runs)
    page = routes.build_page(library, "/compare", QueryParams([("run", "a"), ("run", "b"), ("smooth", "more")]))
    assert isinstance(page, Page)
    text = html_of(page)
    plain = text_of(text)
    assert "Best training reward 0.500 1.000" in plain
    assert "training.lr 0.1 0.2" in plain
    assert "<title>step 2: a 0.5, b 0.75</title>" in text
    assert 'href="?run=a&amp;run=b#curves"' in text
    runs["b"].run = replace(runs["b"].run, kind="eval")
    with pytest.raises(UsageError, match="nothing in common"):
        routes.build_page(library, "/compare", QueryParams([("run", "a"), ("run", "b")]))
