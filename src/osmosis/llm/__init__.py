from dataclasses import replace
from pathlib import Path

from typing_extensions import Unpack

from osmosis.errors import ModelError, ValidationError
from osmosis.llm.cache import CachedModel, ReplayModel
from osmosis.llm.dialect_model import DialectModel
from osmosis.llm.litellm_model import LiteLLMModel
from osmosis.llm.model import ChatRequest, Completion, Model, ModelOptions, Piece, Signals
from osmosis.llm.offline import OfflineModel, SmolLM2
from osmosis.llm.openai_compatible import OpenAICompatibleModel
from osmosis.records.run.plan import NO_MODEL, PLATFORM_MODEL, SMOLLM2, ModelSpec
from osmosis.records.run.rollout import Category

__all__ = ["ChatRequest", "Completion", "Model", "Piece", "Signals", "open_model", "probe"]


def open_model(spec: ModelSpec, *, cache_dir: Path | None = None, **options: Unpack[ModelOptions]) -> Model:
    model: Model
    if spec.kind == "trained":
        name = spec.name.removeprefix(PLATFORM_MODEL)
        hint = f"osmosis eval submit CONFIG; or here: osmosis model serve {name}, then --base-url and --api-key-env"
        raise ValidationError(f"{spec.name} is a model of the platform, which only the platform asks", hint=hint)
    if spec.name == SMOLLM2:
        model = SmolLM2(spec, **options)
    elif spec.kind == "offline":
        model = OfflineModel(spec)
    elif spec.kind == "replay":
        model = ReplayModel(spec)
    else:
        direct = {"openai": OpenAICompatibleModel, "messages": DialectModel, "responses": DialectModel}
        model = direct.get(spec.kind, LiteLLMModel)(spec, **options)
    return model if cache_dir is None else CachedModel(model, cache_dir)


PROBE = ChatRequest(messages=[{"role": "user", "content": "Say OK."}])
_MAY_PASS = (Category.SERVER_ERROR.value, Category.TIMEOUT.value, Category.BAD_RESPONSE.value)


async def probe(model: Model) -> Completion | None:
    """Make one tiny call with the plan's parameters; raise `ModelError` when the model cannot be used."""
    if model.spec.kind == "replay" or model.spec.name == NO_MODEL:
        return None
    request = replace(PROBE)
    for name in ("max_tokens", "max_completion_tokens"):
        if name in model.spec.params:
            request.params = {name: min(16, int(model.spec.params[name]))}
    inner = getattr(model, "inner", model)
    try:
        answer: Completion = await getattr(inner, "once", inner.complete)(request)
        return answer
    except ModelError as error:
        if error.category in (Category.RATE_LIMIT.value, Category.CONTEXT_LENGTH.value):
            return None  # the model is there and knows us; the run itself waits for rate limits
        if error.category == Category.MODEL_NOT_FOUND.value and isinstance(inner, OpenAICompatibleModel):
            error.hint = await inner.suggest_name() or error.hint
        if error.category not in _MAY_PASS:
            raise
        answer = await inner.complete(request)
        return answer
