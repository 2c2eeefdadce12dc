"""A row and a figure over local runs and runs of the platform."""

import json
from pathlib import Path
from typing import Any

import pytest

from osmosis.engine.journal import Journal
from osmosis.local.viewing.library import LocalLibrary
from osmosis.records.run.history import PastRun, RowCount, Trade, find_start, find_unbeaten
from osmosis.viewer import routes
from osmosis.viewer.history import HistoryQuery, build_history
from osmosis.viewer.page import QueryParams
from support.command_line import run_command
from support.kept_run import html_of
from support.platform_data import rollout, timeout
from support.stored_run import stored_run

RUNS = {"a": [1.0, 1.0], "b": [0.0, 1.0], "c": [0.0, 0.0], "d": [0.0, 0.0]}
"""Rewards of both attempts at row `seven`, the oldest run first."""


def keep(folder: Path, name: str, rewards: list[float], day: int, key: str = "seven") -> None:
    made = [rollout(7, number, reward, row_key=key) for number, reward in enumerate(rewards)]
    made.append(rollout(0, 0, 1.0, row_key="zero"))
    stored_run(folder / ".osmosis" / "runs" / name, made)
    path = folder / ".osmosis" / "runs" / name / "run.json"
    run = json.loads(path.read_text())
    run["created_at"] = f"2026-11-{day:02}T10:00:00+00:00"
    run["plan"]["provenance"] = {"git": {"commit": name * 40}}
    path.write_text(json.dumps(run))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for day, (name, rewards) in enumerate(RUNS.items(), 1):
        keep(tmp_path, name, rewards, day)
    return tmp_path


def go(folder: Path, *words: str) -> dict[str, Any]:
    done = run_command("eval", "history", "--here", "--json", *words, cwd=folder)
    assert done.code == 0, done.err
    return done.json


def test_a_row_is_followed_by_its_key_wherever_it_stood(runs: Path) -> None:
    keep(runs, "e", [1.0, 1.0], 5, key="another row")
    found = go(runs, "--row", "seven")
    assert [(one["name"], one["state"], one["passes"]) for one in found["items"]] == [
        ("a", "passed", "2 of 2"),
        ("b", "flaky", "1 of 2"),
        ("c", "failed", "0 of 2"),
        ("d", "failed", "0 of 2"),
        ("e", "-", ""),
    ]
    assert found["since"] == {"run": "c", "commit": "c" * 40, "state": "failed"}
    assert go(runs, "--row", "b:7")["since"] == found["since"], "a place in a run is the key of what stood there"


def test_a_figure_is_followed_with_its_interval(runs: Path) -> None:
    stored_run(runs / ".osmosis" / "runs" / "e", [rollout(0, 0, failure=timeout())], attempts=1)
    found = go(runs)
    assert found["metric"] == "reward:mean"
    assert [round(item["value"], 3) for item in found["items"] if "value" in item] == [1.0, 0.75, 0.5, 0.5]
    rates = go(runs, "--metric", "reward:pass_rate")
    assert all(item["low"] <= item["value"] <= item["high"] for item in rates["items"] if "value" in item)
    assert "completed" in rates["metrics"] or "tokens" in " ".join(rates["metrics"])


def test_runs_are_chosen_and_the_tagged_one_is_the_baseline(runs: Path) -> None:
    run_command("eval", "tag", "b", "baseline", "night", cwd=runs)
    run_command("eval", "tag", "c", "night", cwd=runs)
    found = go(runs, "--tag", "night")
    assert ([one["name"] for one in found["items"]], found["baseline"]) == (["b", "c"], "b")
    assert go(runs, "--baseline", "a")["baseline"] == "a"
    assert go(runs, "--model", "no such model")["items"] == []


def test_a_run_that_cannot_be_read_and_one_without_rollouts_do_not_stop_it(runs: Path) -> None:
    (runs / ".osmosis" / "runs" / "a" / "run.json").write_text("{")
    Journal(runs / ".osmosis" / "runs" / "d").rollouts_path.write_text("")
    found = go(runs, "--row", "seven")
    assert [one["name"] for one in found["items"]] == ["b", "c", "d"]
    assert found["since"]["run"] == "c"


