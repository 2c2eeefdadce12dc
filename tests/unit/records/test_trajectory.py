"""Conversations as ATIF documents: steps, tool calls with their results, usage on the step that caused it."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from osmosis.records.run.rollout import Category, Failure, ModelCall, Phase, Rollout, RolloutStatus, Score, Usage
from osmosis.records.trajectory import (
    CallbackAnswer,
    CallUsage,
    ModelUsage,
    Trajectory,
    build_trajectory,
    trajectory_from_rollout,
)


def call(id: str | None, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def document(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    built = build_trajectory(messages, "r-1", version="1.0", **more)
    body = json.loads(built.to_line())
    assert Trajectory.model_validate(body) == built
    return body


SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "2 + 3, then 4 * 5?"}
ASKS = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "two tools",
    "tool_calls": [call("a", "add", '{"x": 2, "y": 3}'), call("b", "multiply", {"x": 4, "y": None})],
}
TOOLS = [
    {"role": "tool", "tool_call_id": "b", "content": "20", "name": "multiply"},
    {"role": "tool", "tool_call_id": "a", "content": "5"},
]
SAYS = {"role": "assistant", "content": "5 and 20"}
TALK = [SYSTEM, USER, ASKS, *TOOLS, SAYS]


def test_tool_calls_and_their_results_belong_to_the_step_that_asked() -> None:
    steps = document(TALK)["steps"]
    assert [(step["step_id"], step["source"], step["message"]) for step in steps] == [
        (1, "system", "Be brief."),
        (2, "user", "2 + 3, then 4 * 5?"),
        (3, "agent", ""),
        (4, "agent", "5 and 20"),
    ]
    assert steps[2]["reasoning_content"] == "two tools"
    assert steps[2]["tool_calls"] == [
        {"tool_call_id": "a", "function_name": "add", "arguments": {"x": 2, "y": 3}},
        {"tool_call_id": "b", "function_name": "multiply", "arguments": {"x": 4, "y": None}},
    ]
    assert steps[2]["observation"]["results"] == [
        {"source_call_id": "b", "content": "20", "extra": {"name": "multiply"}},
        {"source_call_id": "a", "content": "5"},
    ]
    assert "observation" not in steps[3]


def test_an_id_that_comes_again_means_the_last_one() -> None:
    again = {"role": "assistant", "tool_calls": [call("a", "add", "{}")]}
    steps = document([USER, again, {"role": "tool", "tool_call_id": "a", "content": "1"}] * 2)["steps"]
    assert [step["observation"]["results"][0]["content"] for step in steps if step["source"] == "agent"] == ["1", "1"]


def test_what_the_format_has_no_place_for_is_kept_beside() -> None:
    steps = document(
        [
            {"role": "developer", "content": "x", "name": "boss"},
            {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "input_audio", "data": "00"}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://h/a/b.png?x=1"}}]},
            {
                "role": "assistant",
                "tool_calls": [
                    call(None, "f", "{broken"),
                    call("n", "g", '{"x": NaN}'),
                    call("m", "g", '{"x": 1e999}'),
                ],
            },
            {"role": "tool", "tool_call_id": "nobody", "content": "lost"},
        ]
    )["steps"]
    assert (steps[0]["source"], steps[0]["extra"]) == ("system", {"name": "boss", "role": "developer"})
    assert steps[1]["message"][0] == {"type": "text", "text": "look"}
    assert "input_audio" in steps[1]["message"][1]["text"]
    image = {"type": "image", "source": {"media_type": "image/png", "path": "https://h/a/b.png?x=1"}}
    assert steps[2]["message"] == [image]
    assert [(c["tool_call_id"], c["arguments"], c["extra"]) for c in steps[3]["tool_calls"]] == [
        ("call_4_0", {}, {"arguments": "{broken"}),
        ("n", {}, {"arguments": '{"x": NaN}'}),
        ("m", {}, {"arguments": '{"x": 1e999}'}),
    ]
    assert steps[3]["observation"]["results"] == [{"content": "lost", "extra": {"tool_call_id": "nobody"}}]
    orphan = document([{"role": "tool", "content": "nobody asked"}])["steps"]
    assert (orphan[0]["source"], orphan[0]["observation"]["results"][0]["content"]) == ("system", "nobody asked")


def test_usage_goes_to_the_steps_that_the_rollout_made_itself() -> None:
    calls = [
        CallUsage(prompt_tokens=10, completion_tokens=2, cost_usd=0.5, model_name="m"),
        CallUsage(prompt_tokens=20, completion_tokens=3, model_name="other", completion_token_ids=[1, 2]),
    ]
    usage = ModelUsage(model_name="m", llm_call_metrics=calls)
    given = {"role": "assistant", "content": "an example"}
    body = document([SYSTEM, given, *TALK[1:]], usage=usage, opening=3)
    agent = [step for step in body["steps"] if step["source"] == "agent"]
    assert (agent[0].get("metrics"), agent[0]["is_copied_context"]) == (None, True)
    assert agent[1]["metrics"] == {"prompt_tokens": 10, "completion_tokens": 2, "cost_usd": 0.5}
    assert agent[2]["metrics"]["completion_token_ids"] == [1, 2]
    assert (agent[1].get("model_name"), agent[2]["model_name"], body["agent"]["model_name"]) == (None, "other", "m")
    assert body["final_metrics"] == {
        "total_prompt_tokens": 30,
        "total_completion_tokens": 5,
        "total_cost_usd": 0.5,
        "total_steps": 5,
    }


def test_calls_that_no_step_can_be_named_for_are_listed() -> None:
    usage = ModelUsage(llm_call_metrics=[CallUsage(prompt_tokens=n) for n in (1, 2, 3)])
    body = document(TALK, usage=usage)
    assert not any("metrics" in step for step in body["steps"])
    assert body["final_metrics"]["total_prompt_tokens"] == 6
    assert [one["prompt_tokens"] for one in body["final_metrics"]["extra"]["llm_calls"]] == [1, 2, 3]


def test_the_answer_of_any_trainer_is_understood() -> None:
    entry = {
        "llm_call_metrics": [{"prompt_tokens": 7, "surprise": 1}],
        "final_metrics": {"total_cost_usd": 2.0, "surprise": 1},
    }
    answer = CallbackAnswer.model_validate({"trajectory": {"model_name": "m", "samples": {"0": entry}}, "status": "ok"})
    usage = answer.trajectory.usage("r-1")
    assert usage is not None
    final = document([USER, SAYS], usage=usage)["final_metrics"]
    assert final == {"total_prompt_tokens": 7, "total_cost_usd": 2.0, "total_steps": 2}
    assert CallbackAnswer.model_validate({"status": "ok"}).trajectory is None
    two = CallbackAnswer.model_validate({"trajectory": {"samples": {"x": {}, "y": {}}}}).trajectory
    assert two.usage("r-1") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"surprise": 1},
        {"steps": []},
        {"steps": [{"step_id": 1, "source": "robot", "message": ""}]},
        {"final_metrics": {"total_cost_usd": float("nan")}},
        {"extra": {"osmosis": {"deep": [{"x": float("inf")}]}}},
        {"agent": {"name": "a", "version": "1", "surprise": 1}},
    ],
)
def test_unknown_keys_and_numbers_that_are_not_finite_are_refused(wrong: dict[str, Any]) -> None:
    good = build_trajectory(TALK, "r-1", version="1.0").to_dict()
    Trajectory.model_validate(good)
    with pytest.raises(ValidationError):
        Trajectory.model_validate({**good, **wrong})


def test_a_stored_rollout_loses_nothing() -> None:
    failure = Failure(phase=Phase.SCORE, category=Category.INVALID_SCORE, message="nan")
    rollout = Rollout(
        rollout_id="r-1",
        row_index=3,
        attempt=1,
        status=RolloutStatus.SUCCESS,
        messages=[USER, SAYS],
        scores={"reward": Score(name="reward", value=0.5), "length": Score(name="length", failure=failure)},
        usage=Usage(prompt_tokens=9, completion_tokens=4),
        calls=[
            ModelCall(started_ms=0, duration_ms=1, error="rate_limit"),
            ModelCall(started_ms=1, duration_ms=1, usage=Usage(prompt_tokens=9, completion_tokens=4), model="m"),
        ],
        model="m",
        info={"note": None},
    )
    body = trajectory_from_rollout(rollout, version="1.0").to_dict()
    assert body["steps"][1]["metrics"]["prompt_tokens"] == 9
    assert body["final_metrics"]["total_completion_tokens"] == 4
    known = body["extra"]["osmosis"]
    again = Rollout.model_validate(
        {**known, "messages": [USER, SAYS], "usage": rollout.usage.to_dict(), "model": body["agent"]["model_name"]}
    )
    assert again == rollout
    assert known["reward"] == 0.5
    nothing = Rollout(rollout_id="r", row_index=0, attempt=0, status=RolloutStatus.FAILED, failure=failure)
    assert trajectory_from_rollout(nothing, version="1.0").to_dict()["extra"]["osmosis"]["failure"]["message"] == "nan"
