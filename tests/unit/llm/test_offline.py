"""The stand-ins: deterministic, wrong sometimes, honest about what they are."""

import pytest

from osmosis.errors import ModelError
from osmosis.llm import ChatRequest, open_model
from osmosis.llm.offline import parse_task
from osmosis.records.run.plan import ModelSpec


def tool(name, first="a", second="b"):
    properties = {first: {"type": "number"}, second: {"type": "number"}, "note": {"type": "string"}}
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"properties": properties, "required": [first, second]}},
    }


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("What is 12 * 34?", ("multiply", 12, 34)),
        ("12 x 34", ("multiply", 12, 34)),
        ("Multiply 1,200 by 3.5.", ("multiply", 1200, 3.5)),
        ("What is the sum of 4 and 5?", ("add", 4, 5)),
        ("Subtract 3 from 10.", ("subtract", 10, 3)),
        ("10 minus 3", ("subtract", 10, 3)),
        ("Divide 9 by 3", ("divide", 9, 3)),
        ("hello", None),
    ],
)
def test_understands_two_numbers_and_an_operation(text, task):
    assert parse_task(text) == task


async def answer(messages, tools=None, **who):
    model = open_model(ModelSpec.parse("offline/calculator"))
    return (await model.complete(ChatRequest(messages, tools, **who))).message


async def test_calls_the_fitting_tool_with_its_own_parameter_names_then_answers():
    ask = [{"role": "user", "content": "What is 6 times 7?"}]
    called = await answer(ask, [tool("add"), tool("multiply", "x", "y")])
    call = called["tool_calls"][0]
    assert call["function"] == {"name": "multiply", "arguments": '{"x":6,"y":7}'}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "42"}
    texts = {
        (await answer([*ask, called, result], [tool("multiply")], rollout_id="r", row_index=row))["content"]
        for row in range(40)
    }
    assert any(text.endswith("#### 42") for text in texts)


@pytest.mark.parametrize("kind", [{"anyOf": [{"type": "number"}, {"type": "string"}]}, {"type": ["integer", "null"]}])
async def test_a_parameter_that_may_be_a_number_is_one(kind):
    offered = tool("multiply")
    offered["function"]["parameters"]["properties"] |= {"a": kind, "b": kind}
    called = await answer([{"role": "user", "content": "What is 6 * 7?"}], [offered])
    assert called["tool_calls"][0]["function"]["arguments"] == '{"a":6,"b":7}'


async def test_is_wrong_in_about_one_of_four_and_always_the_same_ones():
    async def share():
        right = 0
        for row in range(400):
            text = (await answer([{"role": "user", "content": "6 * 7"}], rollout_id="r", row_index=row))["content"]
            right += text.endswith("#### 42")
        return right / 400

    first = await share()
    assert 0.65 < first < 0.85
    assert await share() == first


async def test_an_unknown_stand_in_is_named():
    with pytest.raises(ModelError, match="offline/poet"):
        open_model(ModelSpec.parse("offline/poet"))
