"""The names existing projects know, from generations 0.2 and 0.3. Everything lives in `osmosis`; nothing is
implemented here, and importing this package loads nothing.
"""

from osmosis._version import __version__ as __version__
from osmosis_ai._lazy import lazily

_HOMES = {
    "AgentWorkflow": "osmosis.sdk.workflow:AgentWorkflow",
    "AgentWorkflowConfig": "osmosis.sdk.types:AgentWorkflowConfig",
    "AgentWorkflowContext": "osmosis.sdk.context:AgentWorkflowContext",
    "AgentWorkflowOutput": "osmosis.sdk.workflow:AgentWorkflowOutput",
    "CompletionsResult": "osmosis.sdk.agent_loop:CompletionsResult",
    "ConcurrencyConfig": "osmosis.sdk.types:ConcurrencyConfig",
    "Grader": "osmosis.sdk.grader:Grader",
    "GraderConfig": "osmosis.sdk.types:GraderConfig",
    "GraderContext": "osmosis.sdk.context:GraderContext",
    "HarborBackend": "osmosis.sdk.harbor.backend:HarborBackend",
    "InitResponse": "osmosis.records.wire02:InitResponse",
    "LocalBackend": "osmosis.sdk.backend:LocalBackend",
    "MissingAPIKeyError": "osmosis.sdk.judge_model:MissingAPIKeyError",
    "ModelNotFoundError": "osmosis.sdk.judge_model:ModelNotFoundError",
    "OpenAIFunctionToolSchema": "osmosis.records.wire02:OpenAIFunctionToolSchema",
    "OsmosisLLMClient": "osmosis.serve.server.trainer_client:OsmosisLLMClient",
    "OsmosisRolloutError": "osmosis.sdk.exceptions:OsmosisRolloutError",
    "OsmosisServerError": "osmosis.sdk.exceptions:OsmosisServerError",
    "OsmosisTimeoutError": "osmosis.sdk.exceptions:OsmosisTimeoutError",
    "OsmosisTransportError": "osmosis.sdk.exceptions:OsmosisTransportError",
    "OsmosisValidationError": "osmosis.sdk.exceptions:OsmosisValidationError",
    "ProviderRequestError": "osmosis.sdk.judge_model:ProviderRequestError",
    "RolloutAgentLoop": "osmosis.sdk.agent_loop:RolloutAgentLoop",
    "RolloutContext": "osmosis.sdk.agent_loop:RolloutContext",
    "RolloutMetrics": "osmosis.records.wire02:RolloutMetrics",
    "RolloutRequest": "osmosis.records.wire02:RolloutRequest",
    "RolloutResponse": "osmosis.records.wire02:RolloutResponse",
    "RolloutResult": "osmosis.sdk.agent_loop:RolloutResult",
    "RolloutSample": "osmosis.sdk.types:RolloutSample",
    "SampleSource": "osmosis.sdk.context:SampleSource",
    "create_app": "osmosis.serve.server.v02:create_app",
    "create_rollout_server": "osmosis.serve.server.app:create_rollout_server",
    "evaluate_rubric": "osmosis.sdk.judge:evaluate_rubric",
    "evaluate_rubric_async": "osmosis.sdk.judge:evaluate_rubric_async",
    "get_agent_loop": "osmosis.classic.registry:get_agent_loop",
    "get_rollout_context": "osmosis.sdk.context:get_rollout_context",
    "list_agent_loops": "osmosis.classic.registry:list_agent_loops",
    "osmosis_reward": "osmosis.sdk.rewards:osmosis_reward",
    "osmosis_rubric": "osmosis.sdk.rubrics:osmosis_rubric",
    "register_agent_loop": "osmosis.classic.registry:register_agent_loop",
}

__all__ = ["__version__", *_HOMES]
__getattr__, __dir__ = lazily(__name__, _HOMES)
