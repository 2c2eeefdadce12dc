"""The yardstick of `server_throughput.py`: generation 0.2's init and its two calls, and nothing else.

FastAPI checks the body, one aiohttp session makes the model call and posts the completion. No retries, no limits, no
idempotency, no drain: what it costs is what FastAPI and aiohttp cost.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field


class Init(BaseModel):
    rollout_id: str = Field(min_length=1, max_length=256)
    server_url: str
    messages: list[dict[str, Any]]
    completion_params: dict[str, Any]
    max_turns: int = 10
    max_tokens_total: int = 8192
    metadata: dict[str, Any] = Field(default_factory=dict)
    api_key: str | None = None
    idempotency_key: str | None = None


@asynccontextmanager
async def life(app: FastAPI) -> AsyncIterator[None]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        app.state.session = session
        yield


app = FastAPI(lifespan=life)
tasks: set[asyncio.Task[None]] = set()
slots = asyncio.Semaphore(int(sys.argv[2]) if len(sys.argv) > 2 else 100)


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "healthy"}


@app.post("/v1/rollout/init", status_code=202)
async def init(request: Init) -> JSONResponse:
    task = asyncio.create_task(run(request))
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return JSONResponse({"rollout_id": request.rollout_id, "tools": []}, status_code=202)


async def run(request: Init) -> None:
    async with slots:
        body = {"model": "default", "messages": request.messages, "rollout_id": request.rollout_id}
        done = await post(request, "/v1/chat/completions", {**body, **request.completion_params})
        usage = done.get("usage") or {}
        metrics = {
            "num_llm_calls": 1,
            "prompt_tokens": usage.get("prompt_tokens", 0),
            "response_tokens": usage.get("completion_tokens", 0),
        }
        result = {
            "rollout_id": request.rollout_id,
            "status": "COMPLETED",
            "final_messages": [*request.messages, done["choices"][0]["message"]],
            "finish_reason": "stop",
            "metrics": metrics,
        }
        await post(request, "/v1/rollout/completed", result)


async def post(request: Init, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {request.api_key}"}
    async with app.state.session.post(request.server_url + path, json=body, headers=headers) as reply:
        reply.raise_for_status()
        answer: dict[str, Any] = await reply.json()
        return answer


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
