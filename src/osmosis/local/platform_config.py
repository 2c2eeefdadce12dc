"""The config of an evaluation on the platform, from what the platform answers about it."""

from __future__ import annotations

from osmosis.records.config import EvalConfig
from osmosis.records.contract.run_bodies import RunDetail


def config_of(seen: RunDetail) -> EvalConfig:
    """The config that a platform's run was submitted with."""
    found = seen.config or {}
    tables = {name: found[name] for name in EvalConfig.model_fields if name in found}
    experiment = {name: value for name, value in found.items() if name not in tables}
    return EvalConfig.model_validate({"secrets": {}, **tables, "experiment": experiment, "env": seen.env_config or {}})
