"""Agent loops by name, for code that starts them by name. A name means one loop; registering it twice is refused."""

from __future__ import annotations

import threading

from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.exceptions import AgentLoopNotFoundError


class AgentLoopRegistry:
    """A set of named agent loops; safe to use from several threads."""

    def __init__(self) -> None:
        self._loops: dict[str, RolloutAgentLoop] = {}
        self._lock = threading.Lock()

    def register(self, loop: RolloutAgentLoop) -> None:
        """Adds `loop` under its name; `ValueError` when the name is taken."""
        with self._lock:
            if loop.name in self._loops:
                raise ValueError(f"an agent loop named {loop.name!r} is already registered")
            self._loops[loop.name] = loop

    def unregister(self, name: str) -> bool:
        """Removes a loop; whether there was one."""
        with self._lock:
            return self._loops.pop(name, None) is not None

    def get(self, name: str) -> RolloutAgentLoop | None:
        """The loop of this name, or None."""
        with self._lock:
            return self._loops.get(name)

    def list_names(self) -> list[str]:
        """All names, in the order of registration."""
        with self._lock:
            return list(self._loops)

    def clear(self) -> None:
        """Removes every loop."""
        with self._lock:
            self._loops.clear()


_registry = AgentLoopRegistry()


def register_agent_loop(loop: RolloutAgentLoop) -> None:
    """Adds `loop` to the process's registry; `ValueError` when its name is taken."""
    _registry.register(loop)


def unregister_agent_loop(name: str) -> bool:
    """Removes a loop from the process's registry; whether there was one."""
    return _registry.unregister(name)


def get_agent_loop(name: str) -> RolloutAgentLoop:
    """The registered loop; `AgentLoopNotFoundError` lists what there is."""
    found = _registry.get(name)
    if found is None:
        raise AgentLoopNotFoundError(name, list_agent_loops())
    return found


def list_agent_loops() -> list[str]:
    """The names in the process's registry."""
    return _registry.list_names()
