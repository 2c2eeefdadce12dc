"""The model endpoint of one rollout, as the model proxy keeps it: its own URL prefix and bearers, every model call it
made, the callbacks that arrived, and the end that somebody waits for. A second terminal message with other content is
counted, not taken.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from osmosis.base.json_types import JsonObject
from osmosis.base.light_dataclass import dataclass
from osmosis.errors import ModelError
from osmosis.llm.model import Completion
from osmosis.records.plan import RolloutLimits
from osmosis.records.rollout import Message, ModelCall, Usage

if TYPE_CHECKING:
    from osmosis.records.wire import CompletionCallback, GraderCallback
    from osmosis.records.wire02 import RolloutResponse

GRADER_GRACE_S = 2.0
"""After a failed completion: how long the grader's callback is still waited for."""


@dataclass(eq=False)
class RolloutEndpoint:
    """What one rollout calls and what it reported. Times in `calls` count from the opening, in milliseconds."""

    rollout_id: str
    base_url: str
    row_index: int = 0
    attempt: int = 0
    bearer: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """Of the model endpoint."""
    callback_key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """Of the callbacks."""
    tools: list[dict[str, Any]] | None = None
    """Generation 0.2 says its tools once, in the answer to init; chat requests do not repeat them."""
    calls: list[ModelCall] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    messages: list[Message] = field(default_factory=list)
    """The conversation so far: the last request with its answer."""
    finish_reason: str | None = None
    offered: list[JsonObject] | None = None
    """The tools of the last call that had any."""
    model_error: ModelError | None = None
    """The last model call failed with this; None again once a later call succeeds."""
    limits: RolloutLimits | None = None
    """Beyond them no call is answered."""
    limit_reached: str | None = None
    """The finish reason, when a limit ended the rollout."""
    completion: CompletionCallback | None = None
    grader: GraderCallback | None = None
    response: RolloutResponse | None = None
    """The terminal message of generation 0.2."""
    on_state: Callable[[str], None] | None = None
    """Hears `agent` and `score` where the generation tells how far a rollout is, and `agent` after a wait."""
    on_begin: Callable[[], None] | None = None
    """Hears when a rollout that was queued on its server starts."""
    on_wait: Callable[[float], None] | None = None
    """Hears the seconds of each wait for a rate limit, before it."""
    state: str = ""
    """The last state told."""
    repeats: int = 0
    """Terminal messages that came again."""
    contradictions: int = 0
    """Terminal messages that said something else than the first."""
    closed: bool = False
    opened: float = field(default_factory=time.perf_counter)
    _done: asyncio.Event = field(default_factory=asyncio.Event)
    _tools_known: asyncio.Event = field(default_factory=asyncio.Event)
    _waited: bool = False

    @property
    def prefix(self) -> str:
        return f"{self.base_url}/v1/rollouts/{self.rollout_id}"

    @property
    def chat_completions_url(self) -> str:
        """To which a rollout appends `/chat/completions`."""
        return self.prefix

    @property
    def completion_callback_url(self) -> str:
        return f"{self.prefix}/completion"

    @property
    def grader_callback_url(self) -> str:
        return f"{self.prefix}/grader"

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    async def result(self, timeout: float | None = None) -> RolloutEndpoint:
        """Waits for the terminal message (itself, for its `completion`, `grader` or `response`); TimeoutError else."""
        await asyncio.wait_for(self._done.wait(), timeout)
        return self

    def expect_tools(self) -> None:
        """Chat calls wait until `know_tools`: the answer to init may still be on its way."""
        self._tools_known.clear()

    def know_tools(self, tools: list[dict[str, Any]] | None) -> None:
        self.tools = tools or None
        self._tools_known.set()

    async def tools_known(self, timeout: float) -> None:
        await asyncio.wait_for(self._tools_known.wait(), timeout)

    def tell(self, state: str) -> None:
        """A state of generation 0.4, however often it is read."""
        if state == self.state:
            return
        self.state = state
        stage = {"running": "agent", "grading": "score"}.get(state)
        if stage and self.on_state is not None:
            self.on_state(stage)

    def close(self) -> None:
        """Drops the conversation; only ids, bearers and counters stay, for callbacks that come again."""
        self.closed = True
        self.calls, self.messages, self.tools, self.offered = [], [], None, None
        self.completion = self.grader = self.response = None
        self.on_state = self.on_begin = self.on_wait = None

    def wait(self, seconds: float) -> None:
        """A model call is about to wait for a rate limit."""
        self._waited = True
        if self.on_wait is not None:
            self.on_wait(seconds)

    def take_completion(self, message: CompletionCallback, *, final: bool) -> None:
        if self.closed or self.completion is not None:
            self._again(self.completion in (None, message))
            return
        self.completion = message
        if final:
            self._done.set()
        elif message.status != "success":  # the grader's word usually follows; a failed rollout does not wait long
            asyncio.get_running_loop().call_later(GRADER_GRACE_S, self._done.set)

    def take_grader(self, message: GraderCallback) -> None:
        if self.closed or self.grader is not None:
            self._again(self.grader in (None, message))
            return
        self.grader = message
        self._done.set()

    def take_response(self, message: RolloutResponse) -> None:
        if self.closed or self.response is not None:
            self._again(self.response in (None, message))
            return
        self.response = message
        self._done.set()

    def record(self, started: float, messages: list[Message], done: Completion) -> ModelCall:
        """Keeps one answered call; `started` is a `time.perf_counter` value."""
        call = ModelCall(
            started_ms=(started - self.opened) * 1000,
            duration_ms=(time.perf_counter() - started) * 1000,
            usage=done.usage,
            finish_reason=done.finish_reason,
            model=done.model,
            fingerprint=done.fingerprint,
            retries=done.retries,
            cached=done.cached,
            tokens=done.tokens,
        )
        self._keep(call)
        self.usage = self.usage + done.usage
        self.messages = [*messages, done.message]
        self.finish_reason = done.finish_reason
        self.model_error = None
        return call

    def record_failure(self, started: float, messages: list[Message], error: ModelError) -> ModelCall:
        call = ModelCall(
            started_ms=(started - self.opened) * 1000,
            duration_ms=(time.perf_counter() - started) * 1000,
            error=f"{error.category}: {error.message}",
        )
        self._keep(call)
        self.messages = list(messages)
        self.model_error = error
        return call

    def _keep(self, call: ModelCall) -> None:
        self.calls.append(call)
        if self._waited:
            self._waited = False
            if self.on_state is not None:
                self.on_state("agent")

    def _again(self, same: bool) -> None:
        self.repeats += 1
        if not same:
            self.contradictions += 1
