"""Asking language models: one protocol, one file per kind of model.

`open_model` turns a plan's `ModelSpec` into a `Model`; `probe` finds out with one tiny call whether it answers
at all. Vendor libraries stay behind this package, each in the one file that needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from osmosis.errors import ModelError
from osmosis.records.plan import ModelSpec, Retry
from osmosis.records.rollout import Category

from .cache import CachedModel
from .litellm_model import LiteLLMModel
from .model import ChatRequest, Completion, Model, Piece, Signals
from .offline import OfflineModel
from .openai_compatible import OpenAICompatibleModel
from .replay import ReplayModel

__all__ = ["ChatRequest", "Completion", "Model", "Piece", "Signals", "open_model", "probe"]


def open_model(
    spec: ModelSpec,
    *,
    api_key: str | None = None,
    retry: Retry | None = None,
    timeout_s: float | None = None,
    cache_dir: Path | None = None,
    signals: Signals | None = None,
    provider_variables: Mapping[str, str] | None = None,
) -> Model:
    """The model of this spec. `timeout_s` limits one call; `cache_dir` keeps answers; nothing is asked yet.

    `provider_variables` stands for this process's environment where a provider's own names (`ANTHROPIC_API_KEY`) are
    looked up, for a caller that must not have them there.
    """
    given = provider_variables or {}
    model = _open(spec, api_key=api_key, retry=retry, timeout_s=timeout_s, signals=signals, given=given)
    if cache_dir is not None:
        return CachedModel(model, cache_dir)
    return model


def _open(
    spec: ModelSpec,
    *,
    api_key: str | None,
    retry: Retry | None,
    timeout_s: float | None,
    signals: Signals | None,
    given: Mapping[str, str],
) -> Model:
    if spec.kind == "offline":
        return OfflineModel(spec)
    if spec.kind == "replay":
        return ReplayModel(spec)
    if spec.kind == "openai":
        return OpenAICompatibleModel(spec, api_key=api_key, retry=retry, timeout_s=timeout_s, signals=signals)

    return LiteLLMModel(
        spec, api_key=api_key, retry=retry, timeout_s=timeout_s, signals=signals, provider_variables=given
    )


PROBE = ChatRequest(messages=[{"role": "user", "content": "Say OK."}])
_USABLE = (Category.RATE_LIMIT.value, Category.CONTEXT_LENGTH.value)
_MAY_PASS = (Category.SERVER_ERROR.value, Category.TIMEOUT.value, Category.BAD_RESPONSE.value)
_LENGTH_PARAMETERS = ("max_tokens", "max_completion_tokens")


async def probe(model: Model) -> Completion | None:
    """One tiny call, with the plan's own parameters; raises `ModelError` when the model cannot be used.

    The answer; None when there is none although the model can be used. A wrong key, name or parameter fails at once.
    A recording is not probed: it answers only what it holds.
    """
    if model.spec.kind == "replay":
        return None
    request = replace(PROBE)
    for name in _LENGTH_PARAMETERS:
        if name in model.spec.params:
            request.params = {name: min(16, int(model.spec.params[name]))}
    inner = getattr(model, "inner", model)
    try:
        answer: Completion = await getattr(inner, "once", inner.complete)(request)
        return answer
    except ModelError as error:
        if error.category in _USABLE:
            return None  # the model is there and knows us; the run itself waits for rate limits
        if error.category not in _MAY_PASS:
            raise
        answer = await inner.complete(request)
        return answer
