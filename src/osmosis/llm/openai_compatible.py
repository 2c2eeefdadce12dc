import asyncio
import codecs
import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson
from typing_extensions import Unpack

from osmosis.base.jsonable import JsonObject, copy_as_json, objects_in
from osmosis.base.net import is_loopback
from osmosis.errors import ModelError
from osmosis.llm.failures import RetryingModel, http_error, is_filtered, model_error, reported_error
from osmosis.llm.http import HttpEndpoint, OnData
from osmosis.llm.model import ChatRequest, Completion, ModelOptions, Piece, sampling
from osmosis.llm.providers import Price, price_of
from osmosis.llm.streaming import StreamedBody
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.rollout import Category, Message, Usage

MOST_USAGE = 10**12
_REDIRECTS = 5
_NEVER = -9999.0  # Log-probability of what cannot be sampled, as vLLM writes it: JSON has no infinity
_WRITTEN = "cache_creation_input_tokens"


class OpenAICompatibleModel(RetryingModel):
    STREAM: Mapping[str, object] = {"stream": True, "stream_options": {"include_usage": True}}

    def __init__(self, spec: ModelSpec, **options: Unpack[ModelOptions]) -> None:
        extra: Mapping[str, object] = spec.params.get("extra_headers") or {}
        if extra:
            params = {name: value for name, value in spec.params.items() if name != "extra_headers"}
            spec = spec.model_copy(update={"params": params})
        super().__init__(spec, retry=options.get("retry"), signals=options.get("signals"))
        url, headers = self.address((options.get("api_key") or "").strip(), options.get("provider_variables"))
        parts = urlsplit(url)
        local = is_loopback(parts.hostname)
        headers |= {name.lower(): str(value) for name, value in extra.items()}
        headers["content-type"] = "application/json"
        self._endpoint = HttpEndpoint(url, headers, timeout_s=options.get("timeout_s"), use_proxies=not local)
        self._headers = headers
        self._origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._price: Price | None = price_of(spec, local=local)
        self._streams = True

    async def close(self) -> None:
        await self._endpoint.close()

    async def suggest_name(self) -> str | None:
        import httpx  # only a wrong name waits for it

        url = (self.spec.base_url or "").rstrip("/") + "/models"
        try:
            async with httpx.AsyncClient(headers=self._headers, timeout=10, trust_env=not is_loopback(url)) as client:
                listed = [str(entry["id"]) for entry in (await client.get(url)).raise_for_status().json()["data"]]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
            return None
        names = difflib.get_close_matches(self.spec.name, listed, n=8, cutoff=0.0)
        if not names or self.spec.name in names:
            return None
        return f"--model {names[0]} (in a config: model_path); the endpoint has: {', '.join(names)}"

    def address(self, key: str, variables: Mapping[str, str] | None) -> tuple[str, dict[str, str]]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return (self.spec.base_url or "").rstrip("/") + "/chat/completions", headers

    def body(self, request: ChatRequest) -> dict[str, object]:
        body = sampling(self.spec, request)
        extra = body.pop("extra_body", None)
        if isinstance(extra, dict):  # what OpenAI's client merges into the body, too
            body = {**body, **extra}
        body["model"] = self.spec.name
        body["messages"] = request.messages
        if request.tools:
            body["tools"] = request.tools
        return body

    def read(self, raw: bytes) -> Completion:
        return read_completion(raw, model=self.spec.name, price=self._price)

    def open_stream(self, tell: Callable[[Piece], None]) -> StreamedBody:
        return StreamedBody(tell)

    async def once(self, request: ChatRequest) -> Completion:
        if request.on_piece is not None and self._streams:
            stream = self.open_stream(request.tell)
            body = {**self.body(request), **self.STREAM}
            try:
                raw = await ask(self._endpoint, body, name=self.spec.name, origin=self._origin, on_data=stream.feed)
            except ModelError as error:
                if error.category != Category.BAD_REQUEST.value or "stream" not in error.message:
                    raise
                self._streams = False
                return await self.once(request)
            if not stream.began:
                return self.read(raw)
            return completion_of(stream.body(), model=self.spec.name, price=self._price)
        return self.read(await ask(self._endpoint, self.body(request), name=self.spec.name, origin=self._origin))


async def ask(
    endpoint: HttpEndpoint,
    body: Mapping[str, object],
    *,
    name: str,
    origin: str,
    limit: str = "the time limit",
    on_data: OnData | None = None,
) -> bytes:
    try:
        payload = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        refused: list[str] = []
        payload = orjson.dumps(copy_as_json(body, "", refused))
        if refused:
            raise model_error(Category.BAD_REQUEST, f"the request is not JSON: {refused[0]}") from None
    try:
        reply = await endpoint.post(payload, on_data=on_data, redirects=_REDIRECTS)
    except asyncio.TimeoutError as error:
        raise model_error(Category.TIMEOUT, f"{name} did not answer within {limit}") from error
    except OSError as error:
        raise model_error(Category.CONNECTION, f"no answer from {origin}: {type(error).__name__}: {error}") from error
    if is_filtered(reply.status, reply.body):
        return orjson.dumps(FILTERED)
    if reply.status != 200:
        raise http_error(reply.status, reply.body, model=name, retry_after=reply.headers.get("retry-after"))
    try:
        if reply.charset and codecs.lookup(reply.charset).name not in ("utf-8", "ascii"):
            return reply.body.decode(reply.charset).encode()
    except (LookupError, UnicodeError):
        pass  # not what the header says: read as it is
    return reply.body.removeprefix(codecs.BOM_UTF8)


FILTERED: JsonObject = {
    "choices": [{"message": {"role": "assistant", "content": ""}, "finish_reason": "content_filter"}]
}
"""A prompt that a filter refused, in the form in which a filtered answer comes: both are the same finding."""


