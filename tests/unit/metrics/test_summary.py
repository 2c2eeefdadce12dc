"""Figures of a run: failures are zeros in one mean and nothing in the other, and never hidden."""

import pytest

from osmosis.metrics.figures import figures
from osmosis.metrics.summary import GROUPS_SHOWN, Summary, Terms, summarize
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout, RolloutStatus, Score, Usage


def rollout(row, attempt, value=None, *, status="success", name="f", **more):
    failure = None
    if status == "failed":
        failure = Failure(phase=Phase.MODEL, category=Category.RATE_LIMIT, message="too fast")
    scores = {} if status == "failed" else {name: Score(name=name, value=value)}
    if value is None and status == "success":
        scores[name].failure = Failure(phase=Phase.SCORE, category=Category.SCORE_ERROR, message="broke")
    given = {
        "rollout_id": f"{row}-{attempt}",
        "row_index": row,
        "attempt": attempt,
        "scores": scores,
        "failure": failure,
    }
    return Rollout(**given, status=RolloutStatus(status), **more)


def test_three_numbers_always(make_plan):
    plan = make_plan(attempts=2)
    found = [rollout(0, 0, 1.0), rollout(0, 1, 0.5), rollout(1, 0, status="failed"), rollout(1, 1, None)]
    report = summarize(found, plan)
    score = report.primary
    assert score.mean == pytest.approx(1.5 / 4)
    assert score.mean_scored == pytest.approx(0.75)
    assert report.coverage == 0.5
    assert (score.scored, score.failed, score.passed) == (2, 2, 1)
    assert (score.min, score.max, score.median) == (0.0, 1.0, 0.25)
    assert score.std == pytest.approx(0.4146, abs=1e-4)
    assert {(f.phase.value, f.category.value): f.count for f in report.failures} == {
        ("model", "rate_limit"): 1,
        ("score", "score_error"): 1,
    }


def test_pass_at_k_over_rows_with_enough_attempts_and_flakes(make_plan):
    plan = make_plan(attempts=4, ks=[2])
    found = [rollout(r, a, 1.0 if a < c else 0.0) for r, c in enumerate([4, 2, 0]) for a in range(4)]
    score = summarize(found, plan).primary
    assert [p.k for p in score.pass_at_k] == [1, 2, 3]
    assert score.pass_at_k[1].value == pytest.approx((1 + 5 / 6 + 0) / 3)
    assert score.pass_hat_k[1].value == pytest.approx((1 + 1 / 6 + 0) / 3)
    assert score.flake_rate == pytest.approx(1 / 3)
    assert all(0 <= p.interval.low <= p.value <= p.interval.high <= 1 for p in score.pass_at_k)


def test_the_mean_of_a_yes_or_no_score_is_its_rate_with_the_same_interval(make_plan):
    plan = make_plan(attempts=4)
    found = [rollout(r, a, 1.0 if a < c else 0.0) for r, c in enumerate([4, 3, 4, 2]) for a in range(4)]
    score = summarize(found, plan).primary
    assert score.mean_interval == score.pass_rate_interval == score.pass_at_k[0].interval
    assert 0 < score.mean_interval.low < score.mean < score.mean_interval.high <= 1


def test_five_grades_on_a_scale_that_nobody_declared_have_no_interval(make_plan):
    grades = [1.0, 1.0, 1.0, 0.95, 1.0]
    score = summarize([rollout(r, 0, v) for r, v in enumerate(grades)], make_plan()).primary
    assert (score.mean_interval, score.bounds) == (None, None)
    many = summarize([rollout(r, 0, v) for r, v in enumerate(grades * 4)], make_plan()).primary
    assert (many.bounds, many.assumed_bounds) == (None, pytest.approx((0.9, 1.05)))
    points = [rollout(r, 0, 10 * v) for r, v in enumerate(grades)]
    found = summarize(points, make_plan(score_bounds={"f": (0, 10)})).primary
    assert found.bounds == (0.0, 10.0)
    assert 4 < found.mean_interval.low < found.mean < found.mean_interval.high <= 10


