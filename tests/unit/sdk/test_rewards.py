"""The reward and rubric decorators: what they accept, and how every rejection reads."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

import pytest

from osmosis.sdk.evaluate_rubric import evaluate_rubric
from osmosis.sdk.judge_model import MissingAPIKeyError
from osmosis.sdk.rewards import osmosis_reward
from osmosis.sdk.rubrics import osmosis_rubric
from osmosis.sdk.types import finite_reward

JUDGE = {"provider": "offline", "model": "judge", "rubric": "be kind"}


def made(source: str, future: bool = False) -> Any:
    """The function `f` of a module with this source, as a person's file would define it."""
    head = "from __future__ import annotations\n" if future else ""
    scope: dict[str, Any] = {"__name__": "theirs"}
    exec(compile(head + textwrap.dedent(source), "theirs.py", "exec", dont_inherit=True), scope)
    return scope["f"]


ACCEPTED = [
    "def f(solution_str: str, ground_truth: str, extra_info: dict = None) -> float: return 1.0",
    "def f(solution_str: str, ground_truth: str, extra_info: dict = None): return 1.0",
    "def f(solution_str: str, ground_truth: str, extra_info: dict = {}, **kwargs) -> float: return 1.0",
    "def f(solution_str: str, ground_truth: str, extra_info: dict = None, scale: float = 1) -> float: return 1.0",
    "def f(solution_str: 'str', ground_truth: 'str', extra_info: 'dict' = None) -> 'float': return 1.0",
]


@pytest.mark.parametrize("source", ACCEPTED)
@pytest.mark.parametrize("future", [False, True])
def test_reward_signatures_that_fit(source: str, future: bool) -> None:
    assert osmosis_reward(made(source, future))("a", "b") == 1.0


REFUSED = [
    ("def f(solution_str: str, ground_truth: str): ...", "the third parameter 'extra_info' is missing (found 2)"),
    ("def f(text: str, ground_truth: str, extra_info: dict = None): ...", "the first parameter is named 'text'"),
    ("def f(solution_str, ground_truth: str, extra_info: dict = None): ...", "'solution_str' has no annotation"),
    (
        "def f(solution_str: str, ground_truth: 'str | None', extra_info: dict = None): ...",
        "'ground_truth' is annotated str | None; expected str",
    ),
    (
        "def f(solution_str: str, ground_truth: str, extra_info: 'dict[str, int]' = None): ...",
        "'extra_info' is annotated dict[str, int]; expected dict",
    ),
    ("def f(solution_str: str, ground_truth: str, extra_info: dict): ...", "'extra_info' has no default"),
    (
        "def f(solution_str: str, ground_truth: str, extra_info: dict = None, x: int = 1, *, y): ...",
        "'y' has no default",
    ),
    ("def f(solution_str: str, ground_truth: str, extra_info: dict = None) -> int: ...", "return annotation is int"),
    ("def f(solution_str: str, ground_truth: str, *, extra_info: dict = None): ...", "'extra_info' is keyword-only"),
]


