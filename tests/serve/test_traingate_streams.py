"""The model proxy while the model still writes: pieces as they come, failures before and after, agents that hang up."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest

from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Piece
from osmosis.records.rollout import ModelCall, Usage
from osmosis.serve.drive.model_endpoint import RolloutEndpoint
from osmosis.serve.drive.traingate import TrainGate
from osmosis.testing.waiting import until

from .support import SPEC, ScriptedModel, open_gate, say

CALL = {"id": "call_1", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 6}'}}


class Writes:
    """Says `pieces`, one each time it is let on; then answers with `done`, or raises it."""

    def __init__(self, pieces: list[dict[str, Any]], done: Completion | ModelError) -> None:
        self.spec = SPEC
        self.pieces = pieces
        self.done = done
        self.go_on = asyncio.Semaphore(0)
        self.cut_off = False

    async def complete(self, request: ChatRequest) -> Completion:
        try:
            for delta in self.pieces:
                await self.go_on.acquire()
                request.tell(Piece(delta))
            await self.go_on.acquire()
        except asyncio.CancelledError:
            self.cut_off = True
            raise
        if isinstance(self.done, ModelError):
            raise self.done
        return self.done

    async def close(self) -> None:
        return None


class Asked:
    """A streamed call of one rollout."""

    def __init__(self, gate: TrainGate, session: aiohttp.ClientSession) -> None:
        self.rollout = gate.open_rollout("r1")
        self.session = session

    def post(self, **more: object) -> Any:
        body = {"messages": [{"role": "user", "content": "?"}], "stream": True, **more}
        headers = {"Authorization": f"Bearer {self.rollout.bearer}"}
        return self.session.post(self.rollout.prefix + "/chat/completions", json=body, headers=headers)


async def event(reply: aiohttp.ClientResponse) -> Any:
    """The next event; None for the end."""
    line = await asyncio.wait_for(reply.content.readuntil(b"\n\n"), 10)
    data = line.removeprefix(b"data: ").strip()
    return None if data == b"[DONE]" else orjson.loads(data)


def delta_of(chunk: Any) -> Any:
    return chunk["choices"][0]["delta"]


async def test_a_piece_arrives_while_the_model_still_writes() -> None:
    model = Writes(
        [{"content": "The "}, {"content": "answer"}], say("The answer is 42.", token_ids=[1], logprobs=[-0.5])
    )
    async with open_gate(model) as gate, aiohttp.ClientSession() as session:
        model.go_on.release()
        async with Asked(gate, session).post(stream_options={"include_usage": True}) as reply:
            assert delta_of(await event(reply)) == {"role": "assistant", "content": ""}
            assert delta_of(await event(reply)) == {"content": "The "}
            model.go_on.release()  # nothing more was written before this
            assert delta_of(await event(reply)) == {"content": "answer"}
            model.go_on.release()
            assert delta_of(await event(reply)) == {"content": " is 42."}  # what the pieces had left out
            last = await event(reply)
            assert last["choices"][0]["finish_reason"] == "stop"
            assert (last["token_ids"], last["logprobs"]) == ([1], [-0.5])
            assert (await event(reply))["usage"]["completion_tokens"] == 3
            assert await event(reply) is None


async def test_tool_calls_and_reasoning_come_once_each() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "six",
        "tool_calls": [CALL, {**CALL, "id": "2"}],
    }
    told = [{"reasoning_content": "six"}, {"tool_calls": [{"index": 0, **CALL}]}]
    model = Writes(told, Completion(message, "tool_calls", Usage()))
    async with open_gate(model) as gate, aiohttp.ClientSession() as session:
        for _ in range(3):
            model.go_on.release()
        async with Asked(gate, session).post() as reply:
            text = await reply.text()
    chunks = [orjson.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    calls = [call for chunk in chunks for call in delta_of(chunk).get("tool_calls", [])]
    arguments: dict[int, str] = {}
    for call in calls:
        arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
    assert arguments == {0: '{"a": 6}', 1: '{"a": 6}'}
    assert [delta_of(chunk)["reasoning_content"] for chunk in chunks if "reasoning_content" in delta_of(chunk)] == [
        "six"
    ]


@pytest.mark.parametrize("pieces", [0, 1])
async def test_a_failure_is_a_status_before_the_first_piece_and_an_event_after_it(pieces: int) -> None:
    failure = ModelError("the endpoint went away", category="connection")
    model = Writes([{"content": "The "}][:pieces], failure)
    async with open_gate(model) as gate, aiohttp.ClientSession() as session:
        asked = Asked(gate, session)
        for _ in range(pieces + 1):
            model.go_on.release()
        async with asked.post() as reply:
            assert reply.status == (200 if pieces else 424)
            text = await reply.text()
        assert "the endpoint went away" in text
        assert "[DONE]" not in text
        assert asked.rollout.model_error is failure


async def test_an_agent_that_hangs_up_ends_the_model_call() -> None:
    model = Writes([{"content": "The "}, {"content": "never"}], say("The never"))
    async with open_gate(model) as gate, aiohttp.ClientSession() as session:
        model.go_on.release()
        reply = await Asked(gate, session).post()
        await event(reply)
        reply.close()
        await until(lambda: model.cut_off, what="the call being cancelled")


async def test_the_observer_hears_every_answer_in_full() -> None:
    heard: list[tuple[str, str | None, list[int] | None]] = []

    class Observer:
        def opened(self, endpoint: RolloutEndpoint) -> None:
            heard.append((endpoint.rollout_id, "opened", None))

        def model_call(
            self, endpoint: RolloutEndpoint, asked: ChatRequest, call: ModelCall, done: Completion | None
        ) -> None:
            heard.append((asked.rollout_id, call.error, done.token_ids if done else None))

    answers = iter([say("hi", token_ids=[3, 4]), None])

    def reply(_: ChatRequest) -> Completion:
        answer = next(answers)
        if answer is None:
            raise ModelError("gone", category="connection")
        return answer

    gate = TrainGate(ScriptedModel(reply), observer=Observer())
    await gate.start()
    try:
        async with aiohttp.ClientSession() as session:
            asked = Asked(gate, session)
            for stream in (True, False):
                async with asked.post(stream=stream) as got:
                    await got.read()
    finally:
        await gate.stop()
    assert heard == [("r1", "opened", None), ("r1", None, [3, 4]), ("r1", "connection: gone", None)]
