import logging
import os
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypedDict

from osmosis.base.jsonable import JsonObject, describe
from osmosis.errors import OsmosisError
from osmosis.llm.providers import DEFAULT_API_KEY_ENV, key_variable
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.rollout import Usage

logger = logging.getLogger(__name__)

DEFAULT_REQUEST_TIMEOUT_SECONDS = 30.0

LEFT_TO_LITELLM = "litellm"

_KEYLESS = frozenset(
    {LEFT_TO_LITELLM, "offline", "ollama", "ollama_chat", "lm_studio", "llamafile", "vllm", "hosted_vllm"}
)
_PLAIN_ENDPOINTS = frozenset({"openai", "hosted_vllm", "vllm", "openai_like", "custom_openai", "lm_studio", "local"})
_NOT_A_KEY = frozenset({"bedrock", "vertex_ai"})
_TIMEOUTS = {"xai": 45.0, "gemini": 45.0, "google": 45.0, "cerebras": 60.0, "openrouter": 60.0}
_LITELLM_NAMES = {"google": "gemini"}


class ModelInfo(TypedDict, total=False):
    provider: str  # the provider's name in LiteLLM, or `offline` for the stand-in
    model: str
    api_key: str
    api_key_env: str
    api_base: str  # an OpenAI-compatible endpoint, up to and including `/v1`; it gets the model name unchanged
    score_min: float
    score_max: float
    system_prompt: str
    original_input: str
    price: tuple[float, float]  # US dollars per million prompt and completion tokens, where no table has them
    timeout: float  # seconds for one judgement, retries included; None bounds each attempt by the provider's usual time
    reasoning_effort: str


class MissingAPIKeyError(OsmosisError, RuntimeError):
    """No key for the judge; the text names the variable to set."""

    code = "VALIDATION"


class ProviderRequestError(OsmosisError, RuntimeError):
    """The judge did not answer, or gave no usable verdict."""

    code = "MODEL_ERROR"

    def __init__(self, provider: str, model: str, detail: str) -> None:
        self.provider = provider
        self.model = model
        self.detail = detail.strip() or "no details were given"
        super().__init__(f"{provider}/{model}: {self.detail}", provider=provider, model=model)


class ModelNotFoundError(ProviderRequestError):
    """The provider does not know this model."""


@dataclass(frozen=True)
class JudgeModel:
    provider: str
    model: str
    spec: ModelSpec
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = DEFAULT_REQUEST_TIMEOUT_SECONDS
    total_s: float | None = None


def resolve_judge(
    model_info: Mapping[str, object], *, timeout: float | None = None, environ: Mapping[str, str] | None = None
) -> JudgeModel:
    if not isinstance(model_info, Mapping):
        raise TypeError(f"model_info must be a dict with provider and model, got {describe(model_info)}")
    provider = _text(model_info, "provider").lower()
    model = _text(model_info, "model")
    _tell_unknown(", ".join(sorted(set(map(str, model_info)) - set(ModelInfo.__annotations__))))
    base = model_info.get("api_base")
    if base is None and provider == "openai":
        # Whoever serves there may know chat completions only, and LiteLLM asks gpt-5 by responses.
        variables = os.environ if environ is None else environ
        base = variables.get("OPENAI_BASE_URL") or variables.get("OPENAI_API_BASE") or None
    if base is not None and (not isinstance(base, str) or not base.strip()):
        raise TypeError(f"model_info['api_base'] must be a non-empty string, got {describe(base)}")
    key = resolve_api_key(model_info, provider, environ=environ)
    spec = _spec(provider, model, base, model_info.get("reasoning_effort"))
    if model_info.get("price") is not None:
        spec = spec.model_copy(update={"price": model_info["price"]})
    if provider == LEFT_TO_LITELLM:
        named_provider, model = provider_of(model)
        provider = named_provider or provider
    limit_s = timeout or model_info.get("timeout")
    value = limit_s or default_timeout(provider, model)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, got {describe(value)}")
    if not 0 < value < float("inf"):
        raise ValueError(f"timeout must be a positive number of seconds, got {describe(value)}")
    seconds = float(value)
    return JudgeModel(
        provider=provider,
        model=model,
        spec=spec,
        api_key=None if provider in _NOT_A_KEY and not model_info.get("api_key") else key,
        timeout_s=seconds,
        total_s=seconds if limit_s else None,
    )


