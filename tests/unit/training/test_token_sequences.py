"""Turns to sequences: masks where the environment spoke, every sampled token once, rewritten histories forked."""

from __future__ import annotations

import random

import pytest

from osmosis.records.run.rollout import Message
from osmosis.training.protocol.messages import SampledAnswer
from osmosis.training.token_sequences import Conversation, Part
from support.fake_trainer import END, encode, render

USER: Message = {"role": "user", "content": "2+3"}


def answer(messages: list[Message], text: str, *, finish: str = "stop", prompt: str | None = None) -> SampledAnswer:
    ids = encode(text + END)
    return SampledAnswer(
        prompt_ids=encode(prompt if prompt is not None else render(messages)),
        token_ids=ids,
        logprobs=[-1.0 - n / 10 for n in range(len(ids))],
        content=text,
        finish_reason=finish,
    )


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def spoken(part: Part, by: int) -> str:
    """The text that model (1) or environment (0) said after the prompt."""
    rest = part.token_ids[part.prompt_length :]
    return "".join(chr(token) for token, mask in zip(rest, part.mask, strict=True) if mask == by)


def test_the_environment_is_masked_exactly() -> None:
    conversation = Conversation()
    history = [USER]
    for reply, tool in (("call a", "result of a"), ("call b", "result of b"), ("5", None)):
        conversation.add(history, answer(history, reply))
        history = [*history, said(reply)]
        if tool:
            history = [*history, {"role": "tool", "content": tool}]
    (part,) = conversation.parts
    assert "".join(map(chr, part.token_ids)) == render(history, prompt=False)
    assert spoken(part, 1) == f"call a{END}call b{END}5{END}"
    assert spoken(part, 0) == f"<tool>result of a{END}<assistant><tool>result of b{END}<assistant>"
    assert [lp != 0.0 for lp in part.logprobs] == [bool(m) for m in part.mask]
    assert part.turns == 3


def test_a_compacted_history_forks_and_loses_nothing() -> None:
    conversation = Conversation()
    conversation.add([USER], answer([USER], "one"))
    short = [{"role": "user", "content": "summary"}]
    conversation.add(short, answer(short, "two"))
    longer = [*short, said("two"), {"role": "user", "content": "and?"}]
    conversation.add(longer, answer(longer, "three"))
    first, second = conversation.parts
    assert spoken(first, 1) == f"one{END}"
    assert spoken(second, 1) == f"two{END}three{END}"
    assert "".join(map(chr, second.token_ids[: second.prompt_length])) == render(short)


def test_two_agents_of_one_rollout_keep_apart() -> None:
    one, other = [{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]
    conversation = Conversation()
    for history in (one, other):
        conversation.add(history, answer(history, "first"))
    for history in (other, one):
        longer = [*history, said("first"), {"role": "user", "content": "more"}]
        conversation.add(longer, answer(longer, "second"))
    assert [part.turns for part in conversation.parts] == [2, 2]
    assert [spoken(part, 1) for part in conversation.parts] == [f"first{END}second{END}"] * 2


def test_a_call_that_is_repeated_with_the_same_answer_trains_its_tokens_once() -> None:
    conversation = Conversation()
    longer = [USER, said("one"), {"role": "user", "content": "and?"}]
    for history, reply in (([USER], "one"), ([USER], "one"), (longer, "two"), ([USER], "one"), (longer, "two")):
        conversation.add(history, answer(history, reply))
    (part,) = conversation.parts
    assert spoken(part, 1) == f"one{END}two{END}"
    assert conversation.sampled_tokens == sum(part.mask)


def test_the_same_question_twice_is_two_sequences() -> None:
    conversation = Conversation()
    for reply in ("bad", "good"):
        conversation.add([USER], answer([USER], reply))
    longer = [USER, said("good"), {"role": "user", "content": "more"}]
    conversation.add(longer, answer(longer, "fine"))
    assert [spoken(part, 1) for part in conversation.parts] == [f"bad{END}", f"good{END}fine{END}"]


def test_an_answer_that_is_cut_off_marks_its_sequence() -> None:
    conversation = Conversation()
    conversation.add([USER], answer([USER], "12", finish="length"))
    assert conversation.parts[0].truncated


@pytest.mark.parametrize(
    "repeated",
    [
        said("call"),
        {"role": "assistant", "content": [{"type": "text", "text": "call"}]},
        {"role": "assistant", "content": "call", "tool_calls": [], "refusal": None},
    ],
)
def test_what_a_call_goes_on_from_is_known_however_the_agent_spells_it(repeated: Message) -> None:
    conversation = Conversation()
    first = conversation.add([USER], answer([USER], "call"))
    held = conversation.find_held_tokens([dict(USER), repeated, {"role": "tool", "content": "x"}])
    assert held is not None
    assert (held.messages, held.token_ids) == (2, first.token_ids)


def test_tool_calls_are_the_same_by_name_and_arguments() -> None:
    def with_call(arguments: str, name: str = "add") -> Message:
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": name, "arguments": arguments}}],
        }

    conversation = Conversation()
    sampled = answer([USER], "x").model_copy(
        update={"content": None, "tool_calls": [_call('{"a": 1, "b": 2}')], "finish_reason": "tool_calls"}
    )
    conversation.add([USER], sampled)
    after = {"role": "tool", "content": "3"}
    assert conversation.find_held_tokens([USER, with_call('{"b":2,"a":1}'), after]) is not None
    assert conversation.find_held_tokens([USER, with_call('{"a": 1}'), after]) is None
    assert conversation.find_held_tokens([USER, with_call('{"a": 1, "b": 2}', "sub"), after]) is None


def _call(arguments: str) -> dict[str, object]:
    from osmosis.training.protocol.messages import SampledToolCall

    return SampledToolCall(id="c", function={"name": "add", "arguments": arguments})  # type: ignore[return-value]


def test_nothing_is_held_of_a_history_that_was_changed() -> None:
    conversation = Conversation()
    conversation.add([USER], answer([USER], "call"))
    assert conversation.find_held_tokens([{"role": "user", "content": "another"}, said("call"), USER]) is None
    assert conversation.find_held_tokens([USER]) is None


def test_every_sampled_token_is_in_one_sequence_whatever_the_agent_does() -> None:
    """Random agents: they go on, rewrite, retry and run side by side."""
    for seed in range(200):
        draw = random.Random(seed)
        conversation, sampled = Conversation(), []
        histories = [[{"role": "user", "content": str(draw.randint(0, 3))}]]
        for turn in range(draw.randint(1, 8)):
            history = draw.choice(histories)
            if draw.random() < 0.3:
                history = history[: draw.randint(1, len(history))]
            text = f"{turn}{draw.choice('ab')}"
            got = answer(history, text)
            conversation.add(history, got)
            sampled += got.token_ids
            histories.append([*history, said(text), {"role": "user", "content": draw.choice(["x", "yy"])}])
        spoken_in_all = [
            token
            for part in conversation.parts
            for token, mask in zip(part.token_ids[part.prompt_length :], part.mask, strict=True)
            if mask
        ]
        assert sorted(spoken_in_all) == sorted(sampled)
        for part in conversation.parts:
            assert len(part.mask) == len(part.logprobs) == len(part.token_ids) - part.prompt_length
