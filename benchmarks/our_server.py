"""The servers under test of `server_throughput.py`: a trivial one-call agent loop behind `create_app`, or, with the
word `workflow` as third argument, a one-call workflow and its grader behind `create_rollout_server`.

With a number as third argument every rollout also waits that many seconds, so that many are in flight at once; the lag
of the event loop is then measured and printed as one JSON line at the end: as the clock shows it, and as the CPU time
that the loop itself was busy, which is what the lag would be on a machine that nobody shares.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from osmosis import AgentWorkflow, AgentWorkflowConfig, Grader, LocalBackend, create_rollout_server
from osmosis.compat.server import LoopServerSettings, build_loop_server
from osmosis.records.protocol.v02 import OpenAIFunctionToolSchema, RolloutRequest
from osmosis.sdk.agent_loop import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis.serve.server.queue import ServeLimits


class OneCall(RolloutAgentLoop):
    name = "one-call"
    nap_s = 0.0

    def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        if self.nap_s:
            await asyncio.sleep(self.nap_s)
        done = await ctx.chat(messages, **ctx.request.completion_params)
        messages.append(done.message)
        return ctx.complete(messages, done.finish_reason)


class Answers(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: Any) -> list[dict[str, Any]]:
        async with ctx.chat() as chat:
            answer = await chat.complete(ctx.prompt, temperature=0.7, max_tokens=64)
        return [*ctx.prompt, answer.message]


class Exact(Grader[Any]):
    async def grade(self, ctx: Any) -> None:
        ctx.set_reward(1.0 if "42" in ctx.sample.messages[-1]["content"] else 0.0)


class Lag:
    """The loop's lag while rollouts are in flight, and the most rollouts in flight."""

    def __init__(self) -> None:
        self.clock: list[float] = []
        self.cpu: list[float] = []
        self.most = 0

    async def measure(self, app: FastAPI) -> None:
        while True:
            clock, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.01)
            now = app.state.runtime.queue.active
            self.most = max(self.most, now)
            if now > 100:
                self.clock.append(max(0.0, time.perf_counter() - clock - 0.01))
                self.cpu.append(max(0.0, time.thread_time() - cpu - 0.01))

    def report(self) -> str:
        return json.dumps(
            {"most_in_flight": self.most, "lag_ms": shown(self.clock), "lag_ms_by_cpu_time": shown(self.cpu)}
        )


def shown(lags: list[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    lags = sorted(lags) or [0.0]
    points = {f"p{p}": lags[int(len(lags) * p / 100)] for p in (50, 90, 99)}
    return {name: round(value * 1000, 2) for name, value in {**points, "max": lags[-1]}.items()}


def serve(app: FastAPI, port: int) -> None:
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False, backlog=4096)


def serve_workflow(port: int, slots: int) -> None:
    config = AgentWorkflowConfig.model_validate({"name": "one-call", "concurrency": {"max_concurrent": slots}})
    limits = ServeLimits(max_queue=50_000, rollout_timeout_s=600)
    with tempfile.TemporaryDirectory() as spool:
        backend = LocalBackend(Answers, config, Exact)
        serve(create_rollout_server(backend, limits=limits, spool_dir=Path(spool), environ={}), port)


def main() -> None:
    port, slots = int(sys.argv[1]), int(sys.argv[2])
    if sys.argv[3:] == ["workflow"]:
        serve_workflow(port, slots)
        return
    loop = OneCall()
    loop.nap_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    lag = Lag()

    @asynccontextmanager
    async def measured(app: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(lag.measure(app))
        yield
        watch.cancel()
        # uvicorn ends the process with the signal it was sent: nothing after it would run
        sys.stdout.write(lag.report() + "\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory() as spool:
        settings = LoopServerSettings(
            max_concurrent=slots,
            record_ttl_s=5.0 if loop.nap_s else None,
            lifespan=measured if loop.nap_s else None,
            limits=ServeLimits(max_queue=50_000, rollout_timeout_s=600),
            spool_dir=Path(spool),
        )
        app = build_loop_server(loop, settings)
        serve(app, port)


if __name__ == "__main__":
    main()
