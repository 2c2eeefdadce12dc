"""Answer with the module that is being trained, by transformers' continuous batching, paused while the weights change.
Tokens are drawn here, by weights, prompt and seed alone. Private names of transformers are all in this file."""

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from types import MethodType
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig

from osmosis.errors import ModelError
from osmosis.records.run.rollout import Category
from osmosis.training.protocol.messages import SampledAnswer, SampleDelta, SampleRequest
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.answering import Answering, Question
from osmosis.training.trainer.load_model import Loaded, free_memory
from osmosis.training.trainer.parse_answers import AnswerReader
from osmosis.training.trainer.service import out_of_memory

log = logging.getLogger("osmosis.trainer")

STUCK_S = 300.0
WATCH_EVERY_S = 1.0
COLDEST = 1e-4  # Stands for temperature 0: as good as the likeliest token, without a division by zero
_CACHE_SHARE = 0.3
_FIRST = 0.9999
"""Initial temperature and top-p: at 1.0 transformers would leave out the processors that make them per request."""


@dataclass(slots=True)
class _Active:
    parts: asyncio.Queue[Any]
    seed: int
    loop_number: int = 0


class ContinuousSampler:
    """`with sampler.open(step): ...` in the training thread; `stream` on the service's event loop."""

    def __init__(
        self,
        plan: TrainerPlan,
        loaded: Loaded,
        reader: AnswerReader,
        *,
        module: Any | None = None,
        stuck_s: float = STUCK_S,
    ) -> None:
        """`module` is the model with its adapter; None: the base model."""
        self._plan, self._tokenizer, self._device = plan, loaded.tokenizer, loaded.device
        self._model = module if module is not None else loaded.model
        self._end_ids = end_ids(self._model, loaded.tokenizer)
        self._stuck_s = stuck_s
        self.cache_tokens = self._cache_size()
        self._answering = Answering(plan, loaded.tokenizer, reader, end_ids=self._end_ids, room=self.cache_tokens)
        self._reader = reader
        self.totals = self._answering.totals
        self.step = 0
        self._active: dict[str, _Active] = {}
        self._numbers = itertools.count()
        self._opened = asyncio.Event()
        self._manager: Any = None
        self._loops = 0
        self._pause: contextlib.ExitStack | None = None
        self._watch: Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._new_manager()
        self._hold()
        self._watch = asyncio.run_coroutine_threadsafe(self._keep_watch(), loop)

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._release()
        with contextlib.suppress(RuntimeError):
            self._manager.stop(hard_stop=True, timeout=10)

    @contextlib.contextmanager
    def open(self, step: int, *, keep: bool = False) -> Iterator[None]:
        """Answer requests until the block ends; `keep` those in flight. Call from the training thread."""
        assert self._loop is not None
        training = self._model.training
        self._model.eval()
        self.step = step
        self._release()
        self._loop.call_soon_threadsafe(self._opened.set)
        try:
            yield
        finally:
            if not keep:
                asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
            self._hold()
            self._model.train(training)

    async def stream(self, request: SampleRequest) -> AsyncGenerator[SampleDelta | SampledAnswer, None]:
        question = self._answering.question(request)
        await self._opened.wait()
        key = f"{request.id}#{next(self._numbers)}"
        step = self.step
        active = _Active(asyncio.Queue(), self._seed(question))
        self._active[key] = active
        finished = False
        try:
            self._add(key, question)
            deltas = self._reader.deltas(question.prompt_ids, request.tools) if request.stream else None
            while True:
                output = await active.parts.get()
                if isinstance(output, ModelError):
                    finished = True
                    raise output
                if output.error:
                    finished = True
                    raise self._failed(str(output.error))
                stopped_at = None
                if deltas is not None or request.stop:
                    text = self._reader.text(output.generated_tokens)
                    stopped_at = self._answering.first_stop(text, request)
                    delta = deltas.feed(text[:stopped_at]) if deltas is not None else None
                    if delta is not None:
                        yield delta
                if output.is_finished() or stopped_at is not None:
                    finished = output.is_finished()
                    break
            sample = self._answering.answer(question, list(output.generated_tokens), list(output.logprobs), step)
            rest = deltas.rest(sample.content) if deltas is not None else None
            if rest is not None:
                yield rest
            yield sample
        finally:
            self._active.pop(key, None)
            if not finished:
                self._forget(key)

    def _seed(self, question: Question) -> int:
        request = question.request
        source = request.seed if request.seed is not None else request.id
        text = f"{self._plan.seed}/{self.step}/{source}/{','.join(map(str, question.prompt_ids))}"
        return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "little")

    def _add(self, key: str, question: Question) -> None:
        if self._manager.background_thread_status.can_accept_new_requests() is not None:
            self._replace("the generation loop ended")
        active = self._active[key]
        active.loop_number = self._loops
        self._manager.register_result_handler(key, active.parts.put_nowait)
        self._manager.add_request(
            question.prompt_ids,
            request_id=key,
            max_new_tokens=question.max_tokens,
            streaming=question.request.stream or bool(question.request.stop),
            eos_token_id=self._end_ids,
            temperature=max(question.temperature, COLDEST),
            top_p=question.top_p,
        )

    def _failed(self, error: str) -> ModelError:
        if out_of_memory(error):
            self.totals.out_of_memory = error
        return ModelError(f"sampling failed: {error}", category=Category.SERVER_ERROR.value)

    def _forget(self, key: str) -> None:
        self._manager.cancel_request(key)
        self._manager.output_router.result_handlers.pop(key, None)

    async def _close(self) -> None:
        self._opened.clear()
        for active in list(self._active.values()):
            message = "the step this request belongs to is over"
            active.parts.put_nowait(ModelError(message, category=Category.CANCELLED.value))
        for key in list(self._active):
            self._forget(key)

    def _hold(self) -> None:
        """Pause the loop from the training thread, which must also end the pause."""
        self._pause = contextlib.ExitStack()
        try:
            self._pause.enter_context(self._manager.pause())
        except RuntimeError:  # the loop died: the next request replaces it
            self._pause = None

    def _release(self) -> None:
        if self._pause is not None:
            self._pause.close()
            self._pause = None

    def _new_manager(self) -> None:
        on_cpu = self._device.type == "cpu"
        page = 64 if on_cpu else 256
        generation = GenerationConfig(
            do_sample=True,
            temperature=_FIRST,
            top_p=_FIRST,
            top_k=0,
            max_new_tokens=self._plan.max_response_length,
            eos_token_id=self._end_ids,
            pad_token_id=self._tokenizer.pad_token_id,
        )
        self._manager = self._model.init_continuous_batching(
            generation_config=generation,
            continuous_batching_config=ContinuousBatchingConfig(
                return_logprobs=True,
                per_request_processors=True,
                allow_block_sharing=False,  # what was computed before an update must not be read after it
                auto_switch_to_flash=False,
                page_size=page,
                num_blocks=math.ceil(self.cache_tokens / page) + 1,
                max_batch_tokens=2048 if on_cpu else None,
                max_requests_per_batch=self._plan.max_requests,
                use_async_batching=False,
                use_cuda_graph=not on_cpu,  # left to itself it launches kernel by kernel, 2.7 times slower
                seed=self._plan.seed,
            ),
        )
        self._manager.batch_processor = self._manager._create_batch_processor()
        if on_cpu:
            self._sample_here(self._manager)
        self._manager.start()
        self._loops += 1

    def _sample_here(self, manager: Any) -> None:
        keys: list[tuple[str, int]] = []
        warper = manager.logit_processor.logits_processor[0]
        prepare = warper.prepare_tensor_args

        def note(requests: list[Any]) -> Any:
            keys[:] = [(request.state.request_id, request.state.generated_len()) for request in requests]
            return prepare(requests)

        def sample(_: Any, scores: Any, output_ids: Any) -> None:
            seeds = [(active.seed if (active := self._active.get(key)) else 0, at) for key, at in keys]
            tokens, logprobs = _draw(scores[0], seeds)
            count = tokens.shape[0]
            output_ids[0, :count].copy_(tokens)
            output_ids[1, :count].copy_(logprobs.view(dtype=torch.int32))

        warper.prepare_tensor_args = note
        runner = manager.batch_processor.model_runner
        runner._sample = MethodType(sample, runner)

    def _replace(self, reason: str) -> None:
        fatal = self._manager.background_thread_status.fatal_error
        text = f"{reason}: {fatal}" if fatal else reason
        log.error("%s; starting another one", text)
        error = self._failed(text)
        for active in self._active.values():
            if active.loop_number == self._loops:
                active.parts.put_nowait(error)
        with contextlib.suppress(RuntimeError):
            self._manager.stop(hard_stop=True, block=False)
        self._new_manager()

    async def _keep_watch(self) -> None:
        last, since = (0, 0), time.monotonic()
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            at = (self._loops, getattr(self._manager, "current_batch", 0))
            if at != last or not self._active or not self._opened.is_set() or self._pause is not None:
                last, since = at, time.monotonic()
            elif not self._manager.is_running() or time.monotonic() - since > self._stuck_s:
                self._replace(f"the generation loop made no step for {time.monotonic() - since:.0f} s")

    def _cache_size(self) -> int:
        plan = self._plan
        longest = plan.max_prompt_length + plan.max_response_length
        config = self._model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        per_token = 2 * config.num_hidden_layers * heads * width * self._model.dtype.itemsize
        room = int(free_memory(self._device) * _CACHE_SHARE / per_token)
        size = plan.cache_tokens or min(plan.max_requests * longest, room)
        return max(size, longest)


def _draw(scores: Any, seeds: list[tuple[int, int]]) -> tuple[Any, Any]:
    """Draw one token a row, and its log-probability, by the Gumbel-max trick (Gumbel 1954), with a row's own seed."""
    logprobs = torch.log_softmax(scores.float(), dim=-1)
    noise = torch.empty_like(logprobs)
    source = torch.Generator()
    for row, (seed, position) in enumerate(seeds):
        source.manual_seed((seed + position * 0x9E3779B97F4A7C15) & 0x7FFFFFFFFFFFFFFF)
        noise[row].exponential_(generator=source)
    tokens = (logprobs - noise.log()).argmax(dim=-1)
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)


def end_ids(model: Any, tokenizer: Any) -> list[int]:
    named = model.generation_config.eos_token_id
    others = [] if named is None else [named] if isinstance(named, int) else list(named)
    return list(dict.fromkeys([tokenizer.eos_token_id, *others]))