def test_rows_weigh_the_same_however_many_attempts_they_have(make_plan):
    """A run that was extended, or stopped half-way, is no other figure than pass@1."""
    values = [(0, 0, 0.0), *((1, a, 1.0) for a in range(9)), (2, 0, 1.0), (2, 1, 0.0)]
    score = summarize([rollout(*value) for value in values], make_plan(attempts=9)).primary
    assert score.mean == score.pass_rate == score.pass_at_k[0].value == pytest.approx(0.5)
    assert score.mean_interval == score.pass_rate_interval == score.pass_at_k[0].interval


def test_one_attempt_has_no_pass_at_k(make_plan):
    assert summarize([rollout(0, 0, 1.0)], make_plan()).primary.pass_at_k == []


def test_skipped_rollouts_count_nowhere(make_plan):
    report = summarize([rollout(0, 0, 1.0), rollout(1, 0, 0.0, status="skipped")], make_plan())
    assert report.skipped == 1
    assert report.primary.mean == 1.0


def test_a_score_first_seen_late_counts_as_missing_before(make_plan):
    found = [rollout(0, 0, status="failed"), rollout(1, 0, 1.0), rollout(2, 0, 1.0, name="g")]
    report = summarize(found, make_plan())
    f, g = report.scores
    assert (f.name, f.scored, f.failed, f.mean) == ("f", 1, 2, pytest.approx(1 / 3))
    assert (g.name, g.scored, g.failed, g.mean) == ("g", 1, 2, pytest.approx(1 / 3))


def test_a_journal_line_counts_like_its_rollout(make_plan):
    one = rollout(3, 1, None, usage=Usage(prompt_tokens=5, completion_tokens=2, cost_usd=0.5), duration_ms=12.0)
    one.scores["f"].usage = Usage(prompt_tokens=7, cost_usd=0.25)
    failed = rollout(4, 0, status="failed")
    finished = [one, failed, rollout(5, 0, 1.0), rollout(6, 0, status="skipped")]
    report = summarize(finished, make_plan())
    assert report.judge_usage.prompt_tokens == 7
    assert summarize([Rollout.model_validate_json(r.to_line()) for r in finished], make_plan()) == report


def test_unknown_cost_is_not_free(make_plan):
    report = summarize([rollout(0, 0, 1.0, usage=Usage(prompt_tokens=5))], make_plan())
    assert report.usage.cost_usd is None
    assert report.usage.prompt_tokens == 5


def test_running_figures_agree_with_the_final_ones(make_plan):
    summary = Summary(make_plan(attempts=1), score_names=["f"])
    for i in range(50):
        summary.add(rollout(i, 0, i % 3 / 2))
    running, final = summary.running(), summary.report()
    assert running.primary.mean == pytest.approx(final.primary.mean)
    assert running.primary.pass_rate == final.primary.pass_rate
    assert running.completed == final.completed == 50


def test_summaries_under_other_terms_are_not_merged(make_plan):
    with pytest.raises(ValueError, match="threshold"):
        Summary(make_plan()).merge(Summary(Terms(attempts=1, pass_threshold=0.5)))


def test_a_sum_loses_no_digit_to_its_order(make_plan):
    found = [rollout(row, 0, value) for row, value in enumerate([1e16, 1.0, -1e16, 1.0])]
    assert summarize(found, make_plan()).primary.mean == 0.5


def test_failures_show_the_first_rows_once_however_they_arrive(make_plan):
    found = [rollout(row, attempt, status="failed") for row in reversed(range(30)) for attempt in range(2)]
    (failures,) = summarize(found, make_plan(attempts=2)).failures
    assert (failures.count, failures.rows) == (60, list(range(10)))


def test_what_a_failed_rollout_brought_is_no_score(make_plan):
    broken = rollout(0, 0, status="failed")
    broken.scores["f"] = Score(name="f", value=1.0)
    score = summarize([broken, rollout(1, 0, 1.0)], make_plan()).primary
    assert (score.scored, score.failed, score.passed) == (1, 1, 1)


