"""Agents and score functions that the engine's tests load by name, each going wrong in its own way."""

import asyncio
import math

from osmosis.errors import ModelError
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.grader import Grader
from osmosis.sdk.workflow import AgentWorkflow


class Chat(RolloutAgentLoop):
    name = "chat"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages)


class Misbehaving(Chat):
    """Does what the row's `mode` says."""

    name = "misbehaving"

    async def run(self, ctx):
        mode = ctx.request.metadata.get("mode")
        if mode == "raise":
            raise RuntimeError("[/red] agent fell over")
        if mode == "hang":
            await asyncio.Event().wait()
        if mode == "give_up":
            return ctx.error("could not do it")
        if mode == "nothing":
            return None
        if mode == "swallow":
            try:
                await ctx.chat(list(ctx.request.messages))
            except ModelError:
                return ctx.error("the model is gone")
        if mode == "odd_messages":
            return ctx.complete([{"role": "assistant", "content": object()}])
        if mode == "cancel":
            raise asyncio.CancelledError
        return await super().run(ctx)


class Work(AgentWorkflow):
    async def run(self, ctx):
        if ctx.metadata.get("mode") == "hang":
            await asyncio.Event().wait()
        messages = list(ctx.prompt)
        async with ctx.chat() as chat:
            messages.append((await chat.complete(messages)).message)
        return messages


class Grade(Grader):
    async def grade(self, ctx):
        if (ctx.metadata or {}).get("mode") == "raise":
            raise ValueError("grader fell over")
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"].endswith(f"#### {ctx.label}") else 0.0)


chat = Chat()
misbehaving = Misbehaving()


def exact(solution_str, ground_truth, extra_info=None, **kwargs):
    return 1.0 if solution_str.rpartition("#### ")[2] == ground_truth else 0.0


async def full(messages, ground_truth, metadata):
    return len(messages) / 10


def by_mode(solution_str, ground_truth, extra_info):
    mode = extra_info.get("mode")
    if mode == "score_raise":
        raise KeyError("no such thing")
    if mode == "score_nan":
        return math.nan
    if mode == "score_text":
        return "good"
    if mode == "score_exit":
        raise SystemExit(3)
    return exact(solution_str, ground_truth)


def slow(solution_str, ground_truth, extra_info=None):
    import threading

    threading.Event().wait(60)
    return 1.0


def two_parameters(solution_str, ground_truth):
    return 1.0


def wrong_first(answer, ground_truth, extra_info=None):
    return 1.0


class Callable:
    async def __call__(self, solution_str, ground_truth, extra_info):
        return 0.5


as_object = Callable()
