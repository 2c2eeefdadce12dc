import threading

from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.exceptions import AgentLoopNotFoundError


class AgentLoopRegistry:
    def __init__(self) -> None:
        self._loops: dict[str, RolloutAgentLoop] = {}
        self._lock = threading.Lock()

    def register(self, loop: RolloutAgentLoop) -> None:
        with self._lock:
            if loop.name in self._loops:
                raise ValueError(f"an agent loop named {loop.name!r} is already registered")
            self._loops[loop.name] = loop

    def unregister(self, name: str) -> bool:
        with self._lock:
            return self._loops.pop(name, None) is not None

    def get(self, name: str) -> RolloutAgentLoop | None:
        with self._lock:
            return self._loops.get(name)

    def list_names(self) -> list[str]:
        with self._lock:
            return list(self._loops)

    def clear(self) -> None:
        with self._lock:
            self._loops.clear()


_registry = AgentLoopRegistry()


def register_agent_loop(loop: RolloutAgentLoop) -> None:
    _registry.register(loop)


def unregister_agent_loop(name: str) -> bool:
    return _registry.unregister(name)


def get_agent_loop(name: str) -> RolloutAgentLoop:
    loop = _registry.get(name)
    if loop is None:
        raise AgentLoopNotFoundError(name, list_agent_loops())
    return loop


def list_agent_loops() -> list[str]:
    return _registry.list_names()
