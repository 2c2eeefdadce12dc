"""The model calls of one rollout, stitched into sequences: the model's own tokens marked, all others masked. A call
continues a sequence when its prompt begins with all of that sequence's tokens; another begins one of its own. So every
sampled token is trained on exactly once, in the context that it was sampled in."""

from contextlib import suppress
from dataclasses import dataclass, field

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.rollout import Message
from osmosis.training.protocol.messages import HeldTokens, SampledAnswer


@dataclass(slots=True)
class Part:
    token_ids: list[int]
    prompt_length: int
    mask: list[int]  # one number per token after the prompt: 1 for the model's tokens
    logprobs: list[float]  # log-probabilities of the tokens after the prompt; 0.0 where the mask is 0
    messages: list[Message]
    truncated: bool = False
    turns: int = 1

    def holds(self, answer: SampledAnswer) -> bool:
        """Return whether this answer was sampled here before: a call that a client repeats is no second one."""
        begin, end = len(answer.prompt_ids), len(answer.prompt_ids) + len(answer.token_ids)
        return (
            begin >= self.prompt_length
            and self.token_ids[begin:end] == answer.token_ids
            and self.token_ids[:begin] == answer.prompt_ids
            and all(self.mask[begin - self.prompt_length : end - self.prompt_length])
        )

    def extend_turn(self, messages: list[Message], answer: SampledAnswer) -> None:
        environment_ids = answer.prompt_ids[len(self.token_ids) :]
        self.token_ids += [*environment_ids, *answer.token_ids]
        self.mask += [0] * len(environment_ids) + [1] * len(answer.token_ids)
        self.logprobs += [0.0] * len(environment_ids) + answer.logprobs
        self.messages = [*messages, answer.message]
        self.truncated = self.truncated or answer.finish_reason == "length"
        self.turns += 1


@dataclass(slots=True)
class Conversation:
    parts: list[Part] = field(default_factory=list)
    malformed_calls: int = 0
    repaired_calls: int = 0
    """Calls whose prompt the chat template alone would have spelled otherwise than it was sampled."""
    sampled_tokens: int = 0

    def add(self, messages: list[Message], answer: SampledAnswer) -> Part:
        for part in self.parts:
            if part.holds(answer):
                return part
        self.malformed_calls += answer.malformed_calls
        self.repaired_calls += answer.repaired
        self.sampled_tokens += len(answer.token_ids)
        fitting = [part for part in self.parts if answer.prompt_ids[: len(part.token_ids)] == part.token_ids]
        if fitting:
            part = max(fitting, key=lambda part: len(part.token_ids))
            part.extend_turn(messages, answer)
            return part
        part = Part(
            token_ids=[*answer.prompt_ids, *answer.token_ids],
            prompt_length=len(answer.prompt_ids),
            mask=[1] * len(answer.token_ids),
            logprobs=list(answer.logprobs),
            messages=[*messages, answer.message],
            truncated=answer.finish_reason == "length",
        )
        self.parts.append(part)
        return part

    def find_held_tokens(self, messages: list[Message]) -> HeldTokens | None:
        """Return the tokens that a call with these messages continues; None when it continues none. Rendering an answer
        again may spell it with other tokens than it was sampled with; with these, it does not."""
        candidates = [part for part in self.parts if _is_continued_by(part.messages, messages)]
        if not candidates:
            return None
        part = max(candidates, key=lambda part: len(part.messages))
        return HeldTokens(messages=len(part.messages), token_ids=part.token_ids)


def _is_continued_by(before: list[Message], now: list[Message]) -> bool:
    return len(before) < len(now) and all(_same(a, b) for a, b in zip(before, now, strict=False))


def _same(message: Message, other: Message) -> bool:
    return message is other or (
        message.get("role") == other.get("role")
        and _text(message.get("content")) == _text(other.get("content"))
        and [_call(call) for call in message.get("tool_calls") or ()]
        == [_call(call) for call in other.get("tool_calls") or ()]
    )


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
    return "" if content is None else str(content)


def _call(call: JsonObject) -> tuple[object, object]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments)
    return function.get("name"), arguments