def test_the_page_draws_what_the_record_says(runs: Path, tmp_path: Path) -> None:
    library = LocalLibrary([runs], tmp_path / "cache")
    view = routes.build_page(library, "history", QueryParams([("row", "seven"), ("metric", "reward:mean")]))
    ((dataset, chart, _),) = view.values["groups"]
    assert dataset == "data.jsonl"
    first, second, third, last = (mark["y"] for mark in chart.marks)
    assert first < second < third == last
    assert view.values["since"].name == "c"
    twin = json.loads(b"".join(routes.build_page(library, "history.json", QueryParams([("row", "seven")])).content))
    assert [one["row"]["passed"] for one in twin["found"]["runs"]] == [2, 1, 0, 0]


def test_runs_that_no_other_beats_are_marked(runs: Path, tmp_path: Path) -> None:
    assert [run["name"] for run in go(runs)["items"] if run["unbeaten"]] == ["a"]
    view = routes.build_page(LocalLibrary([runs], tmp_path / "cache"), "history", QueryParams([]))
    page = html_of(view)
    assert page.count(">unbeaten<") == 1

    def trade(mean: float, cost: float | None, time: float, score: str = "exact") -> Trade:
        return Trade(about=("rows", score), mean=mean, cost_usd=cost, latency_ms=time)

    trades = {
        "best": trade(0.9, 2.0, 900),
        "cheap": trade(0.8, 1.0, 900),
        "fast": trade(0.8, 2.0, 300),
        "beaten": trade(0.8, 2.0, 900),
        "twin": trade(0.9, 2.0, 900),
        "unpriced": trade(0.1, None, 9000),
        "alone": trade(0.1, 9.0, 9000, "other"),
        "failed": None,
    }
    assert find_unbeaten(trades) == {"best", "cheap", "fast", "twin"}


def test_every_dataset_has_a_chart_and_a_table_of_its_own(runs: Path, tmp_path: Path) -> None:
    stored_run(runs / ".osmosis" / "runs" / "e", [rollout(0, 0, 1.0)], dataset="other.jsonl")
    view = routes.build_page(LocalLibrary([runs], tmp_path / "cache"), "history", QueryParams([]))
    groups = {dataset: (chart, [run.name for run in members]) for dataset, chart, members in view.values["groups"]}
    assert (len(groups["data.jsonl"][0].marks), groups["data.jsonl"][1]) == (4, ["d", "c", "b", "a"])
    assert groups["other.jsonl"] == (None, ["e"]), "a chart of one run says nothing"


def test_a_row_that_no_run_has_is_said_to_be_nowhere(runs: Path, tmp_path: Path) -> None:
    view = routes.build_page(LocalLibrary([runs], tmp_path / "cache"), "history", QueryParams([("row", "nowhere")]))
    assert "No run has a rollout of this row." in html_of(view)


def test_rollouts_without_keys_are_found_by_what_their_row_holds(tmp_path: Path) -> None:
    one = rollout(3, 0, 1.0, hashes={"row": "0f3a"})
    one.row_key = None
    stored_run(tmp_path / ".osmosis" / "runs" / "old", [one])
    library = LocalLibrary([tmp_path], tmp_path / "cache")
    (run,) = build_history(library, HistoryQuery(row="0f3a"), patience_s=None).runs
    assert run.row == RowCount(row_index=3, passed=1, mean=1.0)


def test_since_is_the_start_of_an_unbroken_end() -> None:
    def run(name: str, row: RowCount | None) -> PastRun:
        return PastRun(id=name, name=name, row=row)

    good, bad = RowCount(row_index=0, passed=1), RowCount(row_index=0, unscored=1)
    assert find_start([]) is None
    assert find_start([run("a", None)]) is None
    found = find_start([run("a", good), run("b", bad), run("c", good), run("d", None), run("e", good)])
    assert found.name == "c"
    assert bad.state == "no score"


def test_a_failure_is_no_score(tmp_path: Path) -> None:
    stored_run(tmp_path / ".osmosis" / "runs" / "x", [rollout(1, 0, failure=timeout(), row_key="k")])
    (found,) = go(tmp_path, "--row", "k")["items"]
    assert found["state"] == "no score"
