"""The model's turns of one rollout, found again by what its client sends back. Rendering an answer again rarely gives
the tokens that were sampled: clients spell tool arguments anew, trim text and drop reasoning. So each answer leaves
with a handle in every slot that clients return, and `restore` puts the answer as it was sampled in the place of what
came back; the trainer then finds its tokens by these messages. An answer that the client changed in meaning stays as it
came: a branch of its own, without loss on what was not sampled."""

from dataclasses import dataclass
from hashlib import blake2b

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.dialects.call import Call, Envelope, arguments_text, text_of
from osmosis.dialects.harnesses import RETRY
from osmosis.records.run.rollout import Message, ModelCall


@dataclass(slots=True, eq=False)
class Turn:
    message: Message
    call: ModelCall
    question: bytes
    """Hash of the messages and tools that it answers."""
    purpose: str | None = None
    """The call's own, before it was taken for a retry."""


class Turns:
    def __init__(self) -> None:
        self._by_handle: dict[str, Turn] = {}
        self._by_content: dict[bytes, Turn] = {}
        self._by_question: dict[bytes, list[Turn]] = {}
        self._ids: set[str] = set()

    def envelope(self, model: str) -> Envelope:
        envelope = Envelope(model)
        claimed: dict[str, str] = {}

        def claim(call_id: str) -> str:
            if call_id not in claimed:
                is_new = call_id not in self._ids
                claimed[call_id] = call_id if is_new else f"call_{envelope.handle}_{len(claimed)}"
                self._ids.add(claimed[call_id])
            return claimed[call_id]

        envelope.claim = claim
        return envelope

    def restore(self, call: Call) -> None:
        for index, message in enumerate(call.messages):
            if message.get("role") != "assistant":
                continue
            turn = self._find(message, call.handles.get(index, ()))
            if turn is not None:
                siblings = self._by_question[turn.question]
                for sibling in siblings if len(siblings) > 1 else ():  # that which is continued was no retry
                    sibling.call.purpose = turn.purpose if sibling is turn else RETRY
                call.messages[index] = turn.message
            elif "thinking_blocks" in message:
                call.messages[index] = {k: v for k, v in message.items() if k != "thinking_blocks"}

    def add(self, envelope: Envelope, question: bytes, message: Message, call: ModelCall) -> Message:
        tool_calls = message.get("tool_calls")
        if tool_calls:
            tool_calls = [
                {**tool, "id": envelope.claim(str(tool.get("id") or f"call_{i}"))} for i, tool in enumerate(tool_calls)
            ]
            message = {**message, "tool_calls": tool_calls}
        turn = Turn(message, call, question, call.purpose)
        handles = [envelope.handle, *(tool["id"] for tool in tool_calls or ())]
        self._by_handle.update(dict.fromkeys(handles, turn))
        self._by_content[_content_hash(message)] = turn
        siblings = self._by_question.setdefault(question, [])
        siblings.append(turn)
        for sibling in siblings[:-1]:
            sibling.call.purpose = RETRY
        return message

    def _find(self, message: Message, handles: list[str] | tuple[str, ...]) -> Turn | None:
        for handle in handles:
            inner = handle.partition("_")[2].partition("_")[0]  # of an item's id: `rs_<handle>`, `fc_<handle>_0`
            turn = self._by_handle.get(handle) or self._by_handle.get(inner)
            if turn is not None and _is_same(turn.message, message):
                return turn
        return self._by_content.get(_content_hash(message))


def question_hash(call: Call) -> bytes:
    return blake2b(orjson.dumps([call.messages, call.tools], default=str), digest_size=16).digest()


def _is_same(sampled: Message, returned: Message) -> bool:
    """Return whether what came back is the sampled message but for spelling: spaces, form of arguments, reasoning."""
    text = text_of(sampled.get("content")).strip()
    # Some clients leave out the text beside tool calls.
    is_same_text = text_of(returned.get("content")).strip() in (text, "" if sampled.get("tool_calls") else text)
    return is_same_text and _calls(sampled) == _calls(returned)


def _calls(message: Message) -> list[tuple[object, object]]:
    return [_spelled_alike(call.get("function") or {}) for call in message.get("tool_calls") or ()]


def _spelled_alike(function: JsonObject) -> tuple[object, object]:
    text = arguments_text(function)
    try:
        return function.get("name"), orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return function.get("name"), text


def _content_hash(message: Message) -> bytes:
    content = [text_of(message.get("content")).strip(), _calls(message)]
    return blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()
