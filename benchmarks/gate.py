"""Measure the model gate: calls a second, CPU a call, latency and time to the first byte, in each dialect.

Beside it, in the same run, a bare server answers the same bytes: uvicorn and JSON, without rollouts, records or
dialects. Servers and client are processes of their own; the model answers at once.

    python benchmarks/gate.py [--calls 2000] [--kilobytes 8] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import orjson

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from osmosis.dialects import CHAT, DIALECTS, GEMINI, MESSAGES, RESPONSES, Call, Dialect
from osmosis.llm.model import ChatRequest, Completion, Piece
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.rollout import Usage
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.http import bind, listening, url_of
from support.dialect_clients import build

TEXT = "The answer is forty-two, as so often. " * 8
PIECES = [TEXT[start : start + 8] for start in range(0, len(TEXT), 8)]
PATHS = {
    CHAT.name: "/chat/completions",
    MESSAGES.name: "/v1/messages",
    RESPONSES.name: "/responses",
    GEMINI.name: "/v1beta/models/m:{method}",
}


class AtOnce:
    """Answers at once, in pieces where a listener wants them."""

    spec = ModelSpec(name="m", kind="offline")

    async def complete(self, request: ChatRequest) -> Completion:
        if request.on_piece is not None:
            for piece in PIECES:
                request.tell(Piece({"content": piece}))
        usage = Usage(prompt_tokens=900, completion_tokens=len(PIECES))
        return Completion(message={"role": "assistant", "content": TEXT}, finish_reason="stop", usage=usage, model="m")

    async def close(self) -> None:
        return None


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Read a body, parse it, and answer the bytes that its header names."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    orjson.loads(body)
    length = int(dict(scope["headers"])[b"x-answer-bytes"])
    headers = [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b" " * length})


def serve(connection: Connection, kind: str) -> None:
    """Serve until a message comes; tell the address, and the CPU seconds whenever asked."""

    async def run() -> None:
        if kind == "bare":
            listener = bind("127.0.0.1", 0)
            async with listening(bare, listener):
                connection.send((url_of(listener), ""))
                await answer_questions()
        else:
            async with ModelProxy(AtOnce()) as proxy:
                rollouts = [proxy.open_rollout(f"r{number}") for number in range(64)]
                connection.send(([rollout.prefix for rollout in rollouts], [rollout.bearer for rollout in rollouts]))
                await answer_questions()

    async def answer_questions() -> None:
        while await asyncio.to_thread(connection.recv) == "cpu":
            used = resource.getrusage(resource.RUSAGE_SELF)
            connection.send(used.ru_utime + used.ru_stime)

    asyncio.run(run())


@dataclass
class Figures:
    server: str
    dialect: str
    stream: bool
    calls_per_s: float
    cpu_ms: float
    """CPU of the server, per call."""
    p50_ms: float
    p99_ms: float
    first_byte_ms: float


def request_body(dialect: Dialect, kilobytes: int) -> bytes:
    tools = [
        {"type": "function", "function": {"name": f"tool_{i}", "parameters": {"type": "object", "properties": {}}}}
        for i in range(8)
    ]
    filler = "x" * (kilobytes * 1024 // 9)
    messages: list[dict[str, Any]] = [{"role": "system", "content": filler}]
    for _ in range(4):
        messages += [{"role": "user", "content": filler}, {"role": "assistant", "content": filler}]
    messages.append({"role": "user", "content": "go on"})
    return orjson.dumps(build(dialect, Call(messages, tools, {"max_tokens": 512}, model="m")))


async def drive(
    calls: int, concurrency: int, call: Callable[[int], Awaitable[float]]
) -> tuple[float, list[float], float]:
    """Return calls a second, latencies in ms at concurrency 1, and the median time to the first byte there."""
    alone: list[float] = []
    firsts: list[float] = []
    for number in range(min(calls, 300)):
        began = time.perf_counter()
        firsts.append((await call(number)) * 1000)
        alone.append((time.perf_counter() - began) * 1000)
    numbers = iter(range(calls))

    async def work() -> None:
        for number in numbers:
            await call(number)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return calls / (time.perf_counter() - began), alone, statistics.median(firsts)


async def measure(
    server: str, dialect: Dialect, stream: bool, connection: Connection, at: tuple[Any, Any], calls: int, kilobytes: int
) -> Figures:
    body = request_body(dialect, kilobytes)
    if stream:
        body = orjson.dumps({**orjson.loads(body), "stream": True})
    path = PATHS[dialect.name].format(method="streamGenerateContent" if stream else "generateContent")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def call(number: int) -> float:
            began = time.perf_counter()
            if server == "bare":
                url, headers = at[0], {"x-answer-bytes": "600"}
            else:
                index = number % len(at[0])
                url, headers = at[0][index] + path, {"authorization": f"Bearer {at[1][index]}"}
            async with session.post(url, data=body, headers=headers) as reply:
                assert reply.status == 200, await reply.text()
                await reply.content.readany()
                first = time.perf_counter() - began
                await reply.read()
                return first

        connection.send("cpu")
        before = connection.recv()
        rate, alone, first = await drive(calls, 32, call)
        connection.send("cpu")
        cpu = connection.recv() - before
    quantiles = statistics.quantiles(alone, n=100)
    done = calls + len(alone)
    return Figures(
        server, dialect.name, stream, rate, cpu * 1000 / done, statistics.median(alone), quantiles[98], first
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--kilobytes", type=int, default=8, help="size of a request")
    parser.add_argument("--json", help="write the figures to this file, too")
    options = parser.parse_args()
    figures: list[Figures] = []
    for server in ("bare", "gate"):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, server), daemon=True)
        process.start()
        at = ours.recv()
        kinds = [(CHAT, False)] if server == "bare" else [(d, s) for d in DIALECTS.values() for s in (False, True)]
        for dialect, stream in kinds:
            figures.append(asyncio.run(measure(server, dialect, stream, ours, at, options.calls, options.kilobytes)))
        ours.send("stop")
        process.join()
    base = figures[0]
    titles = ("calls/s", "CPU ms", "p50 ms", "p99 ms", "added p50", "added p99", "1st byte")
    print(f"{'':26}" + "".join(f"{title:>11}" for title in titles))
    for row in figures:
        name = row.server if row.server == "bare" else f"{row.dialect}{', streamed' if row.stream else ''}"
        added = (row.p50_ms - base.p50_ms, row.p99_ms - base.p99_ms)
        numbers = (row.cpu_ms, row.p50_ms, row.p99_ms, *added, row.first_byte_ms)
        print(f"{name:26}{row.calls_per_s:>11.0f}" + "".join(f"{number:>11.2f}" for number in numbers))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in figures], file, indent=2)


if __name__ == "__main__":
    main()