def info_of(model: str, base_url: str | None = None) -> dict[str, str]:
    """Return provider and model of a judge's one name: `provider/model` or a known family; others are LiteLLM's."""
    name = _text({"model": model}, "model")
    if base_url:
        return {"provider": "openai", "model": name, "api_base": base_url}
    provider, rest = provider_of(name)
    if provider in DEFAULT_API_KEY_ENV or provider in _KEYLESS:
        return {"provider": provider, "model": rest}
    return {"provider": LEFT_TO_LITELLM, "model": name}


@lru_cache(maxsize=256)
def _tell_unknown(keys: str) -> None:
    # Cached: a reward that is called for every rollout would otherwise say the same every time.
    if keys:
        logger.warning("model_info: unknown keys are ignored: %s", keys)


def resolve_api_key(
    model_info: Mapping[str, object], provider: str, *, environ: Mapping[str, str] | None = None
) -> str | None:
    # Rewards call this wherever they run; the documented source of keys is the process's environment.
    variables = os.environ if environ is None else environ
    own_key = model_info.get("api_key")
    if isinstance(own_key, str) and own_key.strip():
        return own_key.strip()
    named = model_info.get("api_key_env")
    if named is not None and (not isinstance(named, str) or not named.strip()):
        raise TypeError(f"model_info['api_key_env'] must be the name of an environment variable, got {describe(named)}")
    variable = named.strip() if named else key_variable(provider)
    value = variables.get(variable, "").strip()
    if value:
        return value
    if not named and (provider in _KEYLESS or model_info.get("api_base")):
        return None
    raise MissingAPIKeyError(
        f"Environment variable '{variable}' is not set. The judge {provider!r} needs a key: export {variable}=\"...\"",
        hint=f'export {variable}="..."; or name another variable with api_key_env, or set api_key or api_base',
        variable=variable,
    )


def ensure_api_key_available(model_info: Mapping[str, object]) -> None:
    resolve_api_key(model_info, _text(model_info, "provider").lower())


def default_timeout(provider: str, model: str) -> float:
    if provider == "xai" and model.lower().startswith("grok-4"):
        return 60.0
    if provider == "openai" and model.lower().startswith("gpt-5"):
        return 45.0
    return _TIMEOUTS.get(provider, DEFAULT_REQUEST_TIMEOUT_SECONDS)


def provider_of(model: str) -> tuple[str, str]:
    prefix, slash, rest = model.partition("/")
    if slash and prefix and rest:
        return prefix.lower(), rest
    lowered = model.lower()
    families = {"gpt-": "openai", "o1": "openai", "o3": "openai", "o4": "openai"}
    families |= {"claude": "anthropic", "gemini": "gemini", "grok": "xai"}
    return next((provider for start, provider in families.items() if lowered.startswith(start)), ""), model


def _spec(provider: str, model: str, base: str | None, effort: object) -> ModelSpec:
    params: JsonObject = {}
    if not model.lower().startswith("gpt-5"):
        params["temperature"] = 0
    if effort:
        params["reasoning_effort"] = effort
    if provider == "offline":
        name = model if model.startswith("offline/") else f"offline/{model}"
        return ModelSpec(name=name, kind="offline", params=params)
    if base and provider in _PLAIN_ENDPOINTS:
        return ModelSpec(name=model, kind="openai", base_url=base.strip().rstrip("/"), params=params)
    if effort:
        params["drop_params"] = True
    if provider == LEFT_TO_LITELLM:
        return ModelSpec(name=model, kind="litellm", base_url=base.strip() if base else None, params=params)
    route = f"{_LITELLM_NAMES.get(provider, provider)}/{model}" if provider else model
    if provider == "openai" and model.lower().startswith("gpt-5"):
        route = f"openai/responses/{model}"
    return ModelSpec(name=route, kind="litellm", base_url=base.strip() if base else None, params=params)


def _text(info: Mapping[str, object], key: str) -> str:
    value = info.get(key)
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"model_info[{key!r}] must be a non-empty string, got {describe(value)}")
    return value.strip()


@dataclass(slots=True)
class JudgeUsage:
    usage: Usage = field(default_factory=Usage)
    calls: int = 0


judge_usage: ContextVar[JudgeUsage | None] = ContextVar("osmosis_judge_usage", default=None)


def count_usage(usage: Usage) -> None:
    collected = judge_usage.get()
    if collected is not None:
        collected.usage = collected.usage + usage
        collected.calls += 1