@pytest.mark.parametrize(("source", "words"), REFUSED)
def test_reward_rejections_name_function_and_parameter(source: str, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        osmosis_reward(made(source))
    assert str(caught.value).startswith("@osmosis_reward: f: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("result", "words"), [(1, "returned int"), (True, "bool"), (float("nan"), "finite"), (None, "NoneType")]
)
def test_reward_result_is_a_finite_float(result: Any, words: str) -> None:
    @osmosis_reward
    def f(solution_str: str, ground_truth: str, extra_info: dict = None):  # noqa: RUF013
        return result

    with pytest.raises(TypeError, match=words):
        f("a", "b")


def test_reward_drops_data_source_and_keeps_its_name() -> None:
    @osmosis_reward
    def f(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:  # noqa: RUF013
        """Doc."""
        return float(len(solution_str))

    assert f("abc", "b", data_source="x") == 3.0
    assert (f.__name__, f.__doc__) == ("f", "Doc.")


async def test_async_rewards_stay_async() -> None:
    @osmosis_reward
    async def f(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:  # noqa: RUF013
        await asyncio.sleep(0)
        return 0.5 if solution_str != "bad" else 1

    assert asyncio.iscoroutinefunction(f)
    assert await f("a", "b") == 0.5
    with pytest.raises(TypeError, match="returned int"):
        await f("bad", "b")


RUBRIC_REFUSED = [
    ("def f(solution_str: str, ground_truth: str, extra_info: dict = None): ...", "'extra_info' has the default None"),
    ("def f(solution_str: str, ground_truth: str = '', extra_info: dict = None): ...", "has the default"),
    ("def f(solution_str: str, ground_truth: int, extra_info: dict): ...", "'ground_truth' is annotated int"),
    ("def f(solution_str: str, ground_truth: str, extra_info): ...", "'extra_info' has no annotation"),
    ("def f(solution_str: str, extra_info: dict): ...", "the second parameter is named 'extra_info'"),
]


@pytest.mark.parametrize(("source", "words"), RUBRIC_REFUSED)
def test_rubric_rejections(source: str, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        osmosis_rubric(made(source))
    assert str(caught.value).startswith("@osmosis_rubric: f: ")
    assert words in str(caught.value)


@osmosis_rubric
def seen(solution_str: str, ground_truth: str | None, extra_info: dict, **kwargs: Any) -> float:
    seen.last = extra_info  # type: ignore[attr-defined]
    return 0.5


def test_rubric_without_embedded_judge_passes_through() -> None:
    info = {"metadata": {"a": 1}}
    assert seen("text", None, info, data_source="x") == 0.5
    assert seen.last is info  # type: ignore[attr-defined]


def test_no_error_prints_what_a_value_holds() -> None:
    @osmosis_rubric
    def returned(solution_str: str, ground_truth: str | None, extra_info: dict) -> float:
        return extra_info  # type: ignore[return-value]

    info = {**JUDGE, "api_key": "sk-not-for-a-log"}
    for call in (
        lambda: returned("a", None, info),
        lambda: osmosis_reward(returned.__wrapped__)("a", "b", info),
        lambda: seen("a", None, {**info, "model_info_overrides": [info]}),
        lambda: seen("a", None, {**JUDGE, "api_key": ["sk-not-for-a-log"]}),
        lambda: finite_reward(info),
        lambda: evaluate_rubric("r", "s", [info]),  # type: ignore[call-overload]
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert "sk-not" not in str(caught.value)


def test_an_empty_extra_info_is_refused() -> None:
    with pytest.raises(TypeError, match="rubric"):
        seen("text", None, {})


def test_rubric_overrides_are_merged_into_the_judge() -> None:
    info = {**JUDGE, "score_max": 5, "model_info_overrides": {"timeout": 3, "model": "echo"}}
    seen("text", "truth", info)
    merged = seen.last  # type: ignore[attr-defined]
    assert merged["model_info"] == {"provider": "offline", "model": "echo", "score_max": 5, "timeout": 3}
    assert merged["timeout"] == 3
    assert "model_info" not in info


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"rubric": " "}, TypeError, r"extra_info\['rubric'\]"),
        ({"model": None}, TypeError, r"model_info\['model'\]"),
        ({"provider": 3}, TypeError, "provider"),
        ({"score_min": "0"}, TypeError, "expected a number"),
        ({"score_min": 2.0}, ValueError, "score_max must be greater"),
        ({"model_info_overrides": []}, None, ""),
        ({"model_info_overrides": [1]}, TypeError, "model_info_overrides"),
        ({"provider": "nobody-here"}, MissingAPIKeyError, "NOBODY_HERE_API_KEY"),
    ],
)
def test_rubric_checks_an_embedded_judge(change: dict[str, Any], error: Any, words: str) -> None:
    if error is None:
        assert seen("text", None, {**JUDGE, **change}) == 0.5
        return
    with pytest.raises(error, match=words):
        seen("text", None, {**JUDGE, **change})


def test_rubric_arguments_have_their_types() -> None:
    with pytest.raises(TypeError, match="solution_str is int"):
        seen(1, None, {})
    with pytest.raises(TypeError, match="ground_truth is int"):
        seen("a", 1, {})
    with pytest.raises(TypeError, match="missing a required argument"):
        seen("a", None)
