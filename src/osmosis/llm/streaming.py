"""An answer that comes in pieces: chunks of chat completions in, pieces out, and at the end the very body that the
answer would have had in one piece. What a stream says beyond its pieces (usage, token ids, other keys) is kept.

The form is that of OpenAI's chat completions API: server-sent events, each a `chat.completion.chunk`, then `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from osmosis.base.json_types import JsonObject
from osmosis.records.rollout import Category

from .failures import error_text, model_error
from .model import Piece

_WHOLE = ("role", "id", "type", "name", "finish_reason", "stop_reason")
"""Text that is said at once: a second time repeats it. All other text goes on where it left off."""


class StreamedBody:
    """Collects the chunks of one answer. `feed` takes bytes, `chunk` what is parsed already; neither ever raises."""

    def __init__(self, tell: Callable[[Piece], None]) -> None:
        self._tell = tell
        self._line = b""
        self._data: list[bytes] = []
        self._body: JsonObject = {}
        self._choice: JsonObject = {}
        self._message: JsonObject = {}
        self._calls: dict[int, JsonObject] = {}
        self._done = False
        self._problem: Exception | None = None
        self.began = False
        """Whether any chunk has come: a server that cannot stream answers with a plain body."""

    def feed(self, data: bytes) -> None:
        """More bytes of the event stream, cut anywhere."""
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._read(line.rstrip(b"\r"))

    def chunk(self, chunk: Mapping[str, object]) -> None:
        """One parsed chunk."""
        self.began = True
        if chunk.get("error") is not None:
            text = error_text(orjson.dumps(chunk))
            self._problem = model_error(Category.SERVER_ERROR, f"the stream ended with an error: {text}")
            return
        for key, value in chunk.items():
            if key not in ("choices", "object") and value is not None:
                self._body[key] = value
        for choice in _objects(chunk.get("choices")):
            if not choice.get("index"):
                self._add(choice)

    def body(self) -> JsonObject:
        """The answer as one `chat.completion`. `ModelError` when the stream was no stream, or stopped in the middle."""
        if self._line:
            self.feed(b"\n")
        self._event()
        if self._problem is not None:
            raise self._problem
        if not self._done and self._choice.get("finish_reason") is None:
            raise model_error(Category.BAD_RESPONSE, "the stream stopped before the answer was complete")
        message = {"role": "assistant", "content": None, **self._message}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return {**self._body, "object": "chat.completion", "choices": [{**self._choice, "message": message}]}

    def _read(self, line: bytes) -> None:
        if not line:
            self._event()
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))

    def _event(self) -> None:
        data, self._data = b"\n".join(self._data), []
        if data == b"[DONE]":
            self._done = True
        if not data or self._done or self._problem is not None:
            return
        try:
            found = orjson.loads(data)
            if not isinstance(found, dict):
                raise TypeError("an event is not an object")
            self.chunk(found)
        except (orjson.JSONDecodeError, TypeError, ValueError) as error:
            shown = data[:200].decode("utf-8", "replace")
            message = f"the stream holds no chat completion ({error}): {shown}"
            self._problem = model_error(Category.BAD_RESPONSE, message)

    def _add(self, choice: JsonObject) -> None:
        """One choice of a chunk, into the answer and to whoever listens."""
        for key, value in choice.items():
            if key not in ("delta", "index") and value is not None:
                self._choice[key] = _joined(key, self._choice.get(key), value)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return
        said = {key: value for key, value in delta.items() if key != "role" and value not in (None, "", [])}
        calls = _objects(said.get("tool_calls"))
        for call in calls:
            self._call(call)
        for key, value in delta.items():
            if key != "tool_calls" and value is not None:
                self._message[key] = _joined(key, self._message.get(key), value)
        if said:
            logprobs = choice.get("logprobs")
            self._tell(Piece(said, logprobs if isinstance(logprobs, dict) else None))

    def _call(self, fragment: JsonObject) -> None:
        """A piece of a tool call. Servers that number none mean a new one with each new id."""
        index = fragment.get("index")
        if not isinstance(index, int):
            known = next((i for i, call in self._calls.items() if call.get("id") == fragment.get("id")), None)
            last = max(self._calls, default=0)
            index = known if known is not None else len(self._calls) if fragment.get("id") else last
            fragment["index"] = index
        held = self._calls.setdefault(index, {"type": "function", "function": {"name": "", "arguments": ""}})
        for key, value in fragment.items():
            if key != "index" and value is not None:
                held[key] = _joined(key, held.get(key), value)


def _joined(key: str, held: object, more: object) -> object:
    """What was there and what came: text goes on, lists grow, objects are joined key by key."""
    if isinstance(held, dict) and isinstance(more, dict):
        return {**held, **{k: _joined(k, held.get(k), v) for k, v in more.items() if v is not None}}
    if isinstance(held, str) and isinstance(more, str):
        return (more or held) if key in _WHOLE else held + more
    if isinstance(held, list) and isinstance(more, list):
        return held + more
    return more


def _objects(value: object) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
