"""A sampler whose tokens come from a server, Tinker's or vLLM. Open for one step at a time, like the builtin one.

The server gets token ids and gives token ids with logprobs; prompts and answers are made here, so that every sampler
reads and writes the same. A streamed answer comes in one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

from osmosis.errors import ModelError
from osmosis.records.rollout import Category
from osmosis.training.link import SampledAnswer, SampleDelta, SampleRequest

from .answering import Answering, Question

Tokens = tuple[list[int], list[float]]
"""Sampled tokens, the one that ended the answer included, and their logprobs."""
Complete = Callable[[Question], Awaitable[Tokens]]
"""Asks the server; raises `ModelError`."""


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
        """`loop` is the service's; `closing` lets go of the server."""
        self._loop, self._closing = loop, closing

    def stop(self) -> None:
        """From the training thread."""
        self._closing()

    @contextlib.contextmanager
    def open(self, step: int) -> Iterator[None]:
        """From the training thread. Requests in flight when the block ends are cancelled."""
        assert self._loop is not None
        self._step = step
        self._loop.call_soon_threadsafe(self._opened.set)
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    async def stream(self, request: SampleRequest) -> AsyncGenerator[SampleDelta | SampledAnswer, None]:
        """As `service.Sampler`."""
        question = self._answering.question(request)
        await self._opened.wait()
        step = self._step
        async with self._slots:
            task = asyncio.ensure_future(self.complete(question))
            self._tasks.add(task)
            self.totals.busy.changed(+1)
            try:
                token_ids, logprobs = await task
            except asyncio.CancelledError:
                if self._opened.is_set():  # the caller left
                    raise
                what = "the step this request belongs to is over"
                raise ModelError(what, category=Category.CANCELLED.value) from None
            finally:
                task.cancel()
                self._tasks.discard(task)
                self.totals.busy.changed(-1)
        sample = self._answering.answer(question, token_ids, logprobs, step)
        if request.stream and (sample.content or sample.reasoning):
            yield SampleDelta(content=sample.content or "", reasoning=sample.reasoning or "")
        yield sample

    async def _close(self) -> None:
        self._opened.clear()
        for task in self._tasks:
            task.cancel()
