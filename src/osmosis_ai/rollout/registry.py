"""Agent loops by name."""

from osmosis.sdk.registry import (
    AgentLoopRegistry as AgentLoopRegistry,
)
from osmosis.sdk.registry import (
    get_agent_loop as get_agent_loop,
)
from osmosis.sdk.registry import (
    list_agent_loops as list_agent_loops,
)
from osmosis.sdk.registry import (
    register_agent_loop as register_agent_loop,
)
from osmosis.sdk.registry import (
    unregister_agent_loop as unregister_agent_loop,
)

__all__ = [
    "AgentLoopRegistry",
    "get_agent_loop",
    "list_agent_loops",
    "register_agent_loop",
    "unregister_agent_loop",
]
