"""The core of generation 0.2."""

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
    LoopStatus as RolloutStatus,
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

__all__ = [
    "DEFAULT_MAX_METADATA_SIZE_BYTES",
    "AgentLoopNotFoundError",
    "CompletionUsage",
    "CompletionsChoice",
    "CompletionsRequest",
    "CompletionsResponse",
    "CompletionsResult",
    "InitResponse",
    "LLMClientProtocol",
    "MessageDict",
    "OpenAIFunctionCallSchema",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionParsedSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolCall",
    "OpenAIFunctionToolSchema",
    "OsmosisRolloutError",
    "OsmosisServerError",
    "OsmosisTimeoutError",
    "OsmosisTransportError",
    "OsmosisValidationError",
    "RolloutAgentLoop",
    "RolloutContext",
    "RolloutMetrics",
    "RolloutRequest",
    "RolloutResponse",
    "RolloutResult",
    "RolloutStatus",
    "SamplingParamsDict",
    "ToolArgumentError",
    "ToolExecutionError",
    "ToolResponse",
    "get_max_metadata_size_bytes",
    "set_max_metadata_size_bytes",
]
