"""From the body of a submit to a checked config: every problem found, named by its TOML key.

The rules are those of the TOML file, on the same records. Looks at the config alone, not at what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pydantic

from osmosis.errors import ValidationError
from osmosis.records.config import CONFIGS, EvalConfig, TrainingConfig
from osmosis.records.config_check import issues_of


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a person asked for."""

    config: EvalConfig | TrainingConfig
    given: dict[str, str]
    """Secret values that came with the request, for this run only."""


def parse(body: dict[str, Any], kind: str) -> RunRequest:
    """Check a submit. ValidationError lists every problem as `{key, message, fix, code, key_correction?}`."""
    try:
        return RunRequest(*CONFIGS[kind].from_request(body))
    except pydantic.ValidationError as error:
        issues = issues_of(CONFIGS[kind], error)
    said = "; ".join(f"{issue.key}: {issue.what}" for issue in issues[:5])
    raise ValidationError(
        f"invalid {kind} config: {said}",
        hint="correct the config and submit it again",
        issues=[issue.to_dict() for issue in issues],
    )
