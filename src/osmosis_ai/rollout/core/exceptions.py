"""Errors around agent loops."""

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
    "AgentLoopNotFoundError",
    "OsmosisRolloutError",
    "OsmosisServerError",
    "OsmosisTimeoutError",
    "OsmosisTransportError",
    "OsmosisValidationError",
    "ToolArgumentError",
    "ToolExecutionError",
]
