"""Test runs."""

from osmosis.classic.interactive import (
    InteractiveLLMClient as InteractiveLLMClient,
)
from osmosis.classic.interactive import (
    InteractiveRunner as InteractiveRunner,
)
from osmosis.classic.interactive import (
    InteractiveStep as InteractiveStep,
)
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
    "InteractiveLLMClient",
    "InteractiveRunner",
    "InteractiveStep",
    "LocalTestBatchResult",
    "LocalTestRunResult",
    "LocalTestRunner",
]
