"""osmosis: from an empty folder to an evaluated and reinforcement-trained LLM agent.

Everything public is importable from here. Names load the module they live in when first used, so that
`import osmosis` costs nothing and loads no vendor library.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ._version import __version__ as __version__

_HOMES: dict[str, str] = {
    # rewards and rubrics
    "osmosis_reward": "osmosis.sdk.rewards",
    "osmosis_rubric": "osmosis.sdk.rubrics",
    "evaluate_rubric": "osmosis.sdk.judge",
    "evaluate_rubric_async": "osmosis.sdk.judge",
    "MissingAPIKeyError": "osmosis.sdk.judge",
    "ProviderRequestError": "osmosis.sdk.judge",
    "ModelNotFoundError": "osmosis.sdk.judge",
    # workflow and grader
    "AgentWorkflow": "osmosis.sdk.workflow",
    "AgentWorkflowOutput": "osmosis.sdk.workflow",
    "AgentWorkflowContext": "osmosis.sdk.context",
    "Grader": "osmosis.sdk.grader",
    "GraderContext": "osmosis.sdk.context",
    "AgentWorkflowConfig": "osmosis.sdk.types",
    "GraderConfig": "osmosis.sdk.types",
    "ConcurrencyConfig": "osmosis.sdk.types",
    "RolloutSample": "osmosis.sdk.types",
    "LocalBackend": "osmosis.sdk.backend",
    "HarborBackend": "osmosis.sdk.harbor.backend",
    # agent loops
    "RolloutAgentLoop": "osmosis.sdk.agent_loop",
    "RolloutContext": "osmosis.sdk.agent_loop",
    "RolloutResult": "osmosis.sdk.agent_loop",
    "tool": "osmosis.sdk.tools",
    # servers
    "create_rollout_server": "osmosis.serve.server.app",
    "create_app": "osmosis.serve.server.v02",
    # the engine
    "EvalPlan": "osmosis.records.plan",
    "ModelSpec": "osmosis.records.plan",
    "Rollout": "osmosis.records.rollout",
    "Report": "osmosis.records.report",
    "evaluate": "osmosis.engine.evaluate",
    "open_model": "osmosis.llm",
    "OsmosisError": "osmosis.errors",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'osmosis' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
