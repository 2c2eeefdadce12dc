"""What a worker is told: `worker.toml`, and the flags that win over it, as one record."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError as PydanticError

from osmosis.errors import UsageError, ValidationError
from osmosis.records.worker_config import ExecutorName, WorkerConfig

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same parser under its older name
    import tomli as tomllib


AdvertiseUrl = Annotated[
    str | None,
    typer.Option(help="URL at which rollout servers on other machines reach training jobs; {port} is their port"),
]
GateListen = Annotated[
    str | None,
    typer.Option(help="host:port where training jobs listen for rollout servers elsewhere [default: 127.0.0.1:0]"),
]


@dataclass(frozen=True, slots=True)
class WorkerFlags:
    """None: not given."""

    executor: ExecutorName | None = None
    max_jobs: int | None = None
    labels: list[str] | None = None
    """KEY=VALUE each."""
    ray_address: str | None = None
    advertise_url: str | None = None
    gate_listen: str | None = None
    insecure_http: bool | None = None

    def gate(self) -> dict[str, object]:
        """The keys of `[gate]` that are given."""
        given = {
            "advertise_url": self.advertise_url,
            "listen": self.gate_listen,
            "insecure_http": self.insecure_http,
        }
        return {key: value for key, value in given.items() if value is not None}


def worker_config(file: Path | None, flags: WorkerFlags) -> WorkerConfig:
    """ValidationError with every key of the file that is wrong; UsageError for a flag."""
    if flags.ray_address is not None and flags.executor not in (None, "ray"):
        raise UsageError(
            f"--ray-address and --executor {flags.executor} contradict each other", hint="give one of them"
        )
    data = _read(file) if file is not None else {}
    if flags.executor is not None:
        data["executor"] = flags.executor
    if flags.max_jobs is not None:
        data["max_jobs"] = flags.max_jobs
    if flags.ray_address is not None:
        data["executor"] = "ray"
        given = data.get("ray", {})
        data["ray"] = {**given, "address": flags.ray_address} if isinstance(given, dict) else given
    if given_gate := flags.gate():
        table = data.get("gate", {})
        data["gate"] = {**table, **given_gate} if isinstance(table, dict) else table
    config = _checked(data, str(file or "worker start"))
    config.gate.refuse()
    return config.model_copy(update={"labels": {**config.labels, **dict(_label(one) for one in flags.labels or [])}})


def _read(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(f"--config: {file}: {problem.strerror or problem}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ValidationError(f"{file}: {problem}") from problem


def _checked(data: dict[str, object], where: str) -> WorkerConfig:
    try:
        return WorkerConfig.model_validate(data, strict=True)
    except PydanticError as error:
        found = [_words(one) for one in error.errors(include_url=False)]
        raise ValidationError(f"{where}: {'; '.join(found)}", hint="docs/scaling.md lists the keys") from error


def _words(found: ErrorDetails) -> str:
    key, context = ".".join(map(str, found["loc"])), found.get("ctx", {})
    if "fix" in context:
        return f"{key}: {context['what']} (fix: {context['fix']})"
    return f"{key}: no such key" if found["type"] == "extra_forbidden" else f"{key}: {found['msg']}"


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key.strip() or not sign:
        raise UsageError(f"--label {text!r}: write KEY=VALUE, such as gpu=a100")
    return key.strip(), value.strip()
