"""The list of figures: complete, in order, one wording, and seen wherever figures are shown."""

import io
import json

import pytest
from rich.console import Console

from osmosis.cli.core.render import draw_report, figure_table
from osmosis.engine.journal import Journal
from osmosis.engine.output import report_files
from osmosis.metrics import formats
from osmosis.metrics.compare import compare
from osmosis.metrics.figures import RUN, comparison_figures, figures, grouped, headlines
from osmosis.records.run.report import FailureCount, GroupReport, PassAtK, Report, ScoreReport
from osmosis.records.run.rollout import Category, Phase, Rollout, RolloutStatus, Score, Usage
from support.platform_data import report


def drawn(*renderables):
    console = Console(file=io.StringIO(), width=140)
    for one in renderables:
        one(console) if callable(one) else console.print(one)
    return " ".join(console.file.getvalue().split())


def test_every_figure_is_seen_in_every_output(tmp_path, make_plan):
    plan = make_plan(score_fns=["reward"])
    found = report(groups=[GroupReport(column="kind", value="<rank>", rows=7, scores=report().scores)])
    journal = Journal(tmp_path / "j")
    journal.open(plan)
    journal.close()
    terminal = drawn(lambda console: draw_report(console, found))
    assert "<rank> 0.700 0.550 to 0.830 7 rows, pass rate 70.0 %" in terminal
    markdown = report_files.markdown(journal, plan, found)
    assert "| \\<rank\\> | 0.700 | 0.550 to 0.830 | 7 rows, pass rate 70.0 % |" in markdown
    assert 'value="0.700 [0.550 to 0.830] 7 rows, pass rate 70.0 %"' in report_files.junit(journal, plan, found)
    assert "<td>&lt;rank&gt;</td>" in report_files.html(journal, plan, found)


def test_every_value_of_a_report_is_in_the_list():
    found = report(stopped="a budget", judge_usage=Usage(prompt_tokens=7, cost_usd=0.5), dataset_rows=200)
    known = {figure.name: figure for figure in figures(found)}
    assert list(known)[:4] == ["mean", "mean_scored", "pass_rate", "pass_at_1"]
    assert known["mean"].between == "0.550 to 0.830"
    assert (known["pass_rate"].text, known["pass_rate"].between) == ("70.0 %", "55.0 % to 83.0 %")
    assert known["completed"].detail == "of 30: 10 of 200 rows x 3"
    assert known["judge_cost_usd"].text == "$0.5000"
    assert known["stopped"].text == "a budget"
    assert {"pass_hat_2", "pass_hat_3", "flake_rate", "std", "median", "latency_ms", "tokens_per_rollout"} <= set(known)
    numbers = {json.dumps(figure.value) for figure in known.values() if figure.format != "text"}
    one = found.primary
    for value in (one.mean, one.mean_scored, one.pass_rate, one.flake_rate, one.std, one.failed):
        assert json.dumps(value) in numbers


def test_scores_come_one_by_one_and_the_run_last():
    second = report().primary.model_copy(update={"name": "length"})
    found = report(scores=[report().primary, second])
    assert [group for group, _ in grouped(figures(found))] == ["reward", "length", RUN]
    assert {figure.group for figure in headlines(found)} == {"reward", RUN}


def test_a_run_without_scores_has_the_figures_of_the_run():
    assert [group for group, _ in grouped(figures(report(scores=[])))] == [RUN]


def test_an_unknown_price_is_not_free():
    cost = next(f for f in figures(report(usage=Usage(prompt_tokens=1))) if f.name == "cost_usd")
    assert cost.text == "unknown"


def test_rows_with_too_few_attempts_are_named():
    point = PassAtK(k=3, value=0.5, rows=4)
    score = ScoreReport(name="f", passed=1, scored=2, failed=0, pass_at_k=[point])
    found = Report(
        rows=10, attempts=3, pass_threshold=1, total=30, completed=20, succeeded=20, failed=0, skipped=0, coverage=0.6,
        scores=[score],
    )  # fmt: skip
    assert next(f for f in figures(found) if f.name == "pass_at_3").detail == "over 4 rows"


def test_a_comparison_is_a_list_of_figures_too():
    def side(values):
        return [
            Rollout(
                rollout_id=f"{row}", row_index=row, attempt=0, status=RolloutStatus.SUCCESS,
                scores={"f": Score(name="f", value=value)},
            )
            for row, value in enumerate(values)
        ]  # fmt: skip

    found = compare(side([0, 0, 1, 1, None]), side([1, 1, 1, 0, 1]), threshold=1.0)
    shown = {figure.name: figure for figure in comparison_figures(found)}
    assert (shown["mean_a"].text, shown["mean_b"].text, shown["difference"].text) == ("0.500", "0.750", "+0.250")
    assert shown["difference"].detail == "too few rows to tell"
    assert shown["flips"].detail == "2 gained, 1 lost"
    assert shown["difference_failures_0"].detail == "failed: 1 in A, 0 in B"
    more = compare(side([0] * 9 + [None]), side([1] * 10), threshold=1.0)
    detail = next(figure.detail for figure in comparison_figures(more) if figure.name == "difference_failures_0")
    assert detail == "failed: 1 in A, 0 in B; both intervals hold in 95 %"
    assert shown["pairs"].detail.endswith("; scored in A alone 0, in B alone 1")
    assert str(found).startswith("0.750 vs 0.500, difference +0.250, too few rows")
    assert "flips 3 2 gained, 1 lost" in drawn(figure_table("f", list(comparison_figures(found))))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 ms"), (840, "840 ms"), (12_340, "12.3 s"), (250_000, "4 min 10 s"), (7_500_000, "2 h 5 min")],
)
def test_durations(value, text):
    assert formats.duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (999, "999 B"), (1_400_000, "1.4 MB"), (5 * 1024**3, "5.4 GB")]
)
def test_sizes(value, text):
    assert formats.size(value) == text


def test_money_and_what_is_missing():
    assert (formats.dollars(0.0), formats.dollars(1234.5)) == ("$0", "$1,234.50")
    assert {formats.score(None), formats.percent(None), formats.number(None), formats.interval(None)} == {"–"}
    assert formats.signed(-0.0001) == "+0.000"


def test_dots_after_failed_rows_mean_that_there_are_more_of_them():
    many = FailureCount(phase=Phase.SCORE, category=Category.SCORE_ERROR, count=9, example="no", rows=[1, 2])
    more = many.model_copy(update={"rows": list(range(8))})
    terminal = drawn(lambda console: draw_report(console, report().model_copy(update={"failures": [many]})))
    assert "1, 2" in terminal
    assert "1, 2 ..." not in terminal
    assert "3, 4 ..." in drawn(lambda console: draw_report(console, report().model_copy(update={"failures": [more]})))


def test_a_duration_that_nobody_measured_is_not_shown():
    for measured in (0.0, 1500.0):
        names = {figure.name for figure in figures(report(duration_ms=measured))}
        assert ("duration_ms" in names) is bool(measured)
