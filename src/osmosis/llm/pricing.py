"""What a call costs: LiteLLM's published price table, read as a file so that LiteLLM itself is not imported.

Knows only per-token prices. A model that is not in the table has no price, which is not the same as free.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import orjson

from osmosis.base.light_dataclass import dataclass
from osmosis.records.plan import ModelSpec

_TABLE = "model_prices_and_context_window_backup.json"


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per token."""

    prompt: float
    completion: float
    cached: float | None = None
    """Of prompt tokens read from the provider's cache."""
    written: float | None = None
    """Of prompt tokens written to it."""

    def of(
        self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0
    ) -> float:
        cached = self.prompt if self.cached is None else self.cached
        written = self.prompt if self.written is None else self.written
        fresh = max(0, prompt_tokens - cached_tokens - cache_write_tokens)
        prompt = fresh * self.prompt + cached_tokens * cached + cache_write_tokens * written
        return prompt + completion_tokens * self.completion


def price_of(spec: ModelSpec, *, local: bool = False) -> Price | None:
    """The price given with the model, else the table's; a model on this machine has none in any table."""
    if spec.price is not None:
        prompt, completion = spec.price
        return Price(prompt / 1e6, completion / 1e6)
    if local or spec.kind in ("offline", "replay"):
        return None
    return table_price(spec.name)


@lru_cache(maxsize=64)
def table_price(name: str) -> Price | None:
    """By the full name, then without its provider."""
    found = importlib.util.find_spec("litellm")
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / _TABLE
    try:
        table: dict[str, object] = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    entry = table.get(name) or table.get(name.partition("/")[2])
    if not isinstance(entry, dict) or "input_cost_per_token" not in entry:
        return None
    return Price(
        float(entry["input_cost_per_token"]),
        float(entry.get("output_cost_per_token") or 0.0),
        entry.get("cache_read_input_token_cost"),
        entry.get("cache_creation_input_token_cost"),
    )
