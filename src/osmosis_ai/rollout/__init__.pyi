from osmosis.classic.registry import (
    AgentLoopRegistry as AgentLoopRegistry,
)
from osmosis.classic.registry import (
    get_agent_loop as get_agent_loop,
)
from osmosis.classic.registry import (
    list_agent_loops as list_agent_loops,
)
from osmosis.classic.registry import (
    register_agent_loop as register_agent_loop,
)
from osmosis.classic.registry import (
    unregister_agent_loop as unregister_agent_loop,
)
from osmosis.records.wire02 import (
    DEFAULT_MAX_METADATA_SIZE_BYTES as DEFAULT_MAX_METADATA_SIZE_BYTES,
)
from osmosis.records.wire02 import (
    CompletionsChoice as CompletionsChoice,
)
from osmosis.records.wire02 import (
    CompletionsRequest as CompletionsRequest,
)
from osmosis.records.wire02 import (
    CompletionsResponse as CompletionsResponse,
)
from osmosis.records.wire02 import (
    CompletionUsage as CompletionUsage,
)
from osmosis.records.wire02 import (
    InitResponse as InitResponse,
)
from osmosis.records.wire02 import (
    MessageDict as MessageDict,
)
from osmosis.records.wire02 import (
    OpenAIFunctionCallSchema as OpenAIFunctionCallSchema,
)
from osmosis.records.wire02 import (
    OpenAIFunctionParametersSchema as OpenAIFunctionParametersSchema,
)
from osmosis.records.wire02 import (
    OpenAIFunctionParsedSchema as OpenAIFunctionParsedSchema,
)
from osmosis.records.wire02 import (
    OpenAIFunctionPropertySchema as OpenAIFunctionPropertySchema,
)
from osmosis.records.wire02 import (
    OpenAIFunctionSchema as OpenAIFunctionSchema,
)
from osmosis.records.wire02 import (
    OpenAIFunctionToolCall as OpenAIFunctionToolCall,
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
from osmosis.records.wire02 import (
    SamplingParamsDict as SamplingParamsDict,
)
from osmosis.records.wire02 import (
    ToolResponse as ToolResponse,
)
from osmosis.records.wire02 import (
    get_max_metadata_size_bytes as get_max_metadata_size_bytes,
)
from osmosis.records.wire02 import (
    set_max_metadata_size_bytes as set_max_metadata_size_bytes,
)
from osmosis.sdk.agent_loop import (
    CompletionsResult as CompletionsResult,
)
from osmosis.sdk.agent_loop import (
    LLMClientProtocol as LLMClientProtocol,
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
    AgentLoopNotFoundError as AgentLoopNotFoundError,
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
from osmosis.sdk.exceptions import (
    ToolArgumentError as ToolArgumentError,
)
from osmosis.sdk.exceptions import (
    ToolExecutionError as ToolExecutionError,
)
from osmosis.sdk.grader import (
    Grader as Grader,
)
from osmosis.sdk.harbor.backend import (
    HarborBackend as HarborBackend,
)
from osmosis.sdk.messages import (
    count_messages_by_role as count_messages_by_role,
)
from osmosis.sdk.messages import (
    get_message_content as get_message_content,
)
from osmosis.sdk.messages import (
    get_message_role as get_message_role,
)
from osmosis.sdk.messages import (
    is_assistant_message as is_assistant_message,
)
from osmosis.sdk.messages import (
    is_tool_message as is_tool_message,
)
from osmosis.sdk.messages import (
    is_user_message as is_user_message,
)
from osmosis.sdk.messages import (
    normalize_stop as normalize_stop,
)
from osmosis.sdk.messages import (
    parse_tool_calls as parse_tool_calls,
)
from osmosis.sdk.tools import (
    create_tool_error_result as create_tool_error_result,
)
from osmosis.sdk.tools import (
    create_tool_result as create_tool_result,
)
from osmosis.sdk.tools import (
    execute_tool_calls as execute_tool_calls,
)
from osmosis.sdk.tools import (
    get_tool_call_info as get_tool_call_info,
)
from osmosis.sdk.tools import (
    parse_tool_arguments as parse_tool_arguments,
)
from osmosis.sdk.tools import (
    serialize_tool_result as serialize_tool_result,
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
from osmosis.serve.server.foreground import (
    DEFAULT_HOST as DEFAULT_HOST,
)
from osmosis.serve.server.foreground import (
    DEFAULT_PORT as DEFAULT_PORT,
)
from osmosis.serve.server.foreground import (
    ServeError as ServeError,
)
from osmosis.serve.server.foreground import (
    serve_agent_loop as serve_agent_loop,
)
from osmosis.serve.server.foreground import (
    validate_and_report as validate_and_report,
)
from osmosis.serve.server.network import (
    PublicIPDetectionError as PublicIPDetectionError,
)
from osmosis.serve.server.network import (
    detect_public_ip as detect_public_ip,
)
from osmosis.serve.server.network import (
    is_private_ip as is_private_ip,
)
from osmosis.serve.server.network import (
    is_valid_hostname_or_ip as is_valid_hostname_or_ip,
)
from osmosis.serve.server.network import (
    validate_ipv4 as validate_ipv4,
)
from osmosis.serve.server.rollout_settings import (
    RolloutClientSettings as RolloutClientSettings,
)
from osmosis.serve.server.rollout_settings import (
    RolloutServerSettings as RolloutServerSettings,
)
from osmosis.serve.server.rollout_settings import (
    RolloutSettings as RolloutSettings,
)
from osmosis.serve.server.rollout_settings import (
    configure as configure,
)
from osmosis.serve.server.rollout_settings import (
    get_settings as get_settings,
)
from osmosis.serve.server.rollout_settings import (
    reset_settings as reset_settings,
)
from osmosis.serve.server.trainer_client import (
    OsmosisLLMClient as OsmosisLLMClient,
)
from osmosis.serve.server.v02 import (
    create_app as create_app,
)
from osmosis.serve.server.validator import (
    AgentLoopValidationError as AgentLoopValidationError,
)
from osmosis.serve.server.validator import (
    ValidationResult as ValidationResult,
)
from osmosis.serve.server.validator import (
    validate_agent_loop as validate_agent_loop,
)
