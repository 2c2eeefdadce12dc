"""Score functions: both forms, sync and async, numbers of every kind, judges counted apart."""

import asyncio
import functools
import math
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from osmosis.engine.load_agent import load_scorers
from osmosis.engine.scoring import QUICK_CALLS, FunctionScorer, ScoreThreads, as_number, run_score
from osmosis.records.run.rollout import Category, Rollout, RolloutStatus, Score, Usage
from osmosis.records.run.rows import Row
from osmosis.sdk.judge_model import count_usage
from osmosis.sdk.messages import solution_of
from osmosis.sdk.score_functions import score_function

HERE = Path(__file__).parent
ROW = Row(index=0, data={"user_prompt": "q", "ground_truth": "42", "extra": 1})
TALK = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "#### 42"},
    {"role": "assistant", "content": None, "tool_calls": []},
]
ROLLOUT = Rollout(rollout_id="r", row_index=0, attempt=0, status=RolloutStatus.SUCCESS, messages=TALK)


async def test_the_forms_get_what_they_ask_for():
    seen = {}

    def simple(solution_str, ground_truth, extra_info=None, **kwargs):
        seen["simple"] = (solution_str, ground_truth, extra_info, kwargs)
        return True

    async def full(messages, ground_truth, metadata):
        seen["full"] = (messages, ground_truth, metadata)
        return 1

    assert (await FunctionScorer("s", simple).score(ROLLOUT, ROW))[0].value == 1.0
    assert (await FunctionScorer("f", full).score(ROLLOUT, ROW))[0].value == 1.0
    assert seen["simple"] == ("#### 42", "42", ROW.data, {})
    assert seen["full"] == (TALK, "42", ROW.data)


async def test_objects_and_lambdas_and_functions_that_hand_back_coroutines():
    (scorer,) = load_scorers(["helpers_agents:as_object"], HERE)
    assert (await scorer.score(ROLLOUT, ROW))[0].value == 0.5

    async def inner():
        return 0.25

    handed = FunctionScorer("h", lambda solution_str, ground_truth, extra_info: inner())
    assert (await handed.score(ROLLOUT, ROW))[0].value == 0.25


@pytest.mark.parametrize("value", [None, "1", math.inf, math.nan, [1.0], {}])
def test_what_is_no_number(value):
    number, problem = as_number(value)
    assert number is None
    assert problem


def test_array_scalars_are_numbers():
    class Scalar:
        size = 1

        def item(self):
            return 0.75

    assert as_number(Scalar()) == (0.75, None)


def test_the_solution_is_the_last_content_an_assistant_gave():
    assert solution_of(TALK) == "#### 42"
    assert solution_of([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]) == "ab"
    assert solution_of([{"role": "user", "content": "x"}]) == ""


async def test_what_a_judge_consumes_is_counted_for_its_score_also_in_a_thread():
    def judged(solution_str, ground_truth, extra_info=None):
        count_usage(Usage(prompt_tokens=3, cost_usd=0.5))
        return 1.0

    (score,) = await FunctionScorer("j", judged).score(ROLLOUT, ROW)
    assert (score.usage.prompt_tokens, score.usage.cost_usd) == (3, 0.5)


async def test_a_rubric_is_a_score_with_a_reason(tmp_path):
    (tmp_path / "r.yaml").write_text(
        "rubrics:\n  - id: match\n    rubric: Equal?\n    model_info: {provider: offline, model: judge}\n"
    )
    (scorer,) = load_scorers(["rubric:r.yaml#match"], tmp_path, environ={})
    (score,) = await scorer.score(ROLLOUT, ROW)
    await scorer.close()
    assert score.name == "rubric:r.yaml#match"
    assert 0 <= score.value <= 1
    assert score.reason
    assert score.usage.total_tokens > 0


async def test_score_threads_run_few_functions_at_once_and_abandon_hung_ones() -> None:
    threads, free = ScoreThreads(2), threading.Event()
    hung = [asyncio.ensure_future(threads.run(lambda: free.wait(30), 0.05)) for _ in range(2)]
    waiting = asyncio.ensure_future(threads.run(lambda: 1, 5))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    for function in hung:
        with pytest.raises(asyncio.TimeoutError):
            await function
    assert await asyncio.wait_for(waiting, 5) == 1
    free.set()


