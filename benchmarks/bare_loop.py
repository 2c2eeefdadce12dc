"""The yardstick: the least an eval can do with aiohttp. Rows, calls, a score, one JSON line each, nothing else.

No retries, no time limits, no durability, no statistics. Run by `eval_throughput.py`, as a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import aiohttp
from eval_tools import TOOLS


def exact(solution: str, truth: str) -> float:
    return 1.0 if solution.rpartition("#### ")[2] == truth else 0.0


async def rollout(session: aiohttp.ClientSession, url: str, row: dict, with_tool: bool) -> list[dict]:
    messages = [{"role": "system", "content": row["system_prompt"]}, {"role": "user", "content": row["user_prompt"]}]
    while True:
        body = {"model": "stub", "messages": messages}
        if with_tool:
            body["tools"] = TOOLS
        async with session.post(url, json=body) as reply:
            message = (await reply.json())["choices"][0]["message"]
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            return messages
        for call in calls:
            given = json.loads(call["function"]["arguments"])
            content = str(given["a"] + given["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


async def run(given: argparse.Namespace) -> None:
    rows = [json.loads(line) for line in Path(given.dataset).read_bytes().splitlines()]
    work = ((i, attempt, row) for i, row in enumerate(rows) for attempt in range(given.n))
    with Path(given.output).open("w") as out:  # noqa: ASYNC230 - nothing else runs yet
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def lane() -> None:
                for i, attempt, row in work:
                    messages = await rollout(session, given.url + "/chat/completions", row, given.tool)
                    score = exact(messages[-1]["content"], row["ground_truth"])
                    out.write(json.dumps({"row": i, "attempt": attempt, "messages": messages, "score": score}) + "\n")

            await asyncio.gather(*(lane() for _ in range(given.lanes)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--n", type=int, default=1)
    parser.add_argument("--tool", action="store_true")
    asyncio.run(run(parser.parse_args()))
