"""Datasets of local runs."""

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

__all__ = [
    "REQUIRED_COLUMNS",
    "DatasetParseError",
    "DatasetReader",
    "DatasetRow",
    "DatasetValidationError",
    "dataset_row_to_request",
]
