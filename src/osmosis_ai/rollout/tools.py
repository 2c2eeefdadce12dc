"""Tool calls and their results."""

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

__all__ = [
    "create_tool_error_result",
    "create_tool_result",
    "execute_tool_calls",
    "get_tool_call_info",
    "parse_tool_arguments",
    "serialize_tool_result",
]
