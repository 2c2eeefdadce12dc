"""osmosis: from an empty folder to an evaluated and reinforcement-trained LLM agent.

Everything public is importable from here, and typed. A name loads the module it lives in when it is first used, so
that `import osmosis` costs nothing and loads no vendor library.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from osmosis.errors import OsmosisError as OsmosisError
    from osmosis.llm import open_model as open_model
    from osmosis.local.evaluate import evaluate as evaluate
    from osmosis.local.evaluate import evaluate_async as evaluate_async
    from osmosis.local.run import Run as Run
    from osmosis.records.plan import Budget as Budget
    from osmosis.records.plan import EvalPlan as EvalPlan
    from osmosis.records.plan import ModelSpec as ModelSpec
    from osmosis.records.plan import Retry as Retry
    from osmosis.records.plan import RolloutLimits as RolloutLimits
    from osmosis.records.plan import Selection as Selection
    from osmosis.records.plan import Timeouts as Timeouts
    from osmosis.records.report import Report as Report
    from osmosis.records.rollout import Failure as Failure
    from osmosis.records.rollout import Message as Message
    from osmosis.records.rollout import Rollout as Rollout
    from osmosis.records.rollout import Score as Score
    from osmosis.records.sandbox import SandboxChoice as SandboxChoice
    from osmosis.sdk.agent_loop import RolloutAgentLoop as RolloutAgentLoop
    from osmosis.sdk.agent_loop import RolloutContext as RolloutContext
    from osmosis.sdk.agent_loop import RolloutResult as RolloutResult
    from osmosis.sdk.backend import LocalBackend as LocalBackend
    from osmosis.sdk.context import AgentWorkflowContext as AgentWorkflowContext
    from osmosis.sdk.context import GraderContext as GraderContext
    from osmosis.sdk.evaluate_rubric import evaluate_rubric as evaluate_rubric
    from osmosis.sdk.evaluate_rubric import evaluate_rubric_async as evaluate_rubric_async
    from osmosis.sdk.grader import Grader as Grader
    from osmosis.sdk.harbor.backend import HarborBackend as HarborBackend
    from osmosis.sdk.judge_model import MissingAPIKeyError as MissingAPIKeyError
    from osmosis.sdk.judge_model import ModelNotFoundError as ModelNotFoundError
    from osmosis.sdk.judge_model import ProviderRequestError as ProviderRequestError
    from osmosis.sdk.rewards import osmosis_reward as osmosis_reward
    from osmosis.sdk.rollout_sandbox import Sandbox as Sandbox
    from osmosis.sdk.rollout_sandbox import SandboxResult as SandboxResult
    from osmosis.sdk.rollout_sandbox import get_sandbox as get_sandbox
    from osmosis.sdk.rubrics import osmosis_rubric as osmosis_rubric
    from osmosis.sdk.sandbox_opening import open_sandbox as open_sandbox
    from osmosis.sdk.score_functions import score_function as score_function
    from osmosis.sdk.score_functions import vote as vote
    from osmosis.sdk.tool_loop import ToolLoop as ToolLoop
    from osmosis.sdk.tools import FunctionTool as FunctionTool
    from osmosis.sdk.tools import run_tool_calls as run_tool_calls
    from osmosis.sdk.tools import tool as tool
    from osmosis.sdk.tools import tool_schemas as tool_schemas
    from osmosis.sdk.types import AgentWorkflowConfig as AgentWorkflowConfig
    from osmosis.sdk.types import ConcurrencyConfig as ConcurrencyConfig
    from osmosis.sdk.types import GraderConfig as GraderConfig
    from osmosis.sdk.types import RolloutSample as RolloutSample
    from osmosis.sdk.workflow import AgentWorkflow as AgentWorkflow
    from osmosis.sdk.workflow import AgentWorkflowOutput as AgentWorkflowOutput
    from osmosis.serve.server.app import create_rollout_server as create_rollout_server
    from osmosis.serve.server.v02 import create_app as create_app
else:
    # What a type checker reads above, for the interpreter; a test holds the two together.
    _PUBLIC = {
        "osmosis.errors": "OsmosisError",
        "osmosis.llm": "open_model",
        "osmosis.local.evaluate": "evaluate evaluate_async",
        "osmosis.local.run": "Run",
        "osmosis.records.plan": "Budget EvalPlan ModelSpec Retry RolloutLimits Selection Timeouts",
        "osmosis.records.report": "Report",
        "osmosis.records.rollout": "Failure Message Rollout Score",
        "osmosis.records.sandbox": "SandboxChoice",
        "osmosis.sdk.agent_loop": "RolloutAgentLoop RolloutContext RolloutResult",
        "osmosis.sdk.backend": "LocalBackend",
        "osmosis.sdk.context": "AgentWorkflowContext GraderContext",
        "osmosis.sdk.grader": "Grader",
        "osmosis.sdk.harbor.backend": "HarborBackend",
        "osmosis.sdk.evaluate_rubric": "evaluate_rubric evaluate_rubric_async",
        "osmosis.sdk.judge_model": "MissingAPIKeyError ModelNotFoundError ProviderRequestError",
        "osmosis.sdk.rewards": "osmosis_reward",
        "osmosis.sdk.rubrics": "osmosis_rubric",
        "osmosis.sdk.rollout_sandbox": "Sandbox SandboxResult get_sandbox",
        "osmosis.sdk.sandbox_opening": "open_sandbox",
        "osmosis.sdk.score_functions": "score_function vote",
        "osmosis.sdk.tool_loop": "ToolLoop",
        "osmosis.sdk.tools": "FunctionTool run_tool_calls tool tool_schemas",
        "osmosis.sdk.types": "AgentWorkflowConfig ConcurrencyConfig GraderConfig RolloutSample",
        "osmosis.sdk.workflow": "AgentWorkflow AgentWorkflowOutput",
        "osmosis.serve.server.app": "create_rollout_server",
        "osmosis.serve.server.v02": "create_app",
    }
    _HOMES = {name: home for home, names in _PUBLIC.items() for name in names.split()}

    __all__ = sorted([*_HOMES, "__version__"])

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'osmosis' has no attribute {name!r}")
        apps = sys.modules.get("osmosis.serve.deferred") if home.startswith("osmosis.serve.server.") else None
        if apps is not None and apps.deferring():
            return apps.deferred_maker(home, name)
        try:
            value = globals()[name] = getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] == "osmosis":
                raise
            message = f"osmosis.{name} needs {error.name}, which is not installed here: pip install 'osmosis-ai[full]'"
            raise ModuleNotFoundError(message, name=error.name) from error
        return value

    def __dir__() -> list[str]:
        return list(__all__)
