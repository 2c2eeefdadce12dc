"""The errors an agent loop meets: the trainer not answering, a tool failing, a loop not registered.

All are part of the one tree of `osmosis.errors`, so the command line shows them as it shows any other.
"""

from __future__ import annotations

from collections.abc import Iterable

from osmosis.errors import OsmosisError

INVALID_REWARD = "invalid_reward"
"""The type of the validation error of a reward that is not a finite number."""


class OsmosisRolloutError(OsmosisError):
    """Base of everything below."""


class OsmosisTransportError(OsmosisRolloutError):
    """The other side could not be reached."""


class OsmosisTimeoutError(OsmosisRolloutError):
    """The other side did not answer in time."""


class OsmosisServerError(OsmosisRolloutError):
    """The other side answered 5xx, or 2xx with an invalid body."""

    def __init__(self, message: str, status_code: int = 500) -> None:
        super().__init__(message, status_code=status_code)
        self.status_code = status_code


class OsmosisValidationError(OsmosisRolloutError):
    """The other side refused the request (4xx)."""

    def __init__(self, message: str, status_code: int = 400) -> None:
        super().__init__(message, status_code=status_code)
        self.status_code = status_code


class AgentLoopNotFoundError(OsmosisRolloutError):
    """No agent loop is registered under this name."""

    def __init__(self, name: str, available: Iterable[str] = ()) -> None:
        self.name = name
        self.available = list(available)
        known = ", ".join(self.available) or "none"
        super().__init__(f"no agent loop is registered as {name!r}; registered: {known}")


class ToolExecutionError(OsmosisRolloutError):
    """A tool failed. `tool_call_id` and `tool_name` say which, when known."""

    def __init__(self, message: str, tool_call_id: str = "", tool_name: str = "") -> None:
        super().__init__(message)
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name


class ToolServerLost(OsmosisRolloutError):
    """The server behind the tools is gone. That is no answer for the model: the rollout cannot go on, and it is not to
    blame."""


class ToolArgumentError(ToolExecutionError):
    """The model wrote arguments that are not a JSON object, or not what the tool takes."""
