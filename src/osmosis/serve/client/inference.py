"""The endpoint of one model, in every dialect: chat completions, Messages, Responses, generateContent, and their lists
of models. It is what a deployment answers to its platform, and `osmosis model serve` to this machine. Every caller
sends the one key. A parameter that the model cannot obey is refused by name where it changes the answer; a caller that
hangs up cancels the call."""

import asyncio
import contextlib
import hmac
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field

from fastapi import Request, Response

from osmosis.base.jsonable import JsonObject
from osmosis.dialects import CHAT, Call, Dialect, EndpointError, Envelope
from osmosis.dialects.call import OVERLOADED, bad_request
from osmosis.dialects.harnesses import normalize
from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.records.run.rollout import Category
from osmosis.serve.client.model_http import answer_call, bearer_of, model_routes, new_chat_app
from osmosis.serve.http import bind, listening, url_of

MAX_BODY = 64 * 1024 * 1024
OBEYED = frozenset(
    {"temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "tool_choice", "logprobs"}
)
IGNORED = frozenset({"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"})
"""Parameters that name the caller and the billing, which changes no answer here."""
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
}
"""Values with which a parameter asks for nothing."""
RETRY_S = 5.0
_STATUS = {
    Category.BAD_REQUEST.value: 400,
    Category.CONTEXT_LENGTH.value: 400,
    Category.RATE_LIMIT.value: 429,
    Category.CONNECTION.value: OVERLOADED,
    Category.SERVER_DIED.value: OVERLOADED,
    Category.TIMEOUT.value: 504,
}


@dataclass(eq=False, repr=False)
class InferenceEndpoint:
    """An HTTP server over one model. `answered` counts whole answers; `on_answer` is called after each."""

    model: Model
    _: KW_ONLY
    name: str
    key: str
    time_limit_s: float
    on_answer: Callable[[], None] | None = None
    max_body_bytes: int = MAX_BODY
    answered: int = 0
    _in_flight: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    def __post_init__(self) -> None:
        self._idle.set()

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> str:
        app = new_chat_app("Osmosis inference endpoint")
        app.include_router(model_routes(self, ""))
        listener = bind(host, port)
        await self._serving.enter_async_context(listening(app, listener))
        return f"{url_of(listener)}/v1"

    async def drained(self, timeout_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)

    async def close(self) -> None:
        await self._serving.aclose()

    def authenticate(self, request: Request) -> object:
        token = bearer_of(request)
        if token is None or not hmac.compare_digest(token, self.key.encode()):
            raise EndpointError(401, "the key is missing or wrong: send it as Authorization: Bearer KEY", "auth")
        return None

    def model_names(self) -> list[str]:
        return [self.name]

    async def answer(self, request: Request, caller: object, dialect: Dialect, call: Call) -> Response:
        question = chat_request(dialect, call)
        question.rollout_id = f"chat-{next(self._numbers)}"
        with_tokens = bool(call.params.get("logprobs"))
        return await answer_call(
            request, dialect, call, question, self._complete, Envelope(self.name), with_tokens=with_tokens
        )

    async def _complete(self, question: ChatRequest) -> Completion:
        self._in_flight += 1
        self._idle.clear()
        try:
            done = await asyncio.wait_for(self.model.complete(question), self.time_limit_s)
        except asyncio.TimeoutError:
            message = f"no answer within {self.time_limit_s:.0f} s: ask for fewer tokens (max_tokens)"
            raise EndpointError(504, message, Category.TIMEOUT.value) from None
        except ModelError as error:
            retry = error.retry_after or RETRY_S if error.category == Category.CONNECTION.value else None
            status = _STATUS.get(error.category, 500)
            raise EndpointError(status, error.message, error.category, retry_after=retry) from error
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
        self.answered += 1
        if self.on_answer is not None:
            self.on_answer()
        done.model = self.name
        return done


def chat_request(dialect: Dialect, call: Call) -> ChatRequest:
    """Return the request for the model; raise `EndpointError` for what it cannot obey. Harnesses send sampling
    parameters that nobody chose: those of other dialects than chat that mean nothing here are left out."""
    if not call.messages:
        bad_request("messages must be a list of objects, at least one")
    if call.tools is not None and not all(isinstance(tool, dict) for tool in call.tools):
        bad_request("tools must be a list of objects")
    params: JsonObject = {}
    for key, value in call.params.items():
        neutral = NEUTRAL.get(key)
        if key in IGNORED or (dialect is not CHAT and key not in OBEYED and key != "response_format"):
            continue
        if neutral is None and key not in OBEYED:
            bad_request(f"{key} is not supported: leave it out")
        if neutral is not None and value not in neutral:
            possible = ", ".join(map(str, neutral))
            bad_request(f"{key} = {str(value)[:100]} is not supported: leave it out (possible: {possible})")
        if key in OBEYED:
            params[key] = value
    normalize(call)
    return ChatRequest(messages=call.messages, tools=call.tools, params=params)
