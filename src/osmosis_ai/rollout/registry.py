"""Agent loops by name."""

from osmosis.classic.registry import (
    AgentLoopRegistry as AgentLoopRegistry,
)
from osmosis.classic.registry import (
    get_agent_loop as get_agent_loop,
)
from osmosis.classic.registry import (
    list_agent_loops as list_agent_loops,
)
from osmosis.classic.registry import (
    register_agent_loop as register_agent_loop,
)
from osmosis.classic.registry import (
    unregister_agent_loop as unregister_agent_loop,
)

__all__ = [
    "AgentLoopRegistry",
    "get_agent_loop",
    "list_agent_loops",
    "register_agent_loop",
    "unregister_agent_loop",
]
