"""Prices of LiteLLM's published table, read as a file so that LiteLLM itself is not imported."""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.plan import ModelSpec


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per token."""

    prompt: float
    completion: float
    cached: float | None = None
    written: float | None = None

    def of(
        self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0
    ) -> float:
        cached = self.prompt if self.cached is None else self.cached
        written = self.prompt if self.written is None else self.written
        fresh = max(0, prompt_tokens - cached_tokens - cache_write_tokens)
        prompt = fresh * self.prompt + cached_tokens * cached + cache_write_tokens * written
        return prompt + completion_tokens * self.completion


def price_of(spec: ModelSpec, *, local: bool = False) -> Price | None:
    if spec.price is not None:
        prompt, completion = spec.price
        return Price(prompt / 1e6, completion / 1e6)
    if local or spec.kind in ("offline", "replay"):
        return None
    return table_price(spec.name)


def table_price(name: str) -> Price | None:
    entry = find_entry(name)
    if "input_cost_per_token" not in entry:
        return None
    return Price(
        float(entry["input_cost_per_token"]),
        float(entry.get("output_cost_per_token") or 0.0),
        entry.get("cache_read_input_token_cost"),
        entry.get("cache_creation_input_token_cost"),
    )


@lru_cache(maxsize=64)
def find_entry(name: str) -> JsonObject:
    spec = importlib.util.find_spec("litellm")
    if spec is None or not spec.submodule_search_locations:
        return {}
    path = Path(spec.submodule_search_locations[0]) / "model_prices_and_context_window_backup.json"
    try:
        table: JsonObject = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    name = name.replace("openai/responses/", "openai/", 1)
    entry = table.get(name) or table.get(name.partition("/")[2])
    return entry if isinstance(entry, dict) else {}


KEYS: Mapping[str, tuple[str, ...]] = {
    "cohere_chat": ("COHERE_API_KEY", "CO_API_KEY"),
    "fireworks_ai": ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY", "FIREWORKSAI_API_KEY"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "huggingface": ("HUGGINGFACE_API_KEY", "HF_TOKEN"),
    "nvidia_nim": ("NVIDIA_NIM_API_KEY", "NVIDIA_API_KEY"),
    "text-completion-openai": ("OPENAI_API_KEY",),
    "together_ai": ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY", "TOGETHER_AI_API_KEY"),
}
ACCESS: Mapping[str, Mapping[str, str]] = {
    "azure": {"AZURE_API_BASE": "api_base", "AZURE_API_VERSION": "api_version", "AZURE_AD_TOKEN": "azure_ad_token"},
    "bedrock": {
        "AWS_ACCESS_KEY_ID": "aws_access_key_id",
        "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
        "AWS_SESSION_TOKEN": "aws_session_token",
        "AWS_REGION_NAME": "aws_region_name",
        "AWS_REGION": "aws_region_name",
    },
    "openai": {"OPENAI_ORGANIZATION": "organization"},
    "vertex_ai": {
        "VERTEXAI_PROJECT": "vertex_project",
        "VERTEXAI_LOCATION": "vertex_location",
        "VERTEXAI_CREDENTIALS": "vertex_credentials",
    },
}


_USUAL = ("openai", "anthropic", "xai", "gemini", "openrouter", "cerebras", "azure")
DEFAULT_API_KEY_ENV: dict[str, str] = {name: f"{name.upper()}_API_KEY" for name in _USUAL} | {
    "google": "GEMINI_API_KEY",
    "bedrock": "AWS_ACCESS_KEY_ID",
    "vertex_ai": "GOOGLE_APPLICATION_CREDENTIALS",
}


def key_variable(provider: str) -> str:
    return DEFAULT_API_KEY_ENV.get(provider) or f"{re.sub(r'[^A-Z0-9]', '_', provider.upper())}_API_KEY"


def arguments_for(provider: str, variables: Mapping[str, str]) -> dict[str, str]:
    names = KEYS.get(provider, (f"{provider.upper().replace('-', '_')}_API_KEY",))
    key = next((variables[name] for name in names if variables.get(name)), None)
    arguments = {"api_key": key} if key else {}
    for name, argument in ACCESS.get(provider.removesuffix("_text"), {}).items():
        if value := variables.get(name):
            arguments.setdefault(argument, value)
    return arguments
