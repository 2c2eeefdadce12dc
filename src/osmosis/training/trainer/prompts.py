"""Messages to tokens: the tokenizer's chat template, and the tokens of earlier answers exactly as they were sampled.

Rendering a conversation again may spell an answer differently than the model did. With `HeldTokens` the prompt begins
with the tokens that are there, and only what came after is rendered; where the template rewrites what was before (some
drop earlier reasoning), the template wins.
"""

from __future__ import annotations

import json
from typing import Any

from jinja2 import TemplateError

from osmosis.base.json_types import JsonObject
from osmosis.errors import ModelError
from osmosis.records.rollout import Category, Message
from osmosis.training.link import HeldTokens, SampleRequest


class Prompts:
    """Of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._end: int = tokenizer.eos_token_id
        self._end_text: str = tokenizer.eos_token

    def of(self, request: SampleRequest) -> tuple[list[int], bool]:
        """The prompt's tokens, and whether they begin with those of `held`. Raises `ModelError` (bad_request)."""
        messages = [_plain(message) for message in request.messages]
        if request.held is not None:
            going_on = self._after(request.held, messages, request.tools)
            if going_on is not None:
                return request.held.token_ids + going_on, True
        return self.render(request.messages, request.tools), False

    def render(self, messages: list[Message], tools: list[JsonObject] | None, *, prompt: bool = True) -> list[int]:
        """The whole conversation through the template; with `prompt`, up to where the model goes on."""
        found = self._apply([_plain(message) for message in messages], tools, prompt=prompt, tokenize=True)
        return list(found)

    def _after(self, held: HeldTokens, messages: list[Message], tools: list[JsonObject] | None) -> list[int] | None:
        """What follows the held tokens; None when the template does not keep what they stand for."""
        if not 0 < held.messages < len(messages):
            return None
        before = self._apply(messages[: held.messages], tools, prompt=False, tokenize=False)
        whole = self._apply(messages, tools, prompt=True, tokenize=False)
        end = before.rfind(self._end_text)
        if end < 0 or not whole.startswith(before[: end + len(self._end_text)]):
            return None
        # An answer that was cut off has no end of its own: the template's is added.
        ended = held.token_ids[-1:] == [self._end]
        rest = whole[end + len(self._end_text) if ended else end :]
        found: list[int] = self._tokenizer.encode(rest, add_special_tokens=False)
        return found

    def _apply(self, messages: list[Message], tools: list[JsonObject] | None, *, prompt: bool, tokenize: bool) -> Any:
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=tools or None, add_generation_prompt=prompt, tokenize=tokenize, return_dict=False
            )
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            what = f"the model's chat template does not take these messages: {error}"
            raise ModelError(what, category=Category.BAD_REQUEST.value) from error


def _plain(message: Message) -> Message:
    """As templates expect it: text content, and arguments of calls as objects."""
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
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments)
        except ValueError:
            read = None
        if isinstance(read, dict):
            function["arguments"] = read
    return {**call, "function": function}
