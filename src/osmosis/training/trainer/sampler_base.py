from dataclasses import dataclass
from typing import Any

from osmosis.errors import ModelError
from osmosis.records.run.rollout import Category
from osmosis.training.protocol.messages import SampledAnswer, SampleRequest
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.parse_answers import AnswerReader
from osmosis.training.trainer.prompts import Prompts


@dataclass(frozen=True, slots=True)
class Question:
    """A request, ready to be sampled. `held`: the prompt begins with the tokens that the request holds."""

    request: SampleRequest
    prompt_ids: list[int]
    held: bool
    repaired: bool
    max_tokens: int
    temperature: float
    top_p: float


class Answering:
    def __init__(
        self, plan: TrainerPlan, tokenizer: Any, reader: AnswerReader, *, end_ids: list[int], room: int | None = None
    ) -> None:
        self._plan, self._prompts, self.reader = plan, Prompts(tokenizer, plan.chat_template_kwargs), reader
        self._whole = plan.max_prompt_length + plan.max_response_length
        self._room = self._whole if room is None else min(self._whole, room)
        self.end_ids = end_ids
        self.totals = Totals()

    def question(self, request: SampleRequest) -> Question:
        """Return the request with its prompt. Raise `ModelError` (bad_request, context_length)."""
        plan = self._plan
        prompt = self._prompts.build(request)
        prompt_ids = prompt.token_ids
        first = not any(message.get("role") == "assistant" for message in request.messages)
        if first and len(prompt_ids) > plan.max_prompt_length:
            raise _too_long(len(prompt_ids), plan.max_prompt_length, "max_prompt_length")
        room = self._room - len(prompt_ids)
        if room < 1:
            raise _too_long(len(prompt_ids), self._room - 1, "max_prompt_length + max_response_length")
        longest = min(request.max_tokens or plan.max_response_length, plan.max_response_length, room)
        temperature = plan.temperature if request.temperature is None else request.temperature
        top_p = plan.top_p if request.top_p is None else request.top_p
        return Question(request, prompt_ids, prompt.held, prompt.repaired, longest, float(temperature), float(top_p))

    def first_stop(self, text: str, request: SampleRequest) -> int | None:
        positions = [at for stop in request.stop if (at := text.find(stop)) >= 0]
        return min(positions) if positions else None

    def answer(self, question: Question, token_ids: list[int], logprobs: list[float], step: int) -> SampledAnswer:
        text = self.reader.text(token_ids)
        stopped_at = self.first_stop(text, question.request)
        # Ids of tool calls are part of the next question, on which its seed depends: they are the same in each run.
        key = question.request.id if question.request.seed is None else str(question.request.seed)
        read = self.reader.read(key, question.prompt_ids, text[:stopped_at], question.request.tools)
        ended = stopped_at is not None or (bool(token_ids) and token_ids[-1] in self.end_ids)
        return SampledAnswer(
            prompt_ids=question.prompt_ids,
            token_ids=token_ids,
            # A token that the model was certain of has log(1); rounding can make it a little more.
            logprobs=[min(float(x), 0.0) for x in logprobs],
            **vars(read),
            finish_reason="tool_calls" if read.tool_calls else "stop" if ended else "length",
            held=question.held,
            repaired=question.repaired,
            step=step,
        )


def _too_long(length: int, limit: int, key: str) -> ModelError:
    message = f"the prompt has {length} tokens, and {key} allows {limit}"
    return ModelError(message, category=Category.CONTEXT_LENGTH.value)


@dataclass(slots=True)
class Totals:
    out_of_memory: str | None = None
