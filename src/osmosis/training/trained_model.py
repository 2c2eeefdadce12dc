"""The model that is being trained, as rollouts ask it: one more `llm.Model`, sampled by the trainer over its link.

It keeps every answer's tokens with the rollout that asked, and it decides what a rollout may decide: temperature and
top-p are the run's, because the loss is computed with them; a shorter answer and stop texts are the agent's to ask for.
It repeats nothing: a trainer that is gone is started again by the job, and the rollouts in flight are run again.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Mapping
from contextlib import aclosing

import orjson

from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Piece
from osmosis.records.plan import ModelSpec
from osmosis.records.rollout import Category, ModelCall, Usage
from osmosis.serve.drive.model_endpoint import RolloutEndpoint
from osmosis.training.link import SampledAnswer, SampleDelta, SampleRequest, TrainerLink

from .stitching import Conversation

OBEYED = frozenset({"max_tokens", "max_completion_tokens", "stop", "tool_choice"})
HARMLESS = frozenset({"logprobs", "top_logprobs", "seed", "user", "metadata", "store", "parallel_tool_calls"})
"""Parameters that change no answer here, or are answered anyway: the tokens and their logprobs always come along."""


class TrainedModel:
    """Safe for many rollouts at once. `begin` says which step the rollouts are for, `take` gives what one has said."""

    def __init__(self, link: TrainerLink, name: str, *, seed: int = 0) -> None:
        self.spec = ModelSpec(name=name, kind="trained", seed=seed)
        self.ignored: set[str] = set()
        """Parameters that rollouts asked for and that have no effect while training."""
        self.lost = asyncio.Event()
        """Set when the trainer no longer answers: what failed since then failed for that."""
        self._link = link
        self._conversations: dict[str, Conversation] = {}
        self._part_of_run = ""
        self._numbers = itertools.count()

    def begin(self, part_of_run: str) -> None:
        """The rollouts that follow belong to this part of the run (`train-000012`), and it to their seeds."""
        self._part_of_run = part_of_run
        self._conversations.clear()

    def take(self, rollout_id: str) -> Conversation:
        """What this rollout has said, and no more: it is over."""
        return self._conversations.pop(rollout_id, None) or Conversation()

    def opened(self, endpoint: RolloutEndpoint) -> None:
        """As the observer of a model proxy: a rollout that begins anew, on a restarted server, has said nothing."""
        self._conversations.pop(endpoint.rollout_id, None)

    def model_call(
        self, endpoint: RolloutEndpoint, asked: ChatRequest, call: ModelCall, done: Completion | None
    ) -> None:
        """Kept already, by `complete`."""

    async def complete(self, request: ChatRequest) -> Completion:
        conversation = self._conversations.setdefault(request.rollout_id, Conversation())
        self.ignored |= request.params.keys() - OBEYED - HARMLESS
        answer = await self._sampled(self._asked(request, conversation), request)
        conversation.add(request.messages, answer)
        return completion_of(answer, self.spec.name)

    async def close(self) -> None:
        """The link is the job's."""

    async def _sampled(self, asked: SampleRequest, request: ChatRequest) -> SampledAnswer:
        try:
            async with aclosing(self._link.stream(asked)) as parts:
                async for part in parts:
                    if isinstance(part, SampledAnswer):
                        return part
                    request.tell(piece_of(part))
        except ModelError as error:
            if error.category == Category.CONNECTION.value:
                self.lost.set()
            raise
        raise ModelError("the trainer ended its answer early", category=Category.BAD_RESPONSE.value)

    def _asked(self, request: ChatRequest, conversation: Conversation) -> SampleRequest:
        params = request.params
        return SampleRequest(
            id=f"{request.rollout_id}.{next(self._numbers)}",
            messages=request.messages,
            tools=None if params.get("tool_choice") == "none" else request.tools,
            max_tokens=length_of(params),
            stop=stop_of(params.get("stop")),
            seed=self._seed(request),
            stream=request.on_piece is not None,
            held=conversation.held(request.messages),
        )

    def _seed(self, request: ChatRequest) -> int:
        """Of this question at this place of the run: the same when a step is run again from the same weights."""
        question = orjson.dumps(request.messages, option=orjson.OPT_SORT_KEYS, default=str)
        place = f"{self.spec.seed}/{self._part_of_run}/{request.row_index}/{request.attempt}/".encode()
        return int.from_bytes(hashlib.blake2b(place + question, digest_size=4).digest(), "big") >> 1


def completion_of(answer: SampledAnswer, model: str) -> Completion:
    """An answer as whoever asked gets it, with its exact tokens."""
    return Completion(
        message=answer.message,
        finish_reason=answer.finish_reason,
        usage=Usage(prompt_tokens=len(answer.prompt_ids), completion_tokens=len(answer.token_ids), cost_usd=0.0),
        model=model,
        token_ids=answer.token_ids,
        logprobs=answer.logprobs,
        prompt_token_ids=answer.prompt_ids,
    )


def piece_of(delta: SampleDelta) -> Piece:
    """A part of an answer, as whoever asked hears it."""
    said = {"content": delta.content, "reasoning_content": delta.reasoning}
    return Piece({key: text for key, text in said.items() if text})


def length_of(params: Mapping[str, object]) -> int | None:
    """How many tokens an answer may have, by either name. Raises `ModelError`."""
    asked = [params[name] for name in ("max_tokens", "max_completion_tokens") if isinstance(params.get(name), int)]
    if any(isinstance(value, int) and value < 1 for value in asked):
        raise ModelError("max_tokens must be at least 1", category=Category.BAD_REQUEST.value)
    return min((value for value in asked if isinstance(value, int)), default=None)


def stop_of(asked: object) -> list[str]:
    """Texts that end an answer."""
    if isinstance(asked, str):
        return [asked]
    return [one for one in asked if isinstance(one, str)] if isinstance(asked, list) else []
