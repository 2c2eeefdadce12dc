"""Words and records of generation 0.3 that only code written for it uses."""

from enum import Enum
from typing import TypeAlias

from pydantic import BaseModel

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.rollout import Message
from osmosis.sdk.backend import ExecutionResult

Messages: TypeAlias = list[Message]


class RolloutStatus(str, Enum):
    QUEUED = "queued"
    RUNNING = "running"
    GRADING = "grading"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class RolloutErrorCategory(str, Enum):
    TIMEOUT = "timeout"
    LEASE_EXPIRED = "lease_expired"
    VALIDATION_ERROR = "validation_error"
    HTTP_ERROR = "http_error"
    AGENT_ERROR = "agent_error"
    INTERNAL_ERROR = "internal_error"


class ExecutionRequest(BaseModel):
    id: str
    prompt: list[Message]
    label: str | None = None
    metadata: JsonObject | None = None
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None
    grade: bool = True


class ExecutionOutcome(BaseModel):
    workflow: ExecutionResult
    grader: ExecutionResult | None = None
