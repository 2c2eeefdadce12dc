import copy
import logging
import math
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from osmosis.base.jsonable import JsonObject, describe, to_valid_text
from osmosis.errors import OsmosisError
from osmosis.records.protocol.messages import WireSample
from osmosis.records.run.rollout import Message

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


logger = logging.getLogger(__name__)

_DROPPED = object()


class ConcurrencyConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)

    max_concurrent: int | None = Field(default=None, ge=1)
    """No limit when None."""


class BaseConfig(BaseModel):
    model_config = ConfigDict(extra="allow", defer_build=True, arbitrary_types_allowed=True)

    name: str = Field(min_length=1)
    description: str | None = None
    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


class AgentWorkflowConfig(BaseConfig):
    """Base of a workflow's own configuration: subclass it and add typed fields."""


class GraderConfig(BaseConfig):
    """Base of a grader's own configuration."""


class RolloutSample(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_assignment=True, defer_build=True)

    messages: list[Message] = Field(default_factory=list)
    """The conversation, as the policy is trained on it."""
    trajectory_messages: list[Message] | None = None
    """The conversation as it is kept for people; a copy of `messages` unless given. None keeps nothing."""
    label: str | None = None
    reward: Annotated[float | None, BeforeValidator(lambda value: finite_reward(value))] = None
    """Finite; None until a grader sets it."""
    reason: str | None = None
    """The reason for the reward, shown beside it."""
    parts: dict[str, float] | None = None
    """Parts of the reward, shown beside it, not added up."""
    remove_sample: bool = False
    """Leave this rollout out of every mean and of training."""
    metrics: JsonObject = Field(default_factory=dict)
    extra_fields: JsonObject = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _keep_a_copy(cls, data: object) -> Any:
        if isinstance(data, dict) and "trajectory_messages" not in data and data.get("messages") is not None:
            data = {**data, "trajectory_messages": copy.deepcopy(data["messages"])}
        return data

    def to_wire(self) -> WireSample:
        """Encode for the wire: NumPy scalars become numbers; what JSON cannot hold is left out, with a warning."""
        return WireSample(
            messages=[m for m in (json_safe(m, "messages") for m in self.messages) if isinstance(m, dict)],
            label=self.label,
            reward=None if self.remove_sample else self.reward,
            reason=self.reason,
            parts=self.parts,
            remove_sample=self.remove_sample,
            metrics=json_safe(self.metrics, "metrics"),
            extra_fields=json_safe(self.extra_fields, "extra_fields"),
        )


def finite_reward(value: Any) -> float | None:
    """Convert a reward to a float, None to None; raise a `ValueError` that quotes a value that is not a finite number.

    Booleans and the scalars of array libraries are numbers; text is none, not even "0.5"."""
    if value is None:
        return None
    try:
        number = None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last one: a tensor of several numbers
        number = None
    if number is not None and math.isfinite(number):
        return number
    got = str(number) if number is not None else describe(value)
    raise PydanticCustomError(INVALID_REWARD, "the reward must be a finite number, got {got}", {"got": got})


def json_safe(value: object, where: str) -> Any:
    safe = _convert(value, where)
    return None if safe is _DROPPED else safe


def _convert(value: object, where: str) -> object:
    if isinstance(value, str):
        return to_valid_text(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        logger.warning("%s: %r is not a finite number; left out", where, value)
        return _DROPPED
    if isinstance(value, dict):
        pairs = ((to_valid_text(str(key)), _convert(sub, f"{where}.{key}")) for key, sub in value.items())
        return {key: sub for key, sub in pairs if sub is not _DROPPED}
    if isinstance(value, (list, tuple, set, frozenset)):
        converted = (_convert(sub, f"{where}[{i}]") for i, sub in enumerate(value))
        return [sub for sub in converted if sub is not _DROPPED]
    if isinstance(value, BaseModel):
        return _convert(value.model_dump(), where)
    # NumPy and torch: scalars have item(), arrays tolist(); neither library is needed to know that.
    for method in ("tolist", "item"):
        unwrap = getattr(value, method, None)
        if callable(unwrap):
            plain = unwrap()
            if plain is not value:
                return _convert(plain, where)
    logger.warning("%s: a %s cannot be JSON; left out", where, type(value).__name__)
    return _DROPPED
