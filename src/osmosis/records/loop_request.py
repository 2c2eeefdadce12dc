"""What an agent loop is asked to do and what it counts: the same for a loop in this process and for one behind
generation 0.2 of the protocol, whose first message it is.
"""

from __future__ import annotations

import json
import threading
from enum import Enum

from pydantic import Field, ValidationInfo, field_validator

from osmosis.base.json_types import JsonObject

from .base import Record
from .wire_checks import check_bearer, check_id, check_url

MessageDict = JsonObject
"""One chat message in the OpenAI shape."""
SamplingParamsDict = JsonObject
"""Sampling parameters of a model call (`temperature`, `top_p`, `max_tokens`, ...)."""
DEFAULT_MAX_METADATA_SIZE_BYTES = 1024 * 1024
"""How large a request's `metadata` may be as JSON, unless changed."""
_limit_lock = threading.Lock()
_metadata_limit = DEFAULT_MAX_METADATA_SIZE_BYTES


def get_max_metadata_size_bytes() -> int:
    """The limit on `RolloutRequest.metadata` in bytes of JSON."""
    with _limit_lock:
        return _metadata_limit


def set_max_metadata_size_bytes(size_bytes: int) -> None:
    """Changes the limit for this process; `ValueError` unless positive."""
    global _metadata_limit
    if size_bytes <= 0:
        raise ValueError(f"the metadata limit must be positive, got {size_bytes}")
    with _limit_lock:
        _metadata_limit = size_bytes


class LoopStatus(str, Enum):
    """How an agent loop ended (0.2's `RolloutStatus`)."""

    COMPLETED = "COMPLETED"
    ERROR = "ERROR"


class RolloutMetrics(Record):
    """Counters of one rollout; latencies in milliseconds."""

    total_latency_ms: float = 0.0
    llm_latency_ms: float = 0.0
    tool_latency_ms: float = 0.0
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    max_context_tokens: int = 0
    """The largest prompt plus reply of any single call."""

    def counting(self, prompt_tokens: int, response_tokens: int, latency_ms: float) -> RolloutMetrics:
        """These counters, and one more call of the model."""
        return self.model_copy(
            update={
                "llm_latency_ms": self.llm_latency_ms + latency_ms,
                "num_llm_calls": self.num_llm_calls + 1,
                "prompt_tokens": self.prompt_tokens + prompt_tokens,
                "response_tokens": self.response_tokens + response_tokens,
                "max_context_tokens": max(self.max_context_tokens, prompt_tokens + response_tokens),
            }
        )


class RolloutRequest(Record):
    """`POST /v1/rollout/init`: one rollout to run."""

    rollout_id: str = Field(min_length=1, max_length=256)
    server_url: str
    """Where the trainer listens; kept verbatim."""
    messages: list[MessageDict]
    completion_params: SamplingParamsDict
    """Sampling parameters to use for every model call."""
    tool_server_url: str | None = None
    max_turns: int = 10
    """Below 1 is accepted, and the rollout ends with an error; so is the next."""
    max_tokens_total: int = 8192
    metadata: JsonObject = Field(default_factory=dict)
    """The row's columns and whatever the trainer adds."""
    api_key: str | None = None
    """Bearer for calls to `server_url`."""
    idempotency_key: str | None = None
    """Absent: `rollout_id` is the key."""

    @field_validator("rollout_id")
    @classmethod
    def _id(cls, value: str) -> str:
        return check_id(value)

    @field_validator("server_url")
    @classmethod
    def _url(cls, value: str) -> str:
        return check_url("server_url", value, None)

    @field_validator("api_key")
    @classmethod
    def _key(cls, value: str | None, info: ValidationInfo) -> str | None:
        check_url("server_url", info.data.get("server_url", "http://unknown"), value)
        return check_bearer(value)

    @field_validator("metadata")
    @classmethod
    def _metadata(cls, value: JsonObject) -> JsonObject:
        try:
            size = len(json.dumps(value, ensure_ascii=False).encode())
        except (TypeError, ValueError) as exc:
            raise ValueError(f"metadata must be JSON-serialisable: {exc}") from exc
        limit = get_max_metadata_size_bytes()
        if size > limit:
            raise ValueError(f"metadata is {size} bytes of JSON, the limit is {limit} bytes")
        return value
