"""A sampler whose tokens come from a server, Tinker's or vLLM's, open for one step at a time. Every step has an adapter
of its own name and folder, because vLLM's prefix cache goes by them; what a death cuts off is repeated."""

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp

from osmosis.base.jsonable import JsonObject
from osmosis.errors import ModelError
from osmosis.records.run.rollout import Category
from osmosis.training.protocol.messages import SampledAnswer, SampleDelta, SampleRequest
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.answering import Answering, Question
from osmosis.training.trainer.service import TrainingFailed

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
        """Answer requests until the block ends; `keep` those in flight. Call from the training thread."""
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
PATIENCE_S = 1800.0
POLL_S = 0.5
REPEATS = 2  # the request itself may be what the server dies of
_DRAFTS = ".policy"


class VllmServers:
    def __init__(self, plan: TrainerPlan, loop: asyncio.AbstractEventLoop, end_ids: list[int]) -> None:
        self._plan, self._loop, self._end_ids = plan, loop, end_ids
        self._in_flight = {url.rstrip("/").removesuffix("/v1"): 0 for url in plan.sampler_urls}
        self._restoring = {url: asyncio.Lock() for url in self._in_flight}
        self._folder = Path(plan.output_dir).resolve() / _DRAFTS
        self._life = secrets.token_hex(2)  # an earlier trainer of the run may have used the same steps
        self._session: aiohttp.ClientSession | None = None
        self._names: list[str] = []
        """Adapters that they have, the newest last; older ones may have requests in flight."""
        shutil.rmtree(self._folder, ignore_errors=True)

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
        url = min(self._in_flight, key=self._in_flight.__getitem__)
        self._in_flight[url] += 1
        try:
            body = {key: value for key, value in body.items() if value is not None}
            answer = await self._post_repeatedly(url, "/v1/completions", body)
        finally:
            self._in_flight[url] -= 1
        try:
            choice = answer["choices"][0]
            token_ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        except (KeyError, IndexError, TypeError) as error:
            message = f"the vLLM server answers without token ids and logprobs ({error}): it needs vLLM 0.10.2 or newer"
            raise ModelError(message, category=Category.BAD_RESPONSE.value) from error
        return list(token_ids), [float(value) for value in logprobs]

    def publish(self, step: int, save: Callable[[Path], None]) -> None:
        """Sample from the adapter that `save` writes into a folder from here on. Call from the training thread."""
        name = f"{self._plan.run}-{self._life}-v{step}"
        folder = self._folder / name
        folder.mkdir(parents=True)
        save(folder)
        self._switch("wake_up")
        try:
            body: JsonObject = {"lora_name": name, "lora_path": str(folder)}
            self._wait(*(self._post_repeatedly(url, "/v1/load_lora_adapter", body) for url in self._in_flight))
        except ModelError as error:
            raise TrainingFailed(
                f"a vLLM server does not take the adapter of step {step}: {error.message}",
                kind="engine",
                hint="start it with --enable-lora, --max-lora-rank of at least lora_rank, "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and access to the run's output folder",
            ) from error
        self._names.append(name)
        while len(self._names) > 1 + self._plan.max_staleness + (self._plan.oversample > 1):
            oldest = self._names.pop(0)
            with contextlib.suppress(ModelError):  # one that was started again does not have it
                body = {"lora_name": oldest}
                self._wait(*(self._request("POST", f"{url}/v1/unload_lora_adapter", body) for url in self._in_flight))
            shutil.rmtree(self._folder / oldest, ignore_errors=True)

    def sleep(self) -> None:
        """Have the servers leave the GPU to the trainer until the next `publish`. Call from the training thread."""
        self._switch("sleep?level=1")

    def _switch(self, action: str) -> None:
        if self._plan.samplers_sleep:
            self._wait(*(self._post_repeatedly(url, f"/{action}", {}) for url in self._in_flight))

    def stop(self) -> None:
        if self._session is not None:
            asyncio.run_coroutine_threadsafe(self._session.close(), self._loop).result(10)

    def _wait(self, *requests: Awaitable[JsonObject]) -> None:
        async def wait() -> None:
            await asyncio.gather(*requests)

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result(PATIENCE_S)

    async def _post_repeatedly(self, url: str, path: str, body: JsonObject) -> JsonObject:
        """Post again what the death of the server cut off, when it is there again with its adapters."""
        for _ in range(REPEATS):
            try:
                return await self._request("POST", url + path, body)
            except ModelError as error:
                if not self._names or error.category not in (Category.CONNECTION, Category.MODEL_NOT_FOUND):
                    raise
                await self._restore(url)
        return await self._request("POST", url + path, body)

    async def _restore(self, url: str) -> None:
        async with self._restoring[url]:
            until = self._loop.time() + PATIENCE_S
            while True:
                try:
                    models = await self._request("GET", f"{url}/v1/models")
                    break
                except ModelError:
                    if self._loop.time() > until:
                        raise
                await asyncio.sleep(POLL_S)
            loaded = {model["id"] for model in models["data"]}
            for name in self._names:
                if name not in loaded:
                    body: JsonObject = {"lora_name": name, "lora_path": str(self._folder / name)}
                    await self._request("POST", f"{url}/v1/load_lora_adapter", body)

    async def _request(self, method: str, url: str, body: JsonObject | None = None) -> JsonObject:
        if self._session is None:
            key = os.environ.get(API_KEY)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"Authorization": f"Bearer {key}"} if key else {},
            )
        try:
            async with self._session.request(method, url, json=body) as response:
                text = await response.text()
                if response.status >= 400:
                    category = Category.BAD_REQUEST if response.status < 500 else Category.SERVER_ERROR
                    category = Category.MODEL_NOT_FOUND if response.status == 404 else category
                    raise ModelError(f"vLLM answers {response.status}: {text[:500]}", category=category.value)
                # Loading an adapter is answered in words.
                is_json = "json" in response.headers.get("Content-Type", "")
                parsed: JsonObject = await response.json() if is_json else {}
                return parsed if isinstance(parsed, dict) else {}
        except (aiohttp.ClientError, OSError) as error:
            message = f"the vLLM server does not answer: {error}"
            raise ModelError(message, category=Category.CONNECTION.value) from error
