"""The wire shapes of generation 0.2."""

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

__all__ = [
    "DEFAULT_MAX_METADATA_SIZE_BYTES",
    "CompletionUsage",
    "CompletionsChoice",
    "CompletionsRequest",
    "CompletionsResponse",
    "InitResponse",
    "MessageDict",
    "OpenAIFunctionCallSchema",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionParsedSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolCall",
    "OpenAIFunctionToolSchema",
    "RolloutMetrics",
    "RolloutRequest",
    "RolloutResponse",
    "RolloutStatus",
    "SamplingParamsDict",
    "ToolResponse",
    "get_max_metadata_size_bytes",
    "set_max_metadata_size_bytes",
]
