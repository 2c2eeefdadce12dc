"""A trained model, or a base model, as an evaluation asks it: one more `llm.Model`, sampled by a process of the
trainer's environment over its link.

Unlike in training, the question decides how it is sampled: temperature, top-p, length, seed and stop texts are obeyed.
"""

from __future__ import annotations

import itertools
from contextlib import aclosing

from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, sampling
from osmosis.records.plan import ModelSpec
from osmosis.records.rollout import Category
from osmosis.training.link import SampledAnswer, SampleRequest, TrainerLink

from .trained_model import completion_of, length_of, piece_of, stop_of


class ServedModel:
    """Safe for many rollouts at once."""

    def __init__(self, link: TrainerLink, spec: ModelSpec) -> None:
        self.spec = spec
        self._link = link
        self._numbers = itertools.count()

    async def complete(self, request: ChatRequest) -> Completion:
        answer = await self._sampled(self._asked(request), request)
        return completion_of(answer, self.spec.name)

    async def close(self) -> None:
        """The link belongs to whoever made the process."""

    def _asked(self, request: ChatRequest) -> SampleRequest:
        params = sampling(self.spec, request)
        seed, temperature, top_p = (params.get(name) for name in ("seed", "temperature", "top_p"))
        try:
            return SampleRequest(
                id=f"{request.rollout_id}.{next(self._numbers)}",
                messages=request.messages,
                tools=None if params.get("tool_choice") == "none" else request.tools,
                temperature=temperature,
                top_p=top_p,
                max_tokens=length_of(params),
                stop=stop_of(params.get("stop")),
                seed=seed,
                stream=request.on_piece is not None,
            )
        except ValueError as error:
            raise ModelError(
                f"parameters that are not supported: {error}", category=Category.BAD_REQUEST.value
            ) from None

    async def _sampled(self, asked: SampleRequest, request: ChatRequest) -> SampledAnswer:
        async with aclosing(self._link.stream(asked)) as parts:
            async for part in parts:
                if isinstance(part, SampledAnswer):
                    return part
                request.tell(piece_of(part))
        raise ModelError("the answer ended early", category=Category.BAD_RESPONSE.value)
