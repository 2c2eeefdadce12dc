"""The sampler over a real model: what it samples is what the model says, and no request harms another."""

from typing import Any

import pytest

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(checks: Any) -> dict[str, Any]:
    results: dict[str, Any] = checks("sampling", "answers", "prompts", "stuck")
    return results


def test_sampled_logprobs_are_those_of_a_forward_pass(found: dict[str, Any]) -> None:
    assert found["sampling"]["parity"] < 1e-4


def test_an_answer_depends_on_its_seed_and_not_on_the_batch(found: dict[str, Any]) -> None:
    assert found["sampling"]["same_in_another_batch"]
    assert found["sampling"]["different_seeds_differ"]
    assert found["sampling"]["greedy"] == 1


def test_a_prompt_that_is_too_long_is_an_error_and_the_next_one_is_answered(found: dict[str, Any]) -> None:
    assert found["sampling"]["too_long"].startswith("context_length: the prompt has 516 tokens")
    assert found["sampling"]["after_too_long"] == "none"
    assert found["sampling"]["bad_message"].startswith("bad_request")


def test_limits_and_stops_end_an_answer(found: dict[str, Any]) -> None:
    assert found["sampling"]["short"] == [1, "length"]
    assert found["sampling"]["ends_kept"]
    assert found["sampling"]["stream"]["stop_reason"] == "stop"
    assert found["sampling"]["stream"]["stopped_before"]


def test_a_stream_is_the_content_and_shows_no_calls(found: dict[str, Any]) -> None:
    assert found["sampling"]["stream"]["same"]
    assert found["sampling"]["stream"]["calls_hidden"]


def test_requests_that_are_left_are_freed(found: dict[str, Any]) -> None:
    assert found["sampling"]["cancel"] == {"handlers": 0, "active": 0, "answered": True}


def test_the_model_is_sampled_in_eval_mode_and_only_while_a_step_collects(found: dict[str, Any]) -> None:
    sampling = found["sampling"]
    assert [sampling[f"training_{when}"] for when in ("before", "while_open", "after")] == [True, False, True]
    assert sampling["closed"]
    assert sampling["step"] == 3


def test_a_generation_loop_that_breaks_or_hangs_is_replaced(found: dict[str, Any]) -> None:
    stuck = found["stuck"]
    assert "the GPU fell off" in stuck["broken"]
    assert "made no step for" in stuck["hanging"]
    assert (stuck["after_broken"], stuck["after_hanging"]) == ("none", "none")


@pytest.mark.parametrize("by", ["template", "json"])
def test_tool_calls_are_read_and_what_is_none_is_content(found: dict[str, Any], by: str) -> None:
    read = {name.partition("/")[2]: value for name, value in found["answers"].items() if name.startswith(f"{by}/")}
    assert read["words"][:3] == ["42", None, []]
    assert read["call"][1:4] == [None, [["add", {"a": 3, "b": 4}]], by]
    assert read["words_and_calls"][0].strip() == "so"
    assert read["words_and_calls"][2] == [["add", {"a": 3}], ["add", {"a": 4}]]
    assert read["thought"][:2] == ["hello", "hm"]
    assert read["text_arguments"][2] == [["add", {}]]
    for name in ("bad_json", "no_function", "cut_off"):
        content, _, calls, parse, malformed = read[name]
        assert content.startswith("<tool_call>")
        assert (calls, parse, malformed) == ([], "content", 1)
    assert read["no_tools"] == [0, True]


def test_a_prompt_goes_on_from_the_very_tokens_that_were_sampled(found: dict[str, Any]) -> None:
    asked = "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n"
    same = {"kept": True, "begins": True, "plain_does_not": True}
    assert found["prompts"]["ended"] == {**same, "rest": asked}
    assert found["prompts"]["cut_off"] == {**same, "rest": "<|im_end|>" + asked}
    assert not found["prompts"]["covers_too_many"]
