"""Readers for chat messages."""

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

__all__ = [
    "count_messages_by_role",
    "get_message_content",
    "get_message_role",
    "is_assistant_message",
    "is_tool_message",
    "is_user_message",
    "normalize_stop",
    "parse_tool_calls",
]
