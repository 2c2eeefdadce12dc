"""The runner of `osmosis test`."""

from osmosis.classic.runner import (
    LocalBatchResult as LocalTestBatchResult,
)
from osmosis.classic.runner import (
    LocalRunResult as LocalTestRunResult,
)
from osmosis.classic.runner import (
    LocalTestRunner as LocalTestRunner,
)

__all__ = [
    "LocalTestBatchResult",
    "LocalTestRunResult",
    "LocalTestRunner",
]
