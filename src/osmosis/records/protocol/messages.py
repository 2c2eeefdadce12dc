"""Messages of the remote-rollout protocol, generations 0.3 (callbacks) and 0.4 (polling); unknown keys are ignored."""

import re
from enum import Enum
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record
from osmosis.records.run.rollout import Failure, Message

LEASE_HEADER = "X-Osmosis-Rollout-Lease"
PORT_VARIABLE = "_OSMOSIS_ROLLOUT_PORT"
INSTANCE_VARIABLE = "_OSMOSIS_ROLLOUT_INSTANCE_ID"
ARTIFACT_VARIABLE = "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"

RolloutState = Literal["queued", "running", "grading", "success", "failure", "cancelled", "unknown"]
ErrorCategory = Literal["timeout", "validation_error", "http_error", "agent_error"]


class WireSample(Record):
    """A conversation that a rollout produced, as graded."""

    messages: list[Message] = Field(default_factory=list)
    label: str | None = None
    reward: float | None = None
    """Missing (None) when grading failed or the sample is to be left out."""
    reason: str | None = None
    """Why the grader gave that reward; ours, and left out when there is none."""
    parts: dict[str, float] | None = None
    """Parts of the reward; ours, and left out when there are none."""
    remove_sample: bool = False
    metrics: JsonObject = Field(default_factory=dict)
    extra_fields: JsonObject = Field(default_factory=dict)


_ERRORS = ("timeout", "lease_expired", "validation_error", "http_error", "agent_error", "internal_error")
# The words of the wire as code of generation 0.3 imports them.
RolloutStatus = Enum("RolloutStatus", [(w.upper(), w) for w in get_args(RolloutState)], type=str)  # type: ignore[misc]
RolloutErrorCategory = Enum("RolloutErrorCategory", [(w.upper(), w) for w in _ERRORS], type=str)  # type: ignore[misc]
_SAFE_ID = re.compile(r"^(?!\.{1,2}$)[A-Za-z0-9._:@+=-]{1,256}\Z")


def check_rollout_id(value: str) -> str:
    if not _SAFE_ID.match(value):
        raise ValueError("rollout_id must be one path segment of 1 to 256 letters, digits and . _ : @ + = -")
    return value


def check_url(name: str, value: str, bearer: str | None) -> str:
    """Raise ValueError, before the rollout runs, unless a message can be posted to this URL with this bearer."""
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as exc:
        raise ValueError(f"{name} is not a URL: {exc}") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name} must be an http or https URL with a host")
    if bearer and "@" in parts.netloc:
        raise ValueError(f"{name} has a user name in it, and there is a key too: only one of them can be sent")
    return value


def check_bearer(value: str | None) -> str | None:
    if value is not None and any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ValueError("a key has no line breaks or other control characters")
    return value


def check_id(value: str) -> str:
    if not value.strip():
        raise ValueError("rollout_id must not be blank")
    return value


class RolloutInit(Record):
    """`POST /rollout`. Callback URLs present: generation 0.3; absent: 0.4 (polling)."""

    initial_messages: list[Message]
    label: str | None = None
    """The row's ground truth."""
    metadata: JsonObject | None = None
    rollout_id: Annotated[str, AfterValidator(check_rollout_id)] | None = None
    """One path segment; required when polling."""
    chat_completions_url: str
    """Prefix to which `/chat/completions` is appended; it identifies the rollout."""
    controller_api_key: Annotated[str | None, AfterValidator(check_bearer)] = None
    """Bearer of the callbacks."""
    llm_api_key: str | None = None
    """Bearer of the model endpoint; absent: the controller's."""
    completion_callback_url: str | None = None
    grader_callback_url: str | None = None
    grade: bool = True
    agent_timeout_sec: float | None = Field(default=None, gt=0)
    grader_timeout_sec: float | None = Field(default=None, gt=0)
    extra_fields: JsonObject | None = None

    @field_validator("llm_api_key")
    @classmethod
    def _key(cls, value: str | None) -> str | None:
        if value == "":
            raise ValueError("llm_api_key must not be empty: leave it out instead")
        return check_bearer(value)

    @field_validator("completion_callback_url", "grader_callback_url")
    @classmethod
    def _callback(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else check_url(str(info.field_name), value, info.data.get("controller_api_key"))


class _End(Record):
    rollout_id: str
    err_message: str | None = None
    err_category: str | None = None
    failure: Failure | None = None
    """The same with phase, finer category and traceback; ours, other servers leave it out."""


class CompletionCallback(_End):
    """0.3: the workflow ended."""

    status: Literal["success", "failure", "cancelled"]
    extra_fields: JsonObject | None = None


class GraderCallback(_End):
    """0.3: the grader ended. Ours always says why it failed."""

    status: Literal["success", "failure"]
    sample: WireSample | None = None


class RolloutAccepted(Record):
    """0.4: 202 of `POST /rollout`."""

    rollout_id: str
    status: RolloutState = "queued"
    polling_lease_token: str
    result_wait_timeout_sec: float = 30.0
    polling_lease_timeout_sec: float = 120.0


class RolloutState04(_End):
    """0.4: `GET /rollout/{id}/result`."""

    status: RolloutState
    sample: WireSample | None = None


class CancelRequest(Record):
    """`POST /rollout/cancel`: exactly one of the three."""

    ids: list[str] | None = None
    prefix: str | None = None
    all: bool | None = None


class ServerConcurrency(Record):
    max_concurrent: int | None = None
    queued: int = 0
    running: int = 0


class ServerLifecycle(Record):
    accepting_rollouts: bool = True
    active_rollouts: int = 0


class ServerHealth(Record):
    """`GET /health`. `process_id` and `lifecycle` present = generation 0.4 is spoken."""

    status: str = "ok"
    """`ok`; a server of generation 0.2 says `healthy`."""
    concurrency: ServerConcurrency = Field(default_factory=ServerConcurrency)
    instance_id: str | None = None
    """The server's name as given at its start, else its `process_id`."""
    process_id: int | str | None = None
    """A random text that changes with each start; our servers before 1.1 said the number of their process."""
    lifecycle: ServerLifecycle | None = None


class CancelReply(Record):
    """The state of each named rollout."""

    dispositions: dict[str, str]
    """`cancelled_queued`, `cancelled_running` or `not_found` by rollout id."""


class StatusReply(Record):
    """`GET /rollout/{id}/status`."""

    rollout_id: str
    status: RolloutState


class ErrorReply(Record):
    """The body of every answer of a rollout server that is no success."""

    detail: object
    """A sentence, or for 422 the list of what is wrong with the body."""


class CallbackReply(Record):
    """A callback was taken. `trajectory` tells the rollout what only the gate knows."""

    status: str = "ok"
    trajectory: JsonObject | None = None
    """`model_name` and `samples.<id>.llm_call_metrics`: tokens and cost of each model call."""


class ModelErrorReply(Record):
    """An error of a model endpoint, in the shape that OpenAI clients read."""

    error: JsonObject
    """`message`, `type`, `code` (the category of the failure)."""
