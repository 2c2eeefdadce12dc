"""A sampler whose tokens come from a server, Tinker's or vLLM's. Open for one step at a time, like the builtin one. The
server gets token ids and returns token ids with logprobs; prompts and answers are made here. A streamed answer comes in
one piece. The vLLM server runs in an environment of its own (`vllm serve BASE --enable-lora --max-lora-rank R
--logprobs-mode processed_logprobs`, with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`) and reads adapters from the run's output
folder. Every step has an adapter name of its own, because the prefix cache goes by the name. Log-probabilities are the
server's; the ratio of the loss is taken to them, so what differs between its arithmetic and the trainer's is corrected
as far as `clip` goes."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp

from osmosis.base.jsonable import JsonObject
from osmosis.errors import ModelError
from osmosis.records.run.rollout import Category
from osmosis.training.protocol.messages import SampledAnswer, SampleDelta, SampleRequest
from osmosis.training.protocol.plans import TrainerPlan

from .errors import TrainingFailed
from .sampler_base import Answering, Question

Tokens = tuple[list[int], list[float]]
Complete = Callable[[Question], Awaitable[Tokens]]


class RemoteSampler:
    """`complete` may be replaced while it is closed, when the server has other weights."""

    def __init__(self, answering: Answering, complete: Complete, *, concurrency: int) -> None:
        self.complete = complete
        self.totals = answering.totals
        self._answering = answering
        self._slots = asyncio.Semaphore(concurrency)
        self._opened = asyncio.Event()
        self._tasks: set[asyncio.Task[Tokens]] = set()
        self._step = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: Callable[[], None] = lambda: None

    def start(self, loop: asyncio.AbstractEventLoop, *, closing: Callable[[], None] = lambda: None) -> None:
        self._loop, self._closing = loop, closing

    def stop(self) -> None:
        self._closing()

    @contextlib.contextmanager
    def open(self, step: int, *, keep: bool = False) -> Iterator[None]:
        """Answer requests until the block ends, then cancel those in flight unless `keep`. Call from the training
        thread."""
        assert self._loop is not None
        self._step = step
        self._loop.call_soon_threadsafe(self._opened.set)
        try:
            yield
        finally:
            if not keep:
                asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    async def stream(self, request: SampleRequest) -> AsyncGenerator[SampleDelta | SampledAnswer, None]:
        question = self._answering.question(request)
        await self._opened.wait()
        step = self._step
        async with self._slots:
            task = asyncio.ensure_future(self.complete(question))
            self._tasks.add(task)
            try:
                token_ids, logprobs = await task
            except asyncio.CancelledError:
                if self._opened.is_set():  # the caller left
                    raise
                message = "the step this request belongs to is over"
                raise ModelError(message, category=Category.CANCELLED.value) from None
            finally:
                task.cancel()
                self._tasks.discard(task)
        sample = self._answering.answer(question, token_ids, logprobs, step)
        if request.stream and (sample.content or sample.reasoning):
            yield SampleDelta(content=sample.content or "", reasoning=sample.reasoning or "")
        yield sample

    async def _close(self) -> None:
        self._opened.clear()
        for task in self._tasks:
            task.cancel()


API_KEY = "VLLM_API_KEY"
LOAD_S = 300.0
_DRAFTS = ".policy"


class VllmServer:
    def __init__(self, plan: TrainerPlan, loop: asyncio.AbstractEventLoop, end_ids: list[int]) -> None:
        self._url = str(plan.sampler_url).rstrip("/").removesuffix("/v1")
        self._plan, self._loop, self._end_ids = plan, loop, end_ids
        self._folder = Path(plan.output_dir).resolve() / _DRAFTS
        self._session: aiohttp.ClientSession | None = None
        self._names: list[str] = []
        """Of the adapters that it has, the newest last; older ones may have requests in flight."""

    async def complete(self, question: Question) -> Tokens:
        body: JsonObject = {
            "model": self._names[-1],
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
            message = f"the vLLM server answers without token ids and logprobs ({error}): it needs vLLM 0.10.2 or newer"
            raise ModelError(message, category=Category.BAD_RESPONSE.value) from error
        return list(token_ids), [float(value) for value in logprobs]

    def publish(self, step: int, save: Callable[[Path], None]) -> None:
        """Sample from the adapter that `save` writes into a folder from here on. Call from the training thread."""
        name = f"{self._plan.run}-v{step}"
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save(folder)
        try:
            self._wait(self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}))
            self._names.append(name)
            while len(self._names) > 1 + self._plan.max_staleness + (self._plan.oversample > 1):
                oldest = self._names.pop(0)
                self._wait(self._post("/v1/unload_lora_adapter", {"lora_name": oldest}))
                shutil.rmtree(self._folder / oldest, ignore_errors=True)
        except ModelError as error:
            raise TrainingFailed(
                f"the vLLM server at {self._url} does not take the adapter of step {step}: {error.message}",
                kind="engine",
                hint="start it with --enable-lora, --max-lora-rank of at least lora_rank, "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and access to the run's output folder",
            ) from error

    def stop(self) -> None:
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
                parsed: JsonObject = await response.json() if is_json else {}
                return parsed if isinstance(parsed, dict) else {}
        except (aiohttp.ClientError, OSError) as error:
            message = f"the vLLM server does not answer: {error}"
            raise ModelError(message, category=Category.CONNECTION.value) from error
