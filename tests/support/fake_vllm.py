"""A vLLM server without a model: completions from token ids, and LoRA adapters that come and go by name.

It checks what a real one would: that an adapter is loaded from a folder that holds one, and that only loaded names are
asked. Every answer is `answer` (token ids), cut at the limit; `asked` are the bodies of completions in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from osmosis.base.jsonable import JsonObject


class FakeVllm:
    """`async with FakeVllm(answer) as server: ... server.url`."""

    def __init__(self, answer: Sequence[int]) -> None:
        self.answer = list(answer)
        self.asked: list[JsonObject] = []
        self.keys: set[str | None] = set()
        """The Authorization headers that came."""
        self.loaded: list[str] = []
        """Names in the order in which they came, those that went included."""
        self.adapters: dict[str, str] = {}
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> FakeVllm:
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/v1/unload_lora_adapter", self._unload)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        self.keys.add(request.headers.get("Authorization"))
        body = await request.json()
        if body["model"] not in self.adapters:
            return web.json_response({"error": {"message": f"the model {body['model']} does not exist"}}, status=404)
        self.asked.append(body)
        tokens = self.answer[: body["max_tokens"]]
        logprobs = {"token_logprobs": [-0.25] * len(tokens), "tokens": [str(token) for token in tokens]}
        choice = {"index": 0, "text": "", "token_ids": tokens, "logprobs": logprobs, "finish_reason": "stop"}
        return web.json_response({"object": "text_completion", "model": body["model"], "choices": [choice]})

    async def _load(self, request: web.Request) -> web.Response:
        self.keys.add(request.headers.get("Authorization"))
        body = await request.json()
        if not (Path(body["lora_path"]) / "adapter_model.safetensors").is_file():
            return web.json_response({"error": {"message": "no adapter there"}}, status=400)
        self.adapters[body["lora_name"]] = body["lora_path"]
        self.loaded.append(body["lora_name"])
        return web.Response(text=f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.adapters.pop(body["lora_name"], None) is None:
            return web.json_response({"error": {"message": "no such adapter"}}, status=404)
        return web.Response(text="Success")
