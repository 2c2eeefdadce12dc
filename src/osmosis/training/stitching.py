"""What one rollout said to its model, stitched into sequences of tokens: the model's own marked, all others masked.

Stitching goes by tokens alone: when the prompt of a call begins with everything that an earlier sequence holds, the
call continues it, and what the prompt has beyond that is what the environment said. A prompt that begins otherwise (a
history that was rewritten or compacted, a second agent beside the first, the same question once more) forks: it begins
a sequence of its own, whose prompt is masked as a whole. So every token that the model sampled is trained on exactly
once, in the context that it was sampled in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from osmosis.base.json_types import JsonObject
from osmosis.records.rollout import Message
from osmosis.training.link import HeldTokens, SampledAnswer


@dataclass(slots=True)
class Part:
    """One unbroken line of tokens: a prompt, then what model and environment said in turn."""

    token_ids: list[int]
    prompt_length: int
    mask: list[int]
    """Of what follows the prompt: 1 where the model spoke."""
    logprobs: list[float]
    """Of what follows the prompt; 0.0 where the mask is 0."""
    messages: list[Message]
    """The conversation that the tokens are; the last message is the model's answer."""
    truncated: bool = False
    turns: int = 1

    def continued(self, messages: list[Message], answer: SampledAnswer) -> None:
        """The next turn: what the environment said since, then the answer."""
        said = answer.prompt_ids[len(self.token_ids) :]
        self.token_ids += [*said, *answer.token_ids]
        self.mask += [0] * len(said) + [1] * len(answer.token_ids)
        self.logprobs += [0.0] * len(said) + answer.logprobs
        self.messages = [*messages, answer.message]
        self.truncated = self.truncated or answer.finish_reason == "length"
        self.turns += 1


@dataclass(slots=True)
class Conversation:
    """The model calls of one rollout so far."""

    parts: list[Part] = field(default_factory=list)
    malformed_calls: int = 0
    """Tool calls of the model that could not be read."""

    def add(self, messages: list[Message], answer: SampledAnswer) -> Part:
        """Keeps an answered call; the part that it belongs to."""
        self.malformed_calls += answer.malformed_calls
        fitting = [part for part in self.parts if _begins(answer.prompt_ids, part.token_ids)]
        if fitting:
            part = max(fitting, key=lambda part: len(part.token_ids))
            part.continued(messages, answer)
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

    def held(self, messages: list[Message]) -> HeldTokens | None:
        """The tokens that a call with these messages goes on from; None when it goes on from none.

        Rendering an answer again may spell it with other tokens than it was sampled with; with these, it does not.
        """
        known = [part for part in self.parts if _goes_on(part.messages, messages)]
        if not known:
            return None
        part = max(known, key=lambda part: len(part.messages))
        return HeldTokens(messages=len(part.messages), token_ids=part.token_ids)

    @property
    def forks(self) -> int:
        """How often the history was not what it was before."""
        return max(0, len(self.parts) - 1)


def _begins(longer: list[int], shorter: list[int]) -> bool:
    return longer[: len(shorter)] == shorter


def _goes_on(before: list[Message], now: list[Message]) -> bool:
    return len(before) < len(now) and all(_same(a, b) for a, b in zip(before, now, strict=False))


def _same(one: Message, other: Message) -> bool:
    """Whether an agent that repeats one message may have meant the other: as much as reaches a chat template."""
    return one is other or (
        one.get("role") == other.get("role")
        and _text(one.get("content")) == _text(other.get("content"))
        and [_call(call) for call in one.get("tool_calls") or ()]
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
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            pass
    return function.get("name"), arguments
