"""What a job does with a trainer, without the job: follow its events and answer every collect.

`follow(link, answer)` with `recorded` answers from made-up tokens, the same for the same step; with `adding(link)` the
model really plays the tiny task, turn by turn.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from osmosis.records.run.rollout import Message
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import (
    Batch,
    Collect,
    Done,
    Event,
    Failed,
    HeldTokens,
    SampledAnswer,
    SampleRequest,
    Sequence,
)
from support.tiny_task import TOOL, grade, problem, run_tool

Answer = Callable[[Collect], Awaitable[Batch]]
TURNS = 2


async def sample_whole(link: TrainerClient, request: SampleRequest) -> SampledAnswer:
    async with aclosing(link.stream(request)) as parts:
        *_, answer = [part async for part in parts]
    assert isinstance(answer, SampledAnswer)
    return answer


async def follow(link: TrainerClient, answer: Answer, *, after: int = 0) -> AsyncGenerator[Event, None]:
    """Every event to the last; a collect is answered before the next event is asked for."""
    async for one in link.events(after):
        if isinstance(one.event, Collect):
            await link.send_batch(await answer(one.event))
        yield one.event
        if isinstance(one.event, (Done, Failed)):
            await link.acknowledge(one.number)
            return


def recorded(collect: Collect, seed: int = 0) -> Batch:
    """Rollouts of random tokens, an environment in the middle of each, with random rewards."""
    found = []
    for row in collect.rows:
        for attempt in range(collect.samples_per_row):
            draw = random.Random(f"{seed}/{collect.step}/{row}/{attempt}")
            rest = [draw.randrange(20, 100) for _ in range(draw.randint(6, 20))]
            mask = [int(not len(rest) // 3 <= at < len(rest) // 2) for at in range(len(rest))]
            found.append(
                Sequence(
                    row=row,
                    attempt=attempt,
                    token_ids=[30] * 5 + rest,
                    prompt_length=5,
                    mask=mask,
                    logprobs=[-1.0 * said for said in mask],
                    reward=float(draw.random() < 0.5),
                )
            )
    return Batch(step=collect.step, kind=collect.kind, sequences=found)


async def replay(collect: Collect) -> Batch:
    """`recorded` as an answer."""
    return recorded(collect)


def adding(link: TrainerClient) -> Answer:
    """Plays the tiny task with the model behind the link."""

    async def answer(collect: Collect) -> Batch:
        every = [(row, attempt) for row in collect.rows for attempt in range(collect.samples_per_row)]
        played = await asyncio.gather(*(play(link, collect.step, row, attempt) for row, attempt in every))
        return Batch(step=collect.step, kind=collect.kind, sequences=list(played))

    return answer


async def play(link: TrainerClient, step: int, row: int, attempt: int) -> Sequence:
    """One rollout: the problem is the row's, the tokens those that were sampled, with the tool's masked."""
    a, b = problem(random.Random(row))
    messages: list[Message] = [{"role": "user", "content": f"{a}+{b}"}]
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    prompt_length, held, truncated = 0, None, False
    for turn in range(TURNS):
        name = f"{step}/{row}/{attempt}/{turn}"
        request = SampleRequest(id=name, messages=messages, tools=[TOOL], max_tokens=24, seed=attempt, held=held)
        sample = await sample_whole(link, request)
        prompt_length = prompt_length or len(sample.prompt_ids)
        spoken = max(len(ids), prompt_length)
        told = len(sample.prompt_ids) - spoken
        ids = sample.prompt_ids + sample.token_ids
        mask += [0] * told + [1] * len(sample.token_ids)
        logprobs += [0.0] * told + sample.logprobs
        truncated = truncated or sample.finish_reason == "length"
        messages = [*messages, sample.message]
        if not sample.tool_calls:
            break
        held = HeldTokens(messages=len(messages), token_ids=ids)
        for call in sample.tool_calls:
            content = run_tool(call.function["arguments"])
            messages = [*messages, {"role": "tool", "tool_call_id": call.id, "content": content}]
    return Sequence(
        row=row,
        attempt=attempt,
        token_ids=ids,
        prompt_length=prompt_length,
        mask=mask,
        logprobs=logprobs,
        reward=grade(messages, a, b),
        truncated=truncated,
    )
