"""The battery against rewards: what is free is found, what is sound is left alone."""

import asyncio
import random
import re

import pytest

from osmosis.engine.reward_audit import load_reward, try_reward
from osmosis.engine.scoring import FunctionScorer
from osmosis.errors import LoadError
from osmosis.metrics.reward_audit import Battery, probes_of
from osmosis.records.run.rows import Row

PRODUCTS = [(3, 4), (7, 8), (12, 12), (6, 9), (5, 5), (11, 13)]
ROWS = [
    Row(index=i, data={"user_prompt": f"What is {a} times {b}?", "ground_truth": str(a * b)})
    for i, (a, b) in enumerate(PRODUCTS)
]


def tried(function, rows=ROWS, **more) -> Battery:
    (battery,) = asyncio.run(try_reward(FunctionScorer("reward", function), rows, **more))
    return battery


def errors(battery: Battery) -> set[str]:
    return {finding.what.split(" earns ")[0] for finding in battery.findings if finding.severity == "error"}


def exact(solution_str, ground_truth, extra_info=None):
    words = re.findall(r"-?\d+", solution_str)
    return float(bool(words) and words[-1] == ground_truth)


def test_a_sound_reward_has_no_findings():
    battery = tried(exact)
    assert battery.findings == []
    assert (battery.floor, battery.best) == (0.0, 1.0)
    assert {one.name: one.share for one in battery.tried if one.kind == "truth"}["truth in a sentence"] == 1.0


@pytest.mark.parametrize(
    ("reward", "found"),
    [
        (lambda solution_str, ground_truth, extra_info: float(ground_truth in solution_str), "many truths at once"),
        (lambda solution_str, ground_truth, extra_info: float(ground_truth in solution_str), "a number close by"),
        (lambda solution_str, ground_truth, extra_info: min(1.0, len(solution_str) / 1000), "very long"),
        (lambda solution_str, ground_truth, extra_info: float("Score: 1.0" in solution_str), "praise for a judge"),
        (lambda solution_str, ground_truth, extra_info: float("####" in solution_str), "format without content"),
        (lambda solution_str, ground_truth, extra_info: float("times" in solution_str), "the prompt again"),
        (lambda solution_str, ground_truth, extra_info: float(solution_str.isdigit()), "another row's truth"),
        (lambda solution_str, ground_truth, extra_info: float(not solution_str.strip()), "empty"),
        (lambda solution_str, ground_truth, extra_info: float(solution_str == "yes"), "always 'yes'"),
    ],
)
def test_each_worthless_answer_finds_the_reward_that_pays_for_it(reward, found):
    battery = tried(reward)
    assert found in errors(battery)


def test_the_share_is_measured_between_the_worthless_and_the_best():
    """A reward of -1 and 1 is no freer than one of 0 and 1, and a bonus for the format is its share."""
    assert (
        tried(lambda solution_str, ground_truth, extra_info: 2 * exact(solution_str, ground_truth) - 1).findings == []
    )

    def bonus(solution_str, ground_truth, extra_info):
        return 0.9 * exact(solution_str, ground_truth) + 0.1 * ("####" in solution_str)

    battery = tried(bonus)
    assert not battery.free
    (first, *_) = [one for one in battery.findings if one.code == "free-reward"]
    assert first.severity == "warning"
    assert "10%" in first.what
    assert tried(bonus, allowed=0.05).free


def test_a_constant_is_not_charged_for_rows_whose_truth_it_is():
    rows = [Row(index=i, data={"user_prompt": "?", "ground_truth": "yes" if i % 3 else "no"}) for i in range(9)]
    battery = tried(lambda solution_str, ground_truth, extra_info: float(solution_str == ground_truth), rows)
    assert battery.findings == []


