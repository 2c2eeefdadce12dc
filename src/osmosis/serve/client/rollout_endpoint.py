"""The model endpoint of one rollout: URL prefix, bearers, callbacks, end. A second terminal message is not taken."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.dialects.call import RETRY, Call, Envelope, arguments_text, text_of
from osmosis.engine.rollout_model import RolloutModel
from osmosis.records.base import Record
from osmosis.records.protocol.messages import CompletionCallback, GraderCallback
from osmosis.records.run.rollout import Message, ModelCall


@dataclass(slots=True, eq=False)
class Turn:
    message: Message
    call: ModelCall
    question: bytes  # Hash of the messages and tools that it answers
    purpose: str | None = None  # The call's own, before it was taken for a retry


class Turns:
    """The model's turns of one rollout, found again by what its client sends back. Clients spell tool arguments anew,
    trim text and drop reasoning, so each answer leaves with a handle in every slot that clients return, and `restore`
    puts it back as it was sampled. An answer changed in meaning stays as it came: a branch without loss on it."""

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


GRADER_GRACE_S = 2.0


@dataclass(eq=False)
class RolloutEndpoint:
    rollout_id: str
    base_url: str
    model: RolloutModel | None = None  # answers its calls, and counts them; None once it is closed
    bearer: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    callback_key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    tools: list[JsonObject] | None = None
    """Tools of generation 0.2, which says them once, in the answer to init; chat requests do not repeat them."""
    turns: Turns = field(default_factory=Turns)
    conversation: list[Message] = field(default_factory=list)
    """The agent's own, as of its last answer: side calls are not part of it."""
    left_out: set[str] = field(default_factory=set)  # Fields and tools of its calls that had no effect
    overrides_sampling: bool = False
    """True if the run's sampling parameters win over those of its chat completions, too."""
    overridden: JsonObject = field(default_factory=dict)
    """Parameters of its calls in whose place the run's own were used."""
    completion: CompletionCallback | None = None
    grader: GraderCallback | None = None
    response: Record | None = None
    on_state: Callable[[str], None] | None = None  # Called with `agent` and `score` where the generation reports states
    on_begin: Callable[[], None] | None = None
    state: str = ""
    closed: bool = False
    _done: asyncio.Event = field(default_factory=asyncio.Event)
    _tools_known: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._tools_known.set()

    @property
    def calls(self) -> list[ModelCall]:
        return self.model.calls if self.model is not None else []

    @property
    def prefix(self) -> str:
        return f"{self.base_url}/v1/rollouts/{self.rollout_id}"

    @property
    def chat_completions_url(self) -> str:
        return self.prefix

    @property
    def completion_callback_url(self) -> str:
        return f"{self.prefix}/completion"

    @property
    def grader_callback_url(self) -> str:
        return f"{self.prefix}/grader"

    async def result(self, timeout: float | None = None) -> "RolloutEndpoint":
        await asyncio.wait_for(self._done.wait(), timeout)
        return self

    def expect_tools(self) -> None:
        self._tools_known.clear()

    def set_tools(self, tools: list[JsonObject] | None) -> None:
        self.tools = tools or None
        self._tools_known.set()

    async def wait_for_tools(self, timeout: float) -> None:
        await asyncio.wait_for(self._tools_known.wait(), timeout)

    def report_state(self, state: str) -> None:
        if state == self.state:
            return
        self.state = state
        stage = {"running": "agent", "grading": "score"}.get(state)
        if stage and self.on_state is not None:
            self.on_state(stage)

    def close(self) -> None:
        self.closed = True
        self.model = self.tools = None
        self.completion = self.grader = self.response = None
        self.on_state = self.on_begin = None
        self.turns, self.conversation = Turns(), []

    def take_completion(self, message: CompletionCallback) -> None:
        if self.closed or self.completion is not None:
            return
        self.completion = message
        if message.status != "success":  # the grader's word usually follows; a failed rollout does not wait long
            asyncio.get_running_loop().call_later(GRADER_GRACE_S, self._done.set)

    def take_grader(self, message: GraderCallback) -> None:
        if self.closed or self.grader is not None:
            return
        self.grader = message
        self._done.set()

    def take_response(self, message: Record) -> None:
        if self.closed or self.response is not None:
            return
        self.response = message
        self._done.set()
