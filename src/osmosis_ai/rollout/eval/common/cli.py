"""How local runs show figures."""

from osmosis.cli.agent_test.show import (
    format_duration as format_duration,
)
from osmosis.cli.agent_test.show import (
    format_tokens as format_tokens,
)

__all__ = [
    "format_duration",
    "format_tokens",
]
