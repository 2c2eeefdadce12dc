"""A model of any provider that LiteLLM knows. The only file that imports LiteLLM."""

import asyncio
import os
from collections.abc import Mapping
from types import ModuleType

import orjson
from typing_extensions import Unpack

from osmosis.base.installation import install_command
from osmosis.base.net import parse_retry_after
from osmosis.errors import ModelError
from osmosis.llm.failures import HINTS, RetryingModel, category_of_error, model_error, status_of
from osmosis.llm.model import ChatRequest, Completion, ModelOptions, sampling
from osmosis.llm.openai_compatible import FILTERED, completion_of, read_completion
from osmosis.llm.providers import arguments_for, price_of
from osmosis.llm.streaming import StreamedBody
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.rollout import Category


class LiteLLMModel(RetryingModel):
    def __init__(self, spec: ModelSpec, **options: Unpack[ModelOptions]) -> None:
        super().__init__(spec, retry=options.get("retry"), signals=options.get("signals"))
        api_key, provider_variables = options.get("api_key"), options.get("provider_variables")
        self.access: Mapping[str, str] = {"api_key": api_key} if api_key else {}
        if provider_variables and not api_key:
            self.access = arguments_for(_provider(spec.name), provider_variables)
        self._timeout_s = options.get("timeout_s")
        self._price = price_of(spec)
        self._call = _litellm().acompletion

    async def once(self, request: ChatRequest) -> Completion:
        arguments = sampling(self.spec, request)
        arguments.update(model=self.spec.name, messages=request.messages, num_retries=0, max_retries=0)
        if request.tools:
            arguments["tools"] = request.tools
        arguments.update(self.access)
        if self.spec.base_url:
            arguments["api_base"] = self.spec.base_url
        if self._timeout_s:
            arguments["timeout"] = self._timeout_s
        if request.on_piece is not None:
            arguments.update(stream=True, stream_options={"include_usage": True})
        try:
            reply = await self._call(**arguments)
            if request.on_piece is not None:
                stream = StreamedBody(request.tell)
                async for chunk in reply:
                    stream.chunk(chunk.model_dump(exclude_none=True))
                return completion_of(stream.body(), model=self.spec.name, price=self._price)
        except (asyncio.CancelledError, ModelError):
            raise
        except Exception as error:  # every provider raises its own classes; all become ours
            if "ContentPolicyViolationError" in [cls.__name__ for cls in type(error).__mro__]:
                return completion_of(FILTERED, model=self.spec.name)
            raise _translate(error, self.spec.name) from error
        raw = orjson.dumps(reply.model_dump(exclude_none=True))
        return read_completion(raw, model=self.spec.name, price=self._price)


def supports_schema(model: str) -> bool:
    litellm = _litellm()
    try:
        return bool(litellm.supports_response_schema(model=model.replace("/responses/", "/")))
    except Exception:  # noqa: BLE001 - a question of taste to a vendor library: any doubt means the plainer format
        return False


def _provider(model: str) -> str:
    try:
        return str(_litellm().get_llm_provider(model)[1])
    except Exception:  # noqa: BLE001 - a vendor library's own classes; the call itself explains
        return ""


def _litellm() -> ModuleType:
    # LiteLLM fetches its price map over the network while it is imported unless told not to.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ModuleNotFoundError as error:
        message = f"LiteLLM is not installed here: no module named {error.name}"
        hint = f'{install_command("litellm")}, or for a rollout "osmosis-ai[rubric]" in its pyproject.toml'
        raise ModelError(message, category=Category.UNKNOWN.value, hint=hint) from error
    except ImportError as error:
        raise model_error(Category.UNKNOWN, f"LiteLLM cannot be imported: {error}") from error
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    module: ModuleType = litellm
    return module


def _translate(error: Exception, model: str) -> ModelError:
    category = category_of_error(error) or Category.UNKNOWN
    if category is Category.SERVER_ERROR and _is_unreadable(error):
        category = Category.BAD_RESPONSE
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    return ModelError(
        f"{model}: {(str(error).strip() or type(error).__name__)[:500]}",
        category=category.value,
        status=None if category is Category.BAD_RESPONSE else status_of(error),
        retry_after=parse_retry_after(headers.get("retry-after")),
        hint=HINTS.get(category),
    )


def _is_unreadable(error: BaseException) -> bool:
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    names = {type(link).__name__ for link in causes}
    is_invalid = "Invalid response object" in str(error) or "Empty or invalid response" in str(error)
    return "HTTPStatusError" not in names and (is_invalid or "JSONDecodeError" in names)
