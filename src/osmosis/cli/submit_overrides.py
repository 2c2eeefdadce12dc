"""What the flags of a submit change in a config: the model, the name, how much of it runs. The file is not touched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer
from pydantic import ValidationError as PydanticError

from osmosis.base.json_types import JsonObject
from osmosis.base.net import is_http
from osmosis.errors import UsageError
from osmosis.records.config import EvalConfig, TrainingConfig

Model = Annotated[str | None, typer.Option("--model", help="Model to use instead of the config's")]
N = Annotated[int | None, typer.Option("--n", min=1, help="Attempts per row [default: the config's]")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Run the first N rows [default: the config's]")]
Shards = Annotated[
    str | None,
    typer.Option("--shards", help="Number of jobs to split the rows over, or auto [default: the config's, else 1]"),
]
MaxCost = Annotated[
    float | None,
    typer.Option("--max-cost", help="Start no more rollouts after spending this many USD [default: the config's]"),
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens-total", min=1, help="The same for tokens")]
Priority = Annotated[
    int | None,
    typer.Option("--priority", help="Priority in the workspace's queue, highest first [default: 0]"),
]
RunName = Annotated[
    str | None, typer.Option("--name", help="Name of the run [default: the rollout's name and a number]")
]

RunTags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Tag of the run; repeatable")]

_ENDPOINT = ("base_url", "api_key_env")


@dataclass(frozen=True)
class Overrides:
    """None leaves what the config says."""

    model: str | None = None
    n: int | None = None
    limit: int | None = None
    name: str | None = None
    shards: str | None = None
    tags: tuple[str, ...] = ()
    max_cost: float | None = None
    max_tokens_total: int | None = None
    priority: int | None = None
    batch_size: int | None = None
    params: JsonObject = field(default_factory=dict)
    """Added to those of the config."""
    every_row: bool = False
    """Where neither says a limit, all rows run instead of a sample."""

    def beside(self) -> dict[str, object]:
        """What a submit says beside its config."""
        return {
            **({"name": self.name} if self.name is not None else {}),
            **({"tags": list(self.tags)} if self.tags else {}),
        }

    def apply(self, config: EvalConfig | TrainingConfig) -> EvalConfig | TrainingConfig:
        """The config with these values, checked by its own rules. Raises UsageError naming the flag."""
        name, base_url = _model_at(self.model)
        wanted = {
            ("experiment", "model_path", "--model"): name,
            ("evaluation", "n", "--n"): self.n,
            ("evaluation", "limit", "--limit"): self.limit,
            ("evaluation", "max_cost", "--max-cost"): self.max_cost,
            ("evaluation", "max_tokens_total", "--max-tokens-total"): self.max_tokens_total,
            ("evaluation", "batch_size", "--batch-size"): self.batch_size,
            ("advanced", "params", "--param"): self._params(config),
            ("advanced", "priority", "--priority"): self.priority,
            ("advanced", "shards", "--shards"): _shards(self.shards),
        }
        given = {place: value for place, value in wanted.items() if value is not None}
        if not given:
            return config
        tables = config.to_dict()
        for (table, key, _), value in given.items():
            tables.setdefault(table, {})[key] = value
        if name is not None:
            # Another model is elsewhere: the config's endpoint and key are its own model's.
            endpoint = {"base_url": base_url} if base_url else {}
            kept = {key: value for key, value in tables.get("advanced", {}).items() if key not in _ENDPOINT}
            tables["advanced"] = {**kept, **endpoint}
        try:
            return type(config).model_validate(tables)
        except PydanticError as error:
            first = error.errors()[0]
            flag = next((flag for table, key, flag in given if key in first["loc"]), "the flags")
            raise UsageError(f"{flag}: {first['msg']}") from error

    def _params(self, config: EvalConfig | TrainingConfig) -> JsonObject | None:
        if not self.params or not isinstance(config, EvalConfig):
            return None
        return {**config.advanced.params, **self.params}

    def whole(self, config: EvalConfig | TrainingConfig, rows: int | None) -> EvalConfig | TrainingConfig:
        """The config with all rows of its dataset, where that is wanted and nothing says fewer."""
        if not self.every_row or not rows or not isinstance(config, EvalConfig) or config.evaluation.limit:
            return config
        return config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"limit": rows})})


def _shards(text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    if not text.isdigit() or not int(text):
        raise UsageError(f"--shards {text!r}: a number of jobs, or auto")
    return int(text)


def _model_at(text: str | None) -> tuple[str | None, str | None]:
    """`name@http://host/v1` brings its own endpoint."""
    if text is None:
        return None, None
    if not text.strip():
        raise UsageError("--model: the model name is empty", hint="--model openai/gpt-5-mini")
    name, at, url = text.rpartition("@")
    return (name, url) if at and is_http(url) else (text, None)