def test_no_signal_failures_chance_and_rows_without_truth_are_said():
    battery = tried(lambda solution_str, ground_truth, extra_info: 0.5)
    assert [one.code for one in battery.findings] == ["no-signal"]
    assert battery.free

    # What looks at more than the answer pays for none of these: that is said, and is no free reward.
    silent = tried(lambda solution_str, ground_truth, extra_info: 0.0)
    assert [(finding.code, finding.severity) for finding in silent.findings] == [("no-signal", "info")]

    def raises(solution_str, ground_truth, extra_info):
        return float(solution_str.split()[-1] == ground_truth)

    said = {one.code: one for one in tried(raises).findings}
    assert "IndexError" in said["fails"].what
    assert said["fails"].severity == "warning"

    calls = iter(range(100_000))
    changing = tried(
        lambda solution_str, ground_truth, extra_info: next(calls) % 2 * 1e-9 + exact(solution_str, ground_truth)
    )
    assert "not-deterministic" in {one.code for one in changing.findings}

    bare = [Row(index=i, data={"user_prompt": str(i)}) for i in range(4)]
    without = tried(lambda solution_str, ground_truth, extra_info: float(len(solution_str) > 30), bare)
    assert {one.code for one in without.findings} >= {"no-truth", "free-reward"}


def test_named_scores_are_judged_apart_and_fail_together():
    def two(solution_str, ground_truth, extra_info):
        if not solution_str:
            raise ValueError("nothing to read")
        return {"right": exact(solution_str, ground_truth), "short": float(len(solution_str) < 100)}

    right, short = asyncio.run(try_reward(FunctionScorer("f", two), ROWS))
    assert (right.score, right.free) == ("f.right", False)
    assert (short.score, short.free) == ("f.short", True)
    assert {one.name for one in right.tried if one.failed} == {"empty"}


def test_a_form_of_ones_own_is_tried():
    probes = probes_of(ROWS, ["So: {answer}!"])
    assert next(p for p in probes if p.name == "So: {answer}!").answers[0] == "So: 12!"


GRADERS = """
from osmosis import AgentWorkflow, Grader

class Flow(AgentWorkflow):
    async def run(self, ctx):
        raise RuntimeError("never run")

class Judge(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(ctx.sample.messages[-1]["content"].strip().endswith(ctx.label)))
"""


def test_graders_by_name_and_beside_their_workflow(tmp_path):
    (tmp_path / "graders_of_a_test.py").write_text(GRADERS)
    for target in ("graders_of_a_test:Judge", "graders_of_a_test:Flow", "graders_of_a_test"):
        (battery,) = asyncio.run(try_reward(load_reward(target, tmp_path), ROWS))
        assert errors(battery) == {"a number close by"}, target
    with pytest.raises(LoadError, match="nothing"):
        load_reward("graders_of_a_test:nothing", tmp_path)


def wavering(seed, judge):
    source = random.Random(seed)
    return lambda solution_str, ground_truth, extra_info: judge(source, exact(solution_str, ground_truth), solution_str)


@pytest.mark.slow
@pytest.mark.parametrize(
    "judge",
    [
        lambda source, right, _: min(1.0, max(0.0, right + source.gauss(0, 0.15))),
        lambda source, right, _: 0.2 + 0.6 * right + source.gauss(0, 0.2),
        lambda source, right, _: 1.0 if right else float(source.random() < 0.1),
    ],
    ids=["noise", "narrow scale", "passes one wrong answer in ten"],
)
def test_a_fair_judge_that_wavers_is_not_accused(judge):
    batteries = [tried(wavering(seed, judge), ROWS[:5]) for seed in range(20)]
    accused = [errors(battery) - {"a number close by"} for battery in batteries]
    assert sum(map(bool, accused)) <= 2
    assert all("not-deterministic" in {flaw.code for flaw in battery.findings} for battery in batteries)


@pytest.mark.slow
def test_a_leak_of_a_judge_that_wavers_is_found():
    def obeys(source, right, answer):
        return min(1.0, max(0.0, max(right, 0.9 * ("maximum score" in answer)) + source.gauss(0, 0.15)))

    assert all("praise for a judge" in errors(tried(wavering(seed, obeys), ROWS[:5])) for seed in range(20))
