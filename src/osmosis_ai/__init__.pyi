from osmosis.classic.registry import (
    get_agent_loop as get_agent_loop,
)
from osmosis.classic.registry import (
    list_agent_loops as list_agent_loops,
)
from osmosis.classic.registry import (
    register_agent_loop as register_agent_loop,
)
from osmosis.records.wire02 import (
    InitResponse as InitResponse,
)
from osmosis.records.wire02 import (
    OpenAIFunctionToolSchema as OpenAIFunctionToolSchema,
)
from osmosis.records.wire02 import (
    RolloutMetrics as RolloutMetrics,
)
from osmosis.records.wire02 import (
    RolloutRequest as RolloutRequest,
)
from osmosis.records.wire02 import (
    RolloutResponse as RolloutResponse,
)
from osmosis.sdk.agent_loop import (
    CompletionsResult as CompletionsResult,
)
from osmosis.sdk.agent_loop import (
    RolloutAgentLoop as RolloutAgentLoop,
)
from osmosis.sdk.agent_loop import (
    RolloutContext as RolloutContext,
)
from osmosis.sdk.agent_loop import (
    RolloutResult as RolloutResult,
)
from osmosis.sdk.backend import (
    LocalBackend as LocalBackend,
)
from osmosis.sdk.context import (
    AgentWorkflowContext as AgentWorkflowContext,
)
from osmosis.sdk.context import (
    GraderContext as GraderContext,
)
from osmosis.sdk.context import (
    SampleSource as SampleSource,
)
from osmosis.sdk.context import (
    get_rollout_context as get_rollout_context,
)
from osmosis.sdk.exceptions import (
    OsmosisRolloutError as OsmosisRolloutError,
)
from osmosis.sdk.exceptions import (
    OsmosisServerError as OsmosisServerError,
)
from osmosis.sdk.exceptions import (
    OsmosisTimeoutError as OsmosisTimeoutError,
)
from osmosis.sdk.exceptions import (
    OsmosisTransportError as OsmosisTransportError,
)
from osmosis.sdk.exceptions import (
    OsmosisValidationError as OsmosisValidationError,
)
from osmosis.sdk.grader import (
    Grader as Grader,
)
from osmosis.sdk.harbor.backend import (
    HarborBackend as HarborBackend,
)
from osmosis.sdk.judge import (
    evaluate_rubric as evaluate_rubric,
)
from osmosis.sdk.judge import (
    evaluate_rubric_async as evaluate_rubric_async,
)
from osmosis.sdk.judge_model import (
    MissingAPIKeyError as MissingAPIKeyError,
)
from osmosis.sdk.judge_model import (
    ModelNotFoundError as ModelNotFoundError,
)
from osmosis.sdk.judge_model import (
    ProviderRequestError as ProviderRequestError,
)
from osmosis.sdk.rewards import (
    osmosis_reward as osmosis_reward,
)
from osmosis.sdk.rubrics import (
    osmosis_rubric as osmosis_rubric,
)
from osmosis.sdk.types import (
    AgentWorkflowConfig as AgentWorkflowConfig,
)
from osmosis.sdk.types import (
    ConcurrencyConfig as ConcurrencyConfig,
)
from osmosis.sdk.types import (
    GraderConfig as GraderConfig,
)
from osmosis.sdk.types import (
    RolloutSample as RolloutSample,
)
from osmosis.sdk.workflow import (
    AgentWorkflow as AgentWorkflow,
)
from osmosis.sdk.workflow import (
    AgentWorkflowOutput as AgentWorkflowOutput,
)
from osmosis.serve.server.app import (
    create_rollout_server as create_rollout_server,
)
from osmosis.serve.server.trainer_client import (
    OsmosisLLMClient as OsmosisLLMClient,
)
from osmosis.serve.server.v02 import (
    create_app as create_app,
)

__version__: str
