"""A vLLM server without a model: completions from token ids, and LoRA adapters that come and go by name.

It checks what a real one would: that an adapter is loaded from a folder that holds one, and that only loaded names are
asked. Answers are `answers` (token ids) in turn, cut at the limit; `asked` are the bodies of completions in order.
`write_program` makes a program `vllm` of it, which a job starts in a sandbox: this file reads nothing of osmosis.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

    from osmosis.base.jsonable import JsonObject


def write_program(folder: Path, *answers: Sequence[int], fails: str = "") -> Path:
    """`vllm`, beside a `python` as in an environment; with `fails` it says that and ends."""
    program = folder / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.with_name("python").symlink_to(sys.executable)
    end = f"sys.exit({fails!r})" if fails else f"asyncio.run(serve(*{answers}))"
    program.write_text(f"#!{sys.executable}\n{Path(__file__).read_text()}\n\n{end}\n")
    program.chmod(0o755)
    return program


async def serve(*answers: Sequence[int]) -> None:
    """What `vllm serve MODEL --port N ...` does, with the key that the environment has."""
    options = dict(zip(sys.argv[4::2], sys.argv[5::2], strict=True))
    assert sys.argv[1] == "serve"
    assert (Path(sys.argv[2]) / "config.json").is_file()
    assert sys.argv[3] == "--enable-lora"
    async with FakeVllm(*answers, port=int(options["--port"]), key=os.environ["VLLM_API_KEY"]):
        await asyncio.Event().wait()


class FakeVllm:
    """`async with FakeVllm(answer) as server: ... server.url`."""

    def __init__(self, *answers: Sequence[int], port: int = 0, key: str = "") -> None:
        self.answers = [list(answer) for answer in answers]
        self._port = port
        self._key = key
        self.asked: list[JsonObject] = []
        self.keys: set[str | None] = set()
        """The Authorization headers that came."""
        self.loaded: list[str] = []
        """Names in the order in which they came, those that went included."""
        self.adapters: dict[str, str] = {}
        self.calls: list[str] = []
        """What came, in order; completions in a row once."""
        self.sleeps = False
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> FakeVllm:
        app = web.Application(middlewares=[self._check_key])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/sleep", self._sleep)
        app.router.add_post("/wake_up", self._wake_up)
        app.router.add_post("/v1/unload_lora_adapter", self._unload)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _check_key(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.keys.add(request.headers.get("Authorization"))
        if self._key and request.path != "/health" and request.headers.get("Authorization") != f"Bearer {self._key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        name = request.path.rpartition("/")[2]
        if self.sleeps and name in ("completions", "load_lora_adapter"):
            return web.json_response({"error": "it sleeps"}, status=500)
        self.calls += [] if self.calls[-1:] == [name] else [name]
        return await handler(request)

    async def _sleep(self, request: web.Request) -> web.Response:
        assert request.query == {"level": "1"}, "2 would forget the weights"
        self.sleeps = True
        return web.Response()

    async def _wake_up(self, request: web.Request) -> web.Response:
        self.sleeps = False
        return web.Response()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.adapters]})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["model"] not in self.adapters:
            return web.json_response({"error": {"message": f"the model {body['model']} does not exist"}}, status=404)
        tokens = self.answers[len(self.asked) % len(self.answers)][: body["max_tokens"]]
        self.asked.append(body)
        logprobs = {"token_logprobs": [-0.25] * len(tokens), "tokens": [str(token) for token in tokens]}
        choice = {"index": 0, "text": "", "token_ids": tokens, "logprobs": logprobs, "finish_reason": "stop"}
        return web.json_response({"object": "text_completion", "model": body["model"], "choices": [choice]})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["lora_name"] in self.adapters:
            return web.json_response({"error": {"message": "it has already been loaded"}}, status=400)
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
