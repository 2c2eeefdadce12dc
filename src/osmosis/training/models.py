"""Models that the trainer's process samples. `TrainedModel` keeps every answer's tokens; temperature and top-p are the
run's, because the loss is computed with them. It does not retry: the job restarts a lost trainer."""

import asyncio
import hashlib
import itertools
from collections.abc import Mapping
from contextlib import aclosing

import orjson

from osmosis.dialects.call import TRAINED
from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Piece, sampling
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.rollout import Category, ModelCall, Phase, Usage
from osmosis.serve.client.rollout_endpoint import RolloutEndpoint
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import SampledAnswer, SampleRequest
from osmosis.training.token_sequences import Conversation

OBEYED = frozenset({"max_tokens", "max_completion_tokens", "stop", "tool_choice"})
HARMLESS = frozenset({"logprobs", "top_logprobs", "seed", "user", "metadata", "store", "parallel_tool_calls"})


class _LinkedModel:
    def __init__(self, link: TrainerClient, spec: ModelSpec) -> None:
        self.spec = spec
        self._link = link
        self._numbers = itertools.count()

    async def close(self) -> None: ...  # the client belongs to whoever opened it

    async def _sample(self, request: ChatRequest, params: Mapping[str, object], **more: object) -> SampledAnswer:
        try:
            values = (params.get("max_tokens"), params.get("max_completion_tokens"))
            limits = [value for value in values if isinstance(value, int)]
            if any(limit < 1 for limit in limits):
                raise ModelError("max_tokens must be at least 1", category=Category.BAD_REQUEST.value)
            sample_request = SampleRequest.model_validate(
                {
                    "id": f"{request.rollout_id}.{next(self._numbers)}",
                    "messages": request.messages,
                    "tools": None if params.get("tool_choice") == "none" else request.tools,
                    "max_tokens": min(limits, default=None),
                    "stop": parse_stop(params.get("stop")),
                    "stream": request.on_piece is not None,
                    **more,
                }
            )
        except ValueError as error:
            message = f"parameters that are not supported: {error}"
            raise ModelError(message, category=Category.BAD_REQUEST.value) from None
        async with aclosing(self._link.stream(sample_request)) as parts:
            async for part in parts:
                if isinstance(part, SampledAnswer):
                    return part
                delta_by_key = {"content": part.content, "reasoning_content": part.reasoning}
                request.tell(Piece({key: text for key, text in delta_by_key.items() if text}))
        raise ModelError("the answer ended early", category=Category.BAD_RESPONSE.value)


class TrainedModel(_LinkedModel):
    """`start` a rollout, then `take` its conversation. A call outside of a rollout is answered, and trains nothing."""

    def __init__(self, link: TrainerClient, name: str, *, seed: int = 0) -> None:
        super().__init__(link, ModelSpec(name=name, kind="trained", seed=seed))
        self.ignored: set[str] = set()
        self.lost = asyncio.Event()
        self._conversations: dict[str, Conversation] = {}
        self._parts_of_run: dict[str, str] = {}
        self._foreign_calls = 0

    def start(self, rollout_id: str, part_of_run: str) -> None:
        """Start a rollout of a part of the run (`train-000012`), on which its seeds depend."""
        self._parts_of_run[rollout_id] = part_of_run
        self._conversations[rollout_id] = Conversation()

    def take(self, rollout_id: str) -> Conversation:
        self._parts_of_run.pop(rollout_id, None)
        return self._conversations.pop(rollout_id, None) or Conversation()

    def take_foreign_calls(self) -> int:
        count, self._foreign_calls = self._foreign_calls, 0
        return count

    def opened(self, endpoint: RolloutEndpoint) -> None:
        """Begin anew, except for a program that has ended and is graded."""
        is_graded = endpoint.model is not None and endpoint.model.task.stage == Phase.SCORE.value
        if endpoint.rollout_id in self._conversations and not is_graded:
            self._conversations[endpoint.rollout_id] = Conversation()

    def model_call(
        self, endpoint: RolloutEndpoint, request: ChatRequest, call: ModelCall, done: Completion | None
    ) -> None:
        """Do nothing: `complete` already recorded it."""

    async def complete(self, request: ChatRequest) -> Completion:
        conversation = self._conversations.get(request.rollout_id) or Conversation()
        self.ignored |= request.params.keys() - OBEYED - HARMLESS
        held_tokens = conversation.find_held_tokens(request.messages)
        try:
            answer = await self._sample(request, request.params, seed=self._seed(request), held=held_tokens)
        except ModelError as error:
            if error.category == Category.CONNECTION.value:
                self.lost.set()
            raise
        if request.purpose in TRAINED and request.rollout_id in self._conversations:
            conversation.add(request.messages, answer)
        else:
            self._foreign_calls += 1
        return to_completion(answer, self.spec.name)

    def _seed(self, request: ChatRequest) -> int:
        question = orjson.dumps(request.messages, option=orjson.OPT_SORT_KEYS, default=str)
        part_of_run = self._parts_of_run.get(request.rollout_id, "")
        prefix = f"{self.spec.seed}/{part_of_run}/{request.row_index}/{request.attempt}/".encode()
        return int.from_bytes(hashlib.blake2b(prefix + question, digest_size=4).digest(), "big") >> 1


def to_completion(answer: SampledAnswer, model: str) -> Completion:
    return Completion(
        message=answer.message,
        finish_reason=answer.finish_reason,
        usage=Usage(prompt_tokens=len(answer.prompt_ids), completion_tokens=len(answer.token_ids), cost_usd=0.0),
        model=model,
        token_ids=answer.token_ids,
        logprobs=answer.logprobs,
        prompt_token_ids=answer.prompt_ids,
    )


def parse_stop(stop: object) -> list[str]:
    if isinstance(stop, str):
        return [stop]
    return [text for text in stop if isinstance(text, str)] if isinstance(stop, list) else []


class ServedModel(_LinkedModel):
    async def complete(self, request: ChatRequest) -> Completion:
        params = sampling(self.spec, request)
        chosen = {name: params.get(name) for name in ("seed", "temperature", "top_p")}
        return to_completion(await self._sample(request, params, **chosen), self.spec.name)
