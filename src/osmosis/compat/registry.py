from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.exceptions import AgentLoopNotFoundError


class AgentLoopRegistry:
    def __init__(self) -> None:
        self._loops: dict[str, RolloutAgentLoop] = {}

    def register(self, loop: RolloutAgentLoop) -> None:
        if loop.name in self._loops:
            raise ValueError(f"an agent loop named {loop.name!r} is already registered")
        self._loops[loop.name] = loop

    def unregister(self, name: str) -> bool:
        return self._loops.pop(name, None) is not None

    def get(self, name: str) -> RolloutAgentLoop | None:
        return self._loops.get(name)

    def list_names(self) -> list[str]:
        return list(self._loops)

    def clear(self) -> None:
        self._loops.clear()


_registry = AgentLoopRegistry()
register_agent_loop = _registry.register
unregister_agent_loop = _registry.unregister
list_agent_loops = _registry.list_names


def get_agent_loop(name: str) -> RolloutAgentLoop:
    loop = _registry.get(name)
    if loop is None:
        raise AgentLoopNotFoundError(name, list_agent_loops())
    return loop