def parse_body(raw: bytes, *, model: str) -> Any:
    """Parse JSON, also with NaN, or unasked events, as OpenAI's client does; raise `ModelError` (`bad_response`)."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if raw.lstrip().startswith((b"data:", b"event:", b":")):
            stream = StreamedBody(lambda piece: None)
            stream.feed(raw)
            return stream.body()
        try:
            data = json.loads(raw, parse_constant=lambda name: _NEVER if name == "-Infinity" else None)
            orjson.dumps(data)  # a lone surrogate could not be stored
            return data
        except (ValueError, TypeError, RecursionError):
            raise malformed(model, raw, error) from error


def read_completion(raw: bytes, *, model: str, price: Price | None = None) -> Completion:
    return completion_of(parse_body(raw, model=model), model=model, price=price)


def completion_of(data: Any, *, model: str, price: Price | None = None) -> Completion:
    if isinstance(data, dict) and data.get("error") and not data.get("choices"):
        raise reported_error(data["error"], model=model)
    try:
        choice = data["choices"][0]
        if choice.get("error") or choice.get("finish_reason") == "error":
            raise reported_error(choice.get("error") or data.get("error") or "it ended half-way", model=model)
        message = choice["message"]
        if not isinstance(message, dict):
            raise TypeError("the message is not an object")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise malformed(model, data, error) from error
    message = clean_message(message)
    if not isinstance(message.get("content"), (str, list, type(None))):
        raise malformed(model, data, TypeError("content is neither text nor a list of parts"))
    if not isinstance(message.get("tool_calls", []), list):
        raise malformed(model, data, TypeError("tool_calls is not a list"))
    try:
        usage = read_usage(data.get("usage"), price)
    except (TypeError, ValueError, AttributeError) as error:
        raise malformed(model, data, error) from error
    logprobs = choice.get("logprobs") or data.get("logprobs")
    return Completion(
        message=message,
        finish_reason=choice.get("finish_reason"),
        usage=usage,
        model=data.get("model"),
        token_ids=choice.get("token_ids") or data.get("token_ids"),
        logprobs=_logprobs(logprobs) if logprobs else None,
        prompt_token_ids=choice.get("prompt_token_ids") or data.get("prompt_token_ids"),
        top_logprobs=_top_logprobs(logprobs) if logprobs else None,
        choices=_choices(data["choices"], model) if len(data["choices"]) > 1 else [],
        fingerprint=data.get("system_fingerprint"),
        raw_id=data.get("id"),
    )


def _choices(raw: list[Any], model: str) -> list[JsonObject]:
    choices = []
    for choice in raw:
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            raise malformed(model, raw, TypeError("a choice has no message"))
        choices.append({**choice, "message": clean_message(choice["message"])})
    return choices


def clean_message(message: Message) -> Message:
    is_old = isinstance(message.get("function_call"), dict)
    is_whole = "role" in message and "content" in message and None not in message.values()
    if is_whole and not is_old and "tool_calls" not in message:
        return message
    cleaned = {k: v for k, v in message.items() if v is not None or k == "content"}
    cleaned.setdefault("role", "assistant")
    cleaned.setdefault("content", None)
    if not cleaned.get("tool_calls", True):
        del cleaned["tool_calls"]
    if is_old and "tool_calls" not in cleaned:  # the form before tools; it stays, for a server that knows no other
        cleaned["tool_calls"] = [{"id": "call_0", "type": "function", "function": cleaned["function_call"]}]
    return cleaned


def read_usage(raw: JsonObject | None, price: Price | None) -> Usage:
    """Return tokens and money of one call; the provider's own cost wins over the price table."""
    if not raw:
        return Usage()
    prompt, completion = _count(raw, "prompt_tokens"), _count(raw, "completion_tokens")
    cost = raw.get("cost")
    if not prompt and not completion and not cost:
        return Usage()  # LiteLLM's way to say that the provider told nothing: unknown, not free
    details, thought = raw.get("prompt_tokens_details") or {}, raw.get("completion_tokens_details")
    cached = written = 0
    if details or _WRITTEN in raw:
        cached = _count(details, "cached_tokens")
        written = _count(details, "cache_creation_tokens") or _count(raw, _WRITTEN)
        written = written or _count(details, "cache_write_tokens")
    if cost is None and price is not None:
        cost = price.of(prompt, completion, cached, written)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=_count(thought, "reasoning_tokens") if thought else 0,
        cost_usd=None if cost is None else _amount("cost", float(cost)),
    )


def _count(raw: JsonObject, name: str) -> int:
    value = raw.get(name)
    if type(value) is int and 0 <= value <= MOST_USAGE:
        return value
    return int(_amount(name, float(value))) if value else 0


def _amount(name: str, value: float) -> float:
    if not 0 <= value <= MOST_USAGE:
        raise ValueError(f"usage.{name} is {value:g}")
    return value


def _logprobs(raw: object) -> list[float] | None:
    if isinstance(raw, dict) and isinstance(raw.get("content"), list):
        raw = [entry["logprob"] for entry in raw["content"] if isinstance(entry, dict) and "logprob" in entry]
    return raw if isinstance(raw, list) and None not in raw else None


def _top_logprobs(raw: object) -> list[JsonObject] | None:
    entries = objects_in(raw.get("content")) if isinstance(raw, dict) else []
    return entries if any(entry.get("top_logprobs") for entry in entries) else None


def malformed(model: str, raw: object, error: Exception) -> ModelError:
    excerpt = raw[:200].decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)[:200]
    message = f"{model} did not answer with a chat completion ({type(error).__name__}: {error}): {excerpt}"
    return model_error(Category.BAD_RESPONSE, message)
