"""The model endpoint of one rollout, as the model proxy keeps it: its URL prefix and bearers, the callbacks that
arrived, and the end that a client waits for. A second terminal message is not taken."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from osmosis.base.jsonable import JsonObject
from osmosis.engine.rollout_model import RolloutModel
from osmosis.records.base import Record
from osmosis.records.protocol.messages import CompletionCallback, GraderCallback
from osmosis.records.run.rollout import Message, ModelCall
from osmosis.serve.client.turns import Turns

GRADER_GRACE_S = 2.0


@dataclass(eq=False)
class RolloutEndpoint:
    rollout_id: str
    base_url: str
    model: RolloutModel | None = None
    """Answers its calls, and counts them; None once it is closed."""
    bearer: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    callback_key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    tools: list[JsonObject] | None = None
    """Tools of generation 0.2, which says them once, in the answer to init; chat requests do not repeat them."""
    turns: Turns = field(default_factory=Turns)
    conversation: list[Message] = field(default_factory=list)
    """The agent's own, as of its last answer: side calls are not part of it."""
    left_out: set[str] = field(default_factory=set)
    """Fields and tools of its calls that had no effect."""
    overrides_sampling: bool = False
    """True if the run's sampling parameters win over those of its chat completions, too."""
    overridden: JsonObject = field(default_factory=dict)
    """Parameters of its calls in whose place the run's own were used."""
    completion: CompletionCallback | None = None
    grader: GraderCallback | None = None
    response: Record | None = None
    on_state: Callable[[str], None] | None = None
    """Called with `agent` and `score` where the generation reports states."""
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
