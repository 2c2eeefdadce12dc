"""Messages to tokens: the tokenizer's chat template, and earlier answers exactly as they were sampled. Rendering a
conversation again may spell an answer differently than the model did, and some chat templates rewrite what was before
(they drop earlier reasoning). With `HeldTokens` the prompt begins with those very tokens, and only what came after them
is rendered: so a conversation stays one sequence, whatever its template does."""

from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from osmosis.base.jsonable import JsonObject
from osmosis.errors import ModelError
from osmosis.records.run.rollout import Category, Message
from osmosis.training.protocol.messages import HeldTokens, SampleRequest
from osmosis.training.trainer.parse_answers import read_arguments


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[int]
    held: bool = False
    """Whether it begins with the tokens that the request holds."""
    repaired: bool = False
    """Whether the chat template alone would have written other tokens there."""


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
        """Return the tokens of what came after the held ones; None when the template has no end of turn there. The
        turns before are counted: the template may rewrite what is in them, and still ends each of them."""
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
