from collections.abc import Iterable

from osmosis.errors import OsmosisError

INVALID_REWARD = "invalid_reward"


class OsmosisRolloutError(OsmosisError): ...


class OsmosisTransportError(OsmosisRolloutError): ...


class OsmosisTimeoutError(OsmosisRolloutError): ...


class OsmosisServerError(OsmosisRolloutError):
    """The server answered 5xx, or 2xx with an invalid body."""

    def __init__(self, message: str, status_code: int = 500) -> None:
        super().__init__(message, status_code=status_code)
        self.status_code = status_code


class OsmosisValidationError(OsmosisRolloutError):
    """The server refused the request (4xx)."""

    def __init__(self, message: str, status_code: int = 400) -> None:
        super().__init__(message, status_code=status_code)
        self.status_code = status_code


class AgentLoopNotFoundError(OsmosisRolloutError):
    def __init__(self, name: str, available: Iterable[str] = ()) -> None:
        self.name = name
        self.available = list(available)
        names = ", ".join(self.available) or "none"
        super().__init__(f"no agent loop is registered as {name!r}; registered: {names}")


class ToolExecutionError(OsmosisRolloutError):
    """A tool failed; `tool_call_id` and `tool_name` are None when not known."""

    def __init__(self, message: str, tool_call_id: str = "", tool_name: str = "") -> None:
        super().__init__(message)
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name


class ToolServerLost(OsmosisRolloutError):
    """The server behind the tools is gone: the rollout cannot go on, and it is not to blame."""


class ToolArgumentError(ToolExecutionError):
    """The model wrote arguments that are not a JSON object, or that the tool does not take."""
