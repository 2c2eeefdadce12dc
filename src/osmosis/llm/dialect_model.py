"""Providers that are asked in their own API, without LiteLLM: Anthropic by Messages, OpenAI by Responses."""

import os
from collections.abc import Callable, Mapping

from osmosis.base.jsonable import JsonObject
from osmosis.base.redact import Redactor
from osmosis.dialects import Call, EndpointError, messages, responses
from osmosis.errors import ModelError
from osmosis.llm.failures import model_error
from osmosis.llm.model import ChatRequest, Completion, Piece, sampling
from osmosis.llm.openai_compatible import OpenAICompatibleModel, completion_of, parse_body
from osmosis.llm.providers import arguments_for, find_entry
from osmosis.llm.streaming import StreamedBody
from osmosis.records.run.rollout import Category

LEAST_THINKING = 1024
THINKING_TOKENS = {"minimal": 1024, "low": 1024, "medium": 2048, "high": 4096, "xhigh": 8192, "max": 16384}
"""Tokens that each `reasoning_effort` grants to models that do not choose them."""


class DialectModel(OpenAICompatibleModel):
    STREAM: Mapping[str, object] = {"stream": True}

    def address(self, key: str, variables: Mapping[str, str] | None) -> tuple[str, dict[str, str]]:
        # The documented sources of addresses and keys, for callers that give none.
        variables = os.environ if variables is None else variables
        provider, _, name = self.spec.name.partition("/")
        self.model_name = name.removeprefix("responses/")
        self.is_messages = self.spec.kind == "messages"
        self._client = messages if self.is_messages else responses
        self._may_encrypt = not self.is_messages
        headers: dict[str, str] = {}
        key = key or arguments_for(provider, variables).get("api_key", "").strip()
        addresses = (variables.get(f"{provider.upper()}_{name}") for name in ("BASE_URL", "API_BASE"))
        base = (self.spec.base_url or next(filter(None, addresses), "")).rstrip("/")
        if self.is_messages:
            url = f"{base.removesuffix('/v1') or 'https://api.anthropic.com'}/v1/messages"
            headers["anthropic-version"] = "2023-06-01"
            headers |= {"x-api-key": key} if key else {}
            key = "" if key else variables.get("ANTHROPIC_AUTH_TOKEN", "").strip()
        else:
            url = f"{base or 'https://api.openai.com/v1'}/responses"
        headers |= {"authorization": f"Bearer {key}"} if key else {}
        self._redactor = Redactor([key, headers.get("x-api-key", "")])
        return url, headers

    def body(self, request: ChatRequest) -> dict[str, object]:
        params = sampling(self.spec, request)
        extra = params.pop("extra_body", None)
        if self.is_messages:
            self._add_limits(params)
        elif self._may_encrypt:
            params["include"] = [*params.get("include", ()), responses.ENCRYPTED]
        call = Call(request.messages, request.tools, params, model=self.model_name)
        return {**self._client.render_request(call), **(extra if isinstance(extra, dict) else {})}

    def _add_limits(self, params: JsonObject) -> None:
        """Set the limit of tokens, which this API wants, and translate the effort of thinking."""
        entry = find_entry(self.spec.name)
        limit = params.pop("max_completion_tokens", None) or params.get("max_tokens") or entry.get("max_output_tokens")
        limit = params["max_tokens"] = int(limit or 4096)
        effort, thinking = params.pop("reasoning_effort", None), params.get("thinking")
        if isinstance(thinking, dict) and int(thinking.get("budget_tokens") or 0) >= limit:
            del params["thinking"]  # the probe's limit leaves no room for it
        if effort in (None, "none") or thinking or limit <= LEAST_THINKING:
            return
        if entry.get("supports_reasoning") and not entry.get("supports_adaptive_thinking"):
            budget = min(THINKING_TOKENS.get(str(effort), 4096), limit - 1)
            params["thinking"] = {"type": "enabled", "budget_tokens": budget}
        else:
            params["thinking"] = {"type": "adaptive", "display": "summarized"}
            level = "low" if effort == "minimal" else effort
            params["output_config"] = {"effort": level, **(params.get("output_config") or {})}

    async def once(self, request: ChatRequest) -> Completion:
        try:
            return await super().once(request)
        except EndpointError as error:  # the request cannot be said in this API
            raise model_error(Category.BAD_REQUEST, f"{self.spec.name}: {error.message}") from error
        except ModelError as error:
            error.message = self._redactor.text(error.message)
            if not self._may_encrypt or error.category != Category.BAD_REQUEST.value or "ncrypted" not in error.message:
                raise
            self._may_encrypt = False  # a model that does not reason
        return await self.once(request)

    def read(self, raw: bytes) -> Completion:
        data = parse_body(raw, model=self.spec.name)
        try:
            reply = self._client.parse_reply(data)
        except (EndpointError, AttributeError, TypeError, ValueError, KeyError) as error:
            excerpt = raw[:200].decode("utf-8", "replace")
            message = f"{self.spec.name} did not answer as the {self.spec.kind} API does ({error}): {excerpt}"
            raise model_error(Category.BAD_RESPONSE, message) from error
        return completion_of(reply, model=self.spec.name, price=self._price)

    def open_stream(self, tell: Callable[[Piece], None]) -> StreamedBody:
        return StreamedBody(tell, self._client.ReplyReader().read)
