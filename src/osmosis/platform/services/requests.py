"""From the body of a submit to a checked config: every problem found, named by its TOML key.

The sections of the request are the tables of the TOML file under other names. Looks at the config alone, not at
what is stored.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic import ValidationError as Invalid

from osmosis.errors import ValidationError
from osmosis.records import config as configs
from osmosis.records.config import EvalConfig, TrainingConfig

SECTIONS = {
    "experiment_config": "experiment",
    "evaluation_config": "evaluation",
    "training_config": "training",
    "sampling_config": "sampling",
    "checkpoints_config": "checkpoints",
    "advanced_config": "advanced",
    "env_config": "env",
}
_MODELS: dict[str, type[BaseModel]] = {
    "experiment": configs.Experiment,
    "evaluation": configs.Evaluation,
    "training": configs.Training,
    "sampling": configs.Sampling,
    "checkpoints": configs.Checkpoints,
}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a person asked for."""

    config: EvalConfig | TrainingConfig
    given: dict[str, str]
    """Secret values that came with the request, for this run only."""


def parse(body: dict[str, Any], kind: str) -> RunRequest:
    """Check a submit. ValidationError lists every problem as `{key, message, key_correction?}`."""
    model = EvalConfig if kind == "eval" else TrainingConfig
    known = {wire: table for wire, table in SECTIONS.items() if table in model.model_fields}
    issues = [
        {"key": key, "message": "unknown section", **_correction(key, [*known, "secrets"])}
        for key in body
        if key not in known and key != "secrets"
    ]
    tables = {table: body[wire] for wire, table in known.items() if body.get(wire) is not None}
    tables.setdefault("experiment", {})
    secrets, given = _secrets(body.get("secrets"), issues)
    tables["secrets"] = secrets
    config = None
    try:
        config = model.model_validate(tables)
    except Invalid as error:
        issues.extend(_issue(found, model) for found in error.errors())
    if config is not None:
        issues.extend(_cross_checks(config, given))
    if issues or config is None:
        raise ValidationError(
            f"invalid {kind} config: {'; '.join(_line(issue) for issue in issues[:5])}",
            hint="correct the config and submit it again",
            issues=issues,
        )
    return RunRequest(config, given)


def _line(issue: dict[str, str]) -> str:
    return f"{issue['key']}: {issue['message']}" if issue["key"] else issue["message"]


def _secrets(body: Any, issues: list[dict[str, str]]) -> tuple[dict[str, Any], dict[str, str]]:
    """The `[secrets]` table and the values given beside it."""
    if body is None:
        return {"required": []}, {}
    if not isinstance(body, dict):
        issues.append({"key": "secrets", "message": "must be a table"})
        return {"required": []}, {}
    given = body.get("provided") or {}
    required = body.get("required") or []
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        issues.append({"key": "secrets.provided", "message": "must map names to text"})
        given = {}
    if isinstance(required, list):
        required = [*required, *(name for name in given if name not in required)]
    return {"required": required, **{k: v for k, v in body.items() if k not in ("required", "provided")}}, given


def _cross_checks(config: EvalConfig | TrainingConfig, given: dict[str, str]) -> list[dict[str, str]]:
    issues = []
    advanced = config.advanced
    if advanced.base_url is not None and not advanced.base_url.startswith(("http://", "https://")):
        issues.append({"key": "advanced.base_url", "message": "must start with http:// or https://"})
    if advanced.api_key_env is not None and advanced.api_key_env not in config.secret_names():
        message = f"{advanced.api_key_env} must be listed in [secrets].required"
        issues.append({"key": "advanced.api_key_env", "message": message})
    return issues


def _issue(found: Any, model: type[BaseModel]) -> dict[str, str]:
    path = [str(part) for part in found["loc"]]
    key, message = ".".join(path), str(found["msg"]).removeprefix("Value error, ")
    if found["type"] == "missing":
        return {"key": key, "message": "is required"}
    if found["type"] == "extra_forbidden":
        table = _MODELS.get(path[0]) if len(path) > 1 else model
        return {
            "key": key,
            "message": "unknown key",
            **_correction(path[-1], list(table.model_fields) if table else []),
        }
    return {"key": key, "message": message[:1].lower() + message[1:]}


def _correction(key: str, known: list[str]) -> dict[str, str]:
    near = difflib.get_close_matches(key, known, n=1)
    return {"key_correction": near[0]} if near else {}
