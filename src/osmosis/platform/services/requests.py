"""From the body of a submit to a checked config: every problem found, named by its TOML key.

The sections of the request are the tables of the TOML file under other names, checked by the code that checks the
file. Looks at the config alone, not at what is stored.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from osmosis.errors import ValidationError
from osmosis.records.config import EvalConfig, TrainingConfig
from osmosis.records.config_check import CONFIGS, ConfigIssue, check_config

SECTIONS = {
    "experiment_config": "experiment",
    "evaluation_config": "evaluation",
    "training_config": "training",
    "sampling_config": "sampling",
    "checkpoints_config": "checkpoints",
    "advanced_config": "advanced",
    "env_config": "env",
}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a person asked for."""

    config: EvalConfig | TrainingConfig
    given: dict[str, str]
    """Secret values that came with the request, for this run only."""


def parse(body: dict[str, Any], kind: str) -> RunRequest:
    """Check a submit. ValidationError lists every problem as `{key, message, key_correction?}`."""
    model = CONFIGS[kind]
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
    config, found = check_config(kind, tables)
    issues.extend(_issue(one) for one in found)
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


def _issue(found: ConfigIssue) -> dict[str, str]:
    near = {"key_correction": found.near} if found.near else {}
    fix = {"fix": found.fix} if found.fix else {}
    return {"key": found.key, "message": found.what, **fix, **near}


def _correction(key: str, known: list[str]) -> dict[str, str]:
    near = difflib.get_close_matches(key, known, n=1)
    return {"key_correction": near[0]} if near else {}
