"""From a request to its prompt, and from sampled tokens to the answer: with `HeldTokens` the prompt begins with earlier
answers exactly as they were sampled, and only what came after is rendered, so a conversation stays one sequence
whatever its chat template rewrites."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from pydantic import ValidationError as BadShape

from osmosis.base.jsonable import JsonObject
from osmosis.errors import ModelError
from osmosis.records.run.rollout import Category, Message
from osmosis.training.protocol.messages import Example, HeldTokens, Notice, SampledAnswer, SampleRequest
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.parse_answers import AnswerReader, read_arguments
from osmosis.training.trainer.service import TrainerService, TrainingFailed


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[int]
    held: bool = False  # Whether it begins with the tokens that the request holds
    repaired: bool = False  # Whether the chat template alone would have written other tokens there


class Prompts:
    def __init__(self, tokenizer: Any, variables: JsonObject | None = None) -> None:
        """`variables` are further ones of the chat template (`enable_thinking`)."""
        self._tokenizer, self._variables = tokenizer, variables or {}
        self._end: int = tokenizer.eos_token_id
        self._end_text: str = tokenizer.eos_token

    def build(self, request: SampleRequest) -> Prompt:
        """Return the prompt of a request. Raise `ModelError` (bad_request)."""
        rendered = self.render(request.messages, request.tools)
        if request.held is not None:
            messages = [_plain(message) for message in request.messages]
            rest = self._render_rest(request.held, messages, request.tools)
            if rest is not None:
                token_ids = request.held.token_ids + rest
                return Prompt(token_ids, held=True, repaired=token_ids != rendered)
        return Prompt(rendered)

    def render(self, messages: list[Message], tools: list[JsonObject] | None, *, prompt: bool = True) -> list[int]:
        return list(self._apply([_plain(message) for message in messages], tools, prompt=prompt, tokenize=True))

    def _render_rest(
        self, held: HeldTokens, messages: list[Message], tools: list[JsonObject] | None
    ) -> list[int] | None:
        """Return the tokens after the held ones, by counting ends of turns; None when the template has none there."""
        if not 0 < held.messages < len(messages):
            return None
        before = self._apply(messages[: held.messages], tools, prompt=False, tokenize=False)
        full = self._apply(messages, tools, prompt=True, tokenize=False)
        ends = before.count(self._end_text)
        if not ends or full.count(self._end_text) < ends:
            return None
        end = -1
        for _ in range(ends):
            end = full.find(self._end_text, end + 1)
        # An answer that was cut off has no end of its own: the template's is added.
        ended = held.token_ids[-1:] == [self._end]
        rest = full[end + len(self._end_text) if ended else end :]
        token_ids: list[int] = self._tokenizer.encode(rest, add_special_tokens=False)
        return token_ids

    def _apply(self, messages: list[Message], tools: list[JsonObject] | None, *, prompt: bool, tokenize: bool) -> Any:
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                tools=tools or None,
                add_generation_prompt=prompt,
                tokenize=tokenize,
                return_dict=False,
                **self._variables,
            )
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            message = f"the model's chat template does not take these messages: {error}"
            raise ModelError(message, category=Category.BAD_REQUEST.value) from error


def _plain(message: Message) -> Message:
    plain = dict(message)
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = "".join(_text(part) for part in content)
    elif content is None:
        plain["content"] = ""
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in plain["tool_calls"]]
    else:
        plain.pop("tool_calls", None)
    return plain


def _text(part: object) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise ModelError(f"message content of type {kind} cannot be trained on", category=Category.BAD_REQUEST.value)


def _call(call: JsonObject) -> JsonObject:
    function = dict(call.get("function") or {})
    if isinstance(read := read_arguments(function.get("arguments")), dict):
        function["arguments"] = read
    return {**call, "function": function}


@dataclass(frozen=True, slots=True)
class LabeledExample:
    token_ids: list[int]
    mask: list[int]  # 1 for each token that is learned


def read_examples(plan: TrainerPlan, tokenizer: Any, service: TrainerService | None) -> list[list[LabeledExample]]:
    """Return the examples that fit, each with the one it is preferred to, if any. Raise `TrainingFailed` (data)."""
    longest = plan.max_prompt_length + plan.max_response_length
    prompts = Prompts(tokenizer, plan.chat_template_kwargs)
    examples: list[list[LabeledExample]] = []
    long = unreadable = empty = 0
    for example in _read(Path(str(plan.examples_path))):
        try:
            sides = [example] if example.rejected is None else [example, example.rejected]
            labeled = [LabeledExample(*tokenize_example(side, prompts, tokenizer.eos_token_id)) for side in sides]
        except ModelError:
            unreadable += 1
            continue
        if any(len(side.token_ids) > longest for side in labeled):
            long += 1
        elif not all(any(side.mask) for side in labeled):
            empty += 1
        else:
            examples.append(labeled)
    left = f"{long} longer than {longest} tokens, {unreadable} the chat template rejects, {empty} without an answer"
    if len(examples) < plan.rows_per_step:
        raise TrainingFailed(
            f"{len(examples)} examples can be trained on, and a step takes {plan.rows_per_step} (left out: {left})",
            kind="data",
            hint="lower min_score or rollout_batch_size, raise max_response_length, or take another run",
        )
    if service is not None and long + unreadable + empty:
        service.emit(Notice(step=0, message=f"examples left out: {left}"))
    return examples


def tokenize_example(example: Example, prompts: Prompts, end: int) -> tuple[list[int], list[int]]:
    """Return token ids and mask; of messages, each answer is what the template adds after the prompt before it."""
    if example.token_ids:
        return list(example.token_ids), list(example.mask)
    ids: list[int] = []
    mask: list[int] = []
    messages = example.messages
    for at, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        before = prompts.render(messages[:at], example.tools)
        after = prompts.render(messages[: at + 1], example.tools, prompt=False)
        if after[: len(before)] != before:
            continue
        answer = after[len(before) :]
        if end in answer:
            answer = answer[: len(answer) - answer[::-1].index(end)]
        if before[: len(ids)] != ids:
            ids, mask = [], []
        mask += [0] * (len(before) - len(ids)) + [1] * len(answer)
        ids = before + answer
    return ids, mask


def _read(path: Path) -> Iterator[Example]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        yield Example.model_validate_json(line)
                    except BadShape as error:
                        raise TrainingFailed(f"{path}, line {number}: {error}", kind="data") from error
    except OSError as error:
        raise TrainingFailed(f"{path} cannot be read: {error}", kind="data") from error


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
