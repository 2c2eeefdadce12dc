"""Samples from a vLLM server beside the trainer: its OpenAI-compatible API, with a new LoRA adapter after every step.

The server runs in an environment of its own (`vllm serve BASE --enable-lora --max-lora-rank R
--logprobs-mode processed_logprobs`, with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`) and reads adapters from the run's output
folder. Every step has an adapter name of its own: one that changed under the same name would be read through the
prefix cache of the old one. Log-probabilities are the server's; the ratio of the loss is taken to them, so what differs
between its arithmetic and the trainer's is corrected as far as `clip` goes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import aiohttp

from osmosis.base.json_types import JsonObject
from osmosis.errors import ModelError
from osmosis.records.rollout import Category
from osmosis.training.link import TrainerPlan

from .answering import Question
from .remote_sampler import Tokens
from .training_failed import TrainingFailed

API_KEY = "VLLM_API_KEY"
LOAD_S = 300.0
_DRAFTS = ".policy"


class VllmServer:
    """One server, used by one run. `end_ids` end an answer."""

    def __init__(self, plan: TrainerPlan, loop: asyncio.AbstractEventLoop, end_ids: list[int]) -> None:
        self._url = str(plan.sampler_url).rstrip("/").removesuffix("/v1")
        self._plan, self._loop, self._end_ids = plan, loop, end_ids
        self._folder = Path(plan.output_dir).resolve() / _DRAFTS
        self._session: aiohttp.ClientSession | None = None
        self._name: str | None = None

    async def complete(self, question: Question) -> Tokens:
        """One answer of the adapter that was published last."""
        body: JsonObject = {
            "model": self._name,
            "prompt": question.prompt_ids,
            "max_tokens": question.max_tokens,
            "temperature": question.temperature,
            "top_p": question.top_p,
            "stop": question.request.stop,
            "include_stop_str_in_output": True,
            "stop_token_ids": self._end_ids,
            "seed": question.request.seed,
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        answer = await self._post("/v1/completions", {key: value for key, value in body.items() if value is not None})
        try:
            choice = answer["choices"][0]
            token_ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        except (KeyError, IndexError, TypeError) as error:
            what = f"the vLLM server answers without token ids and logprobs ({error}): it needs vLLM 0.10.2 or newer"
            raise ModelError(what, category=Category.BAD_RESPONSE.value) from error
        return list(token_ids), [float(value) for value in logprobs]

    def publish(self, step: int, save: Callable[[Path], None]) -> None:
        """From the training thread: what `save` writes into a folder is sampled from here on."""
        name, before = f"{self._plan.run}-v{step}", self._name
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save(folder)
        try:
            self._wait(self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}))
            self._name = name
            if before is not None and before != name:
                self._wait(self._post("/v1/unload_lora_adapter", {"lora_name": before}))
                shutil.rmtree(self._folder / before, ignore_errors=True)
        except ModelError as error:
            raise TrainingFailed(
                f"the vLLM server at {self._url} does not take the adapter of step {step}: {error.message}",
                kind="engine",
                hint="start it with --enable-lora, --max-lora-rank of at least lora_rank, "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and access to the run's output folder",
            ) from error

    def stop(self) -> None:
        """From the training thread."""
        if self._session is not None:
            asyncio.run_coroutine_threadsafe(self._session.close(), self._loop).result(10)

    def _wait(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(LOAD_S)  # type: ignore[arg-type]  # a coroutine

    async def _post(self, path: str, body: JsonObject) -> JsonObject:
        if self._session is None:
            key = os.environ.get(API_KEY)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"Authorization": f"Bearer {key}"} if key else {},
            )
        try:
            async with self._session.post(self._url + path, json=body) as response:
                text = await response.text()
                if response.status >= 400:
                    category = Category.BAD_REQUEST if response.status < 500 else Category.SERVER_ERROR
                    raise ModelError(f"vLLM answers {response.status}: {text[:500]}", category=category.value)
                # Loading an adapter is answered in words.
                is_json = "json" in response.headers.get("Content-Type", "")
                found: JsonObject = await response.json() if is_json else {}
                return found if isinstance(found, dict) else {}
        except (aiohttp.ClientError, OSError) as error:
            what = f"the vLLM server does not answer: {error}"
            raise ModelError(what, category=Category.CONNECTION.value) from error
