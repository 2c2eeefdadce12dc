"""Agents and score functions that the engine's tests load by name, each going wrong in its own way."""

import asyncio
import math
import time

from osmosis.errors import ModelError
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.workflow import AgentWorkflow, Grader


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


class Leaves(RolloutAgentLoop):
    """Leaves, or does, what the row's `mode` says; answers without a model."""

    name = "leaves"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        mode = ctx.request.metadata.get("mode")
        content = "#### ok"
        if mode == "half_a_pair":
            content = b"caf\xe9.txt".decode("utf-8", "surrogateescape")
        elif mode == "circle":
            content = [content]
            content.append(content)
        elif mode == "deep":
            for _ in range(300):
                content = {"a": content}
        elif mode == "odd_keys":
            content = {(1, 2): object(), "n": 2**80}
        elif mode == "error_text":
            raise ValueError("\ud800")
        elif mode == "own_words":
            return ctx.error("\ud800 gave up")
        elif mode == "interrupt":
            raise KeyboardInterrupt
        elif mode == "exit":
            raise SystemExit(0)
        elif mode == "swallow":
            while True:
                try:
                    await asyncio.sleep(30)
                except BaseException:  # noqa: BLE001 - the fault that is tested
                    pass
        elif mode == "hang":
            await asyncio.Event().wait()
        elif mode == "hold":
            await asyncio.sleep(0.05)
            time.sleep(1.5)  # noqa: ASYNC251 - the fault that is tested
        elif mode == "work":
            await asyncio.sleep(0.9)
        ctx.request.metadata["seen"].append(mode)
        return ctx.complete([*ctx.request.messages, {"role": "assistant", "content": content}])


leaves = Leaves()


def clears(messages, ground_truth, metadata):
    messages.clear()
    metadata["seen"].append("scorer")
    metadata["ground_truth"] = "999"
    return 1.0


def sees(messages, ground_truth, metadata):
    return len(messages) + len(metadata["seen"]) / 10


async def never_ends(solution_str, ground_truth, extra_info):
    while True:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            continue


def extreme(solution_str, ground_truth, extra_info):
    return {"huge": 10**400, "low": -1e308, "stop": 0.0}[extra_info["mode"]]


class Endlessly(RolloutAgentLoop):
    """Goes on asking, whatever it is told."""

    name = "endless"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        while True:
            try:
                messages.append((await ctx.chat(messages)).message)
            except Exception:  # noqa: BLE001 - an agent that retries whatever a call raises
                continue
            messages.append({"role": "user", "content": "go on"})


class Stubborn(Endlessly):
    async def run(self, ctx):
        while True:
            try:
                await super().run(ctx)
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the fault that is tested
                continue


class Ponders(Endlessly):
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        messages.append((await ctx.chat(messages)).message)
        await asyncio.Event().wait()


class Endless(AgentWorkflow):
    async def run(self, ctx):
        messages = list(ctx.prompt)
        async with ctx.chat() as chat:
            while True:
                messages.append((await chat.complete(messages)).message)
                messages.append({"role": "user", "content": "go on"})


class Crowd(RolloutAgentLoop):
    """Asks fifty times at once."""

    name = "crowd"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        done = await asyncio.gather(*(ctx.chat(ctx.request.messages) for _ in range(50)))
        return ctx.complete([*ctx.request.messages, done[-1].message])


class OverHttp(AgentWorkflow):
    """Calls its endpoint with a client of its own."""

    async def run(self, ctx):
        import httpx

        messages = list(ctx.prompt)
        async with httpx.AsyncClient() as client:
            while True:
                rollout = ctx.rollout
                reply = await client.post(
                    rollout.chat_completions_url + "/chat/completions",
                    json={"model": "m", "messages": messages},
                    headers={"authorization": f"Bearer {rollout.api_key}"},
                )
                reply.raise_for_status()
                messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]


crowd = Crowd()
endless = Endlessly()
stubborn = Stubborn()
ponders = Ponders()