def test_scores_by_a_column_of_the_row(make_plan):
    levels = ["10", "9", "easy"]
    found = [
        rollout(row, attempt, float(row % 3 == 0 and attempt == 0), groups={"level": levels[row % 3]})
        for row in range(12)
        for attempt in range(2)
    ]
    found.append(rollout(12, 0, status="failed", groups={"level": "easy"}))
    found.append(rollout(13, 0, 1.0))
    report = summarize(found, make_plan(attempts=2, group_by=["level"]))
    assert [(group.value, group.rows) for group in report.groups] == [
        ("9", 4), ("10", 4), ("easy", 5), ("(not recorded)", 1),
    ]  # fmt: skip
    by_value = {group.value: group.scores[0] for group in report.groups}
    assert (by_value["10"].mean, by_value["10"].pass_rate, by_value["10"].pass_at_k[0].rows) == (0.5, 0.5, 4)
    assert (by_value["easy"].failed, by_value["easy"].scored) == (1, 8)
    assert by_value["10"].mean_interval.low < 0.5 < by_value["10"].mean_interval.high
    shown = [figure for figure in figures(report) if figure.group == "f by level"]
    assert [(figure.label, figure.text, figure.detail) for figure in shown][:2] == [
        ("9", "0.000", "4 rows, pass rate 0.0 %"),
        ("10", "0.500", "4 rows, pass rate 50.0 %"),
    ]


def test_many_values_of_a_column_are_one_group_beyond_the_largest(make_plan):
    found = [rollout(row, 0, 1.0, groups={"id": f"v{row // 2}"}) for row in range(140)]
    groups = summarize(found, make_plan(group_by=["id"])).groups
    assert len(groups) == GROUPS_SHOWN + 1
    assert (groups[-1].value, groups[-1].rows) == ("(other)", 40)
    assert summarize(found, make_plan()).groups == []


def named(row, value, **scores):
    one = rollout(row, 0, value)
    del one.scores["f"]
    one.scores.update({f"fn.{key}": Score(name=f"fn.{key}", value=found) for key, found in scores.items()})
    if not scores:
        failure = Failure(phase=Phase.SCORE, category=Category.SCORE_ERROR, message="broke")
        one.scores["fn"] = Score(name="fn", failure=failure)
    one.scores["g"] = Score(name="g", value=0.25)
    return one


def test_named_scores_of_a_function_stand_in_its_place_and_miss_where_it_failed(make_plan):
    plan = make_plan(score_bounds={"fn": (0, 5)})
    found = [named(0, 1.0, right=4.0, style=1.0), named(1, 1.0), named(2, 1.0, right=5.0, style=2.0)]
    for order in (found, found[::-1]):
        report = summarize(order, plan, score_names=["fn", "g"])
        assert [(score.name, score.scored, score.failed) for score in report.scores] == [
            ("fn.right", 2, 1), ("fn.style", 2, 1), ("g", 3, 0),
        ]  # fmt: skip
        assert report.primary.mean == pytest.approx(3.0)
        assert report.primary.bounds == (0.0, 5.0)
        assert report.failures[0].count == 1
    nothing = summarize([named(0, 1.0)], plan, score_names=["fn", "g"])
    assert [score.name for score in nothing.scores] == ["fn", "g"]


def test_tokens_of_every_kind_are_added_up(make_plan):
    spent = Usage(prompt_tokens=50, completion_tokens=20, cached_tokens=10, cache_write_tokens=7, reasoning_tokens=12)
    whole = [rollout(row, 0, 1.0, usage=spent) for row in range(3)]
    stored = [Rollout.model_validate_json(one.to_line()) for one in whole]
    for counted in (whole, stored):
        usage = summarize(counted, make_plan()).usage
        assert (usage.cached_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (30, 21, 36)
    shown = next(figure for figure in figures(summarize(whole, make_plan())) if figure.name == "tokens")
    assert "36 of them reasoning" in shown.detail
    assert "21 written to the cache" in shown.detail
