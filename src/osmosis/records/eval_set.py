"""An eval set: which configs run, with which models and parameters. `configs/sets/*.toml`.

Expands to plain runs, each named after the set and what it differs by: so a set is resumed and compared run by run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from pydantic import Field

from osmosis.base.json_types import JsonObject

from .base import Strict


@dataclass(frozen=True)
class SetRun:
    """One run of a set."""

    key: str
    """What it differs by from the others of its set: the same in every execution."""
    config: str
    model: str | None
    """None: the config's own."""
    params: JsonObject


class EvalSet(Strict):
    """The keys of the file. Every config runs with every model and every set of parameters."""

    configs: list[str] = Field(min_length=1, examples=[["multiply", "configs/eval/chat.toml"]])
    """Configs under `configs/eval/`, by path or name."""
    models: list[str] = Field(default_factory=list, examples=[["openai/gpt-5-mini", "qwen@http://127.0.0.1:8000/v1"]])
    """Models, as `--model` takes them, or `NAME@URL`. Default: each config's own."""
    params: list[JsonObject] = Field(default_factory=list, examples=[[{"temperature": 0.0}, {"temperature": 1.0}]])
    """Sampling parameters, over the config's. Default: the config's."""
    n: int | None = Field(default=None, ge=1)
    """Attempts per row. Default: the config's."""
    limit: int | None = Field(default=None, ge=1)
    """Run the first N rows of each dataset. Default: the config's."""
    max_cost: float | None = Field(default=None, gt=0)
    """US dollars that all runs of the set may spend together."""
    prices: dict[str, tuple[float, float]] = Field(default_factory=dict, examples=[{"my-model": [0.5, 1.5]}])
    """US dollars per million prompt and completion tokens, of models that no price table knows."""

    def runs(self) -> Iterator[SetRun]:
        """All of them, in order. The key of each is its own."""
        seen: set[str] = set()
        models: list[str | None] = [*self.models] or [None]
        for config, model, params in itertools.product(self.configs, models, self.params or [{}]):
            parts = [PurePath(config).stem, *([model] if model else []), *(f"{k}={v}" for k, v in params.items())]
            stem = "--".join(re.sub(r"[^A-Za-z0-9._=-]+", "-", part).strip("-").replace("=", "-") for part in parts)[
                :70
            ]
            key = next(k for i in itertools.count(1) if (k := stem if i == 1 else f"{stem}-{i}") not in seen)
            seen.add(key)
            yield SetRun(key, config, model, params)
