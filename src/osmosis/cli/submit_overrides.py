"""What the flags of a submit change in a config: the model, the name, how much of it runs. The file is not touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from pydantic import ValidationError as PydanticError

from osmosis.base.net import is_http
from osmosis.errors import UsageError
from osmosis.records.config import EvalConfig, TrainingConfig

Model = Annotated[str | None, typer.Option("--model", help="Model to use instead of the config's")]
N = Annotated[int | None, typer.Option("--n", min=1, help="Attempts per row [default: the config's]")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Run the first N rows [default: the config's]")]
Shards = Annotated[
    str | None,
    typer.Option("--shards", help="Jobs over which the rows are cut, or auto [default: the config's, else 1]"),
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
