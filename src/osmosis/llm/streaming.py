"""Chunks of chat completions in, pieces out, and at the end the body that the answer would have had in one piece."""

from collections.abc import Callable, Iterable, Mapping

import orjson

from osmosis.base.jsonable import JsonObject, objects_in
from osmosis.dialects import EndpointError
from osmosis.llm.failures import model_error, reported_error
from osmosis.llm.model import Piece
from osmosis.records.run.rollout import Category

_UNDIVIDED = ("role", "id", "type", "name", "finish_reason", "stop_reason")
"""Text that a stream sends whole: a second time repeats it. All other text continues."""


class StreamedBody:
    """Collects the chunks of one answer. `feed` takes bytes, `chunk` a parsed one; neither ever raises."""

    def __init__(
        self,
        tell: Callable[[Piece], None],
        translate: Callable[[JsonObject], Iterable[JsonObject]] = lambda event: (event,),
    ) -> None:
        self._tell = tell
        self._translate = translate
        self._line = b""
        self._data: list[bytes] = []
        self._body: JsonObject = {}
        self._choice: JsonObject = {}
        self._message: JsonObject = {}
        self._calls: dict[int, JsonObject] = {}
        self._done = False
        self._problem: Exception | None = None
        self.began = False
        """True once a chunk has come: a server that cannot stream answers with a plain body."""

    def feed(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._read(line.rstrip(b"\r"))

    def chunk(self, chunk: Mapping[str, object]) -> None:
        self.began = True
        if chunk.get("error") is not None:
            self._problem = reported_error(chunk["error"], model="the stream")
            return
        for key, value in chunk.items():
            if key not in ("choices", "object") and value is not None:
                self._body[key] = value
        for choice in objects_in(chunk.get("choices")):
            if not choice.get("index"):
                self._add(choice)

    def body(self) -> JsonObject:
        if self._line:
            self.feed(b"\n")
        self._event()
        if self._problem is not None:
            raise self._problem
        if not self._done and self._choice.get("finish_reason") is None:
            raise model_error(Category.BAD_RESPONSE, "the stream stopped before the answer was complete")
        message = self._choice.get("message") or {"role": "assistant", "content": None, **self._message}
        if self._calls and "message" not in self._choice:
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
            chunk = orjson.loads(data)
            if not isinstance(chunk, dict):
                raise TypeError("an event is not an object")
            for translated in self._translate(chunk):
                self.chunk(translated)
        except (ValueError, TypeError, LookupError, AttributeError, EndpointError) as error:
            excerpt = data[:200].decode("utf-8", "replace")
            message = f"the stream holds no chat completion ({error}): {excerpt}"
            self._problem = model_error(Category.BAD_RESPONSE, message)

    def _add(self, choice: JsonObject) -> None:
        for key, value in choice.items():
            if key not in ("delta", "index") and value is not None:
                self._choice[key] = _joined(key, self._choice.get(key), value)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return
        new_fields = {key: value for key, value in delta.items() if key != "role" and value not in (None, "", [])}
        for call in objects_in(new_fields.get("tool_calls")):
            self._call(call)
        for key, value in delta.items():
            if key != "tool_calls" and value is not None:
                self._message[key] = _joined(key, self._message.get(key), value)
        if new_fields:
            logprobs = choice.get("logprobs")
            self._tell(Piece(new_fields, logprobs if isinstance(logprobs, dict) else None))

    def _call(self, fragment: JsonObject) -> None:
        index = fragment.get("index")
        if not isinstance(index, int):
            known_index = next((i for i, call in self._calls.items() if call.get("id") == fragment.get("id")), None)
            last = max(self._calls, default=0)
            index = known_index if known_index is not None else len(self._calls) if fragment.get("id") else last
            fragment["index"] = index
        call_so_far = self._calls.setdefault(index, {"type": "function", "function": {"name": "", "arguments": ""}})
        for key, value in fragment.items():
            if key != "index" and value is not None:
                call_so_far[key] = _joined(key, call_so_far.get(key), value)


def _joined(key: str, before: object, more: object) -> object:
    if isinstance(before, dict) and isinstance(more, dict):
        return {**before, **{k: _joined(k, before.get(k), v) for k, v in more.items() if v is not None}}
    if isinstance(before, str) and isinstance(more, str):
        return (more or before) if key in _UNDIVIDED else before + more
    if isinstance(before, list) and isinstance(more, list):
        return before + more
    return more
