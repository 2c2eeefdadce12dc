"""Local runs."""

from osmosis.classic.dataset import (
    REQUIRED_COLUMNS as REQUIRED_COLUMNS,
)
from osmosis.classic.dataset import (
    DatasetReader as DatasetReader,
)
from osmosis.classic.dataset import (
    DatasetRow as DatasetRow,
)
from osmosis.classic.dataset import (
    dataset_row_to_request as dataset_row_to_request,
)
from osmosis.classic.errors import (
    DatasetParseError as DatasetParseError,
)
from osmosis.classic.errors import (
    DatasetValidationError as DatasetValidationError,
)
from osmosis.classic.errors import (
    LocalExecutionError as LocalExecutionError,
)
from osmosis.classic.errors import (
    ProviderError as ProviderError,
)
from osmosis.classic.errors import (
    ToolValidationError as ToolValidationError,
)
from osmosis.classic.llm_client import (
    ExternalLLMClient as ExternalLLMClient,
)
from osmosis.classic.runner import (
    LocalBatchResult as LocalBatchResult,
)
from osmosis.classic.runner import (
    LocalRolloutRunner as LocalRolloutRunner,
)
from osmosis.classic.runner import (
    LocalRunResult as LocalRunResult,
)
from osmosis.classic.runner import (
    validate_tools as validate_tools,
)

__all__ = [
    "REQUIRED_COLUMNS",
    "DatasetParseError",
    "DatasetReader",
    "DatasetRow",
    "DatasetValidationError",
    "ExternalLLMClient",
    "LocalBatchResult",
    "LocalExecutionError",
    "LocalRolloutRunner",
    "LocalRunResult",
    "ProviderError",
    "ToolValidationError",
    "dataset_row_to_request",
    "validate_tools",
]