async def test_calls_behind_one_that_hangs_are_made_elsewhere() -> None:
    threads, free = ScoreThreads(2), threading.Event()

    def answer(number: int, hangs: bool = False) -> int:
        if hangs:
            free.wait(30)
        return number

    for number in range(QUICK_CALLS):
        assert await threads.run(functools.partial(answer, number)) == number
    hung, *others = [
        asyncio.ensure_future(threads.run(functools.partial(answer, number, hangs=number == 0), 10))
        for number in range(20)
    ]
    assert await asyncio.wait_for(asyncio.gather(*others), 5) == list(range(1, 20))
    assert not hung.done()
    free.set()
    assert await hung == 0


@pytest.mark.parametrize("error", [SystemExit("enough"), StopIteration("enough"), ValueError("enough")])
async def test_what_a_function_in_a_thread_raises_reaches_its_caller(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises((RuntimeError, ValueError), match="enough"):
        await ScoreThreads().run(fail)


async def test_a_score_function_that_exits_fails_its_own_score() -> None:
    async def leave() -> float:
        raise SystemExit("enough")

    (score,) = await run_score("leaves", leave, None)
    assert score.failure is not None
    assert "SystemExit(enough)" in score.failure.message


class Tensor:
    """As PyTorch's: `size` is a method."""

    def __init__(self, *values):
        self.values = values

    def size(self):
        return [len(self.values)]

    def numel(self):
        return len(self.values)

    def item(self):
        return self.values[0]


@pytest.mark.parametrize(
    ("found", "number"),
    [
        (True, 1.0), (False, 0.0), (Decimal("0.25"), 0.25), (Fraction(1, 4), 0.25), (Tensor(0.5), 0.5),
        (np.float32(0.5), 0.5), (np.array([0.5]), 0.5), (np.bool_(True), 1.0),
    ],
)  # fmt: skip
def test_numbers_of_every_kind(found, number):
    assert as_number(found) == (number, None)
    assert Score(found).value == number


@pytest.mark.parametrize("found", [Tensor(0.5, 1.0), np.array([0.5, 1.0]), Decimal("NaN"), "0.5", 10**400])
def test_what_is_not_one_number(found):
    assert as_number(found)[0] is None
    with pytest.raises(ValueError):
        Score(found)


LOOP: dict[str, object] = {}
LOOP["again"] = LOOP


async def scores_of(result, **more):
    def judge(solution_str, ground_truth, extra_info=None):
        return result

    return await FunctionScorer("m:judge", score_function(**more)(judge) if more else judge).score(ROLLOUT, ROW)


async def test_a_score_brings_its_reason_parts_and_metadata():
    (score,) = await scores_of(Score(0.5, "half \ud800 right", {"line": 3}, {"format": True, "answer": Decimal(0)}))
    assert (score.name, score.value, score.metadata, score.parts) == (
        "m:judge",
        0.5,
        {"line": 3},
        {"format": 1, "answer": 0},
    )
    assert score.reason.startswith("half")
    assert Score.model_validate_json(score.model_dump_json()) == score


async def test_a_dict_is_several_named_scores():
    first, second, third = await scores_of({"correct": True, "style": Score(0.2, "terse"), "odd": "no"})
    assert [(s.name, s.value) for s in (first, second)] == [("m:judge.correct", 1.0), ("m:judge.style", 0.2)]
    assert second.reason == "terse"
    assert (third.name, third.value, third.failure.category) == ("m:judge.odd", None, Category.INVALID_SCORE)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({}, "a dict without scores"), ({1: 1.0}, "not all names"), (Score(0.5, metadata=LOOP), "metadata.again"),
        (None, "NoneType"), (Score(), "NoneType"),
    ],
)  # fmt: skip
async def test_what_is_no_score(result, words):
    (score,) = await scores_of(result)
    assert score.value is None
    assert words in score.failure.message


async def test_a_score_outside_what_the_function_declares_is_a_failure():
    (score,) = await scores_of(7, min=0, max=5)
    assert score.failure.message == "m:judge returned 7, which is not between 0 and 5 as it declares"
    assert [one.value for one in await scores_of({"a": 5, "b": 0.0}, min=0, max=5)] == [5.0, 0.0]
    with pytest.raises(ValueError, match="min must be below max"):
        score_function(min=1, max=1)
