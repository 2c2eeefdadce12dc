"""Generation 0.2 of the remote-rollout protocol, as it crosses the wire: what a server answers to `/v1/rollout/init`,
and what it sends to `/v1/chat/completions` and `/v1/rollout/completed`. What it is sent is in `loop_request`.

Unknown keys are ignored, except for sampling parameters. Nothing here talks to a network.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field, field_validator

from osmosis.base.json_types import JsonObject

from .base import Record
from .loop_request import LoopStatus, MessageDict, RolloutMetrics
from .rollout import Failure
from .tool_schema import OpenAIFunctionToolSchema
from .wire import ServerHealth
from .wire_checks import check_id


class InitResponse(Record):
    """202 of `/v1/rollout/init`: the tools the policy may call."""

    rollout_id: str
    tools: list[OpenAIFunctionToolSchema] = Field(default_factory=list)


class RolloutResponse(Record):
    """`POST {server_url}/v1/rollout/completed`: the terminal result."""

    rollout_id: str
    status: LoopStatus
    final_messages: list[MessageDict] = Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    reward: float | None = None
    metrics: RolloutMetrics | None = None
    extra_fields: JsonObject = Field(default_factory=dict)
    failure: Failure | None = None
    """Why it is an ERROR, with phase, category and traceback; ours, other servers leave it out."""


class CompletionsRequest(Record):
    """`POST {server_url}/v1/chat/completions`. Sampling parameters beyond the named ones travel as well."""

    model_config = ConfigDict(extra="allow")

    model: str = "default"
    messages: list[MessageDict]
    rollout_id: str = Field(min_length=1, max_length=256)
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: list[str] | None = None
    logprobs: bool = True

    @field_validator("rollout_id")
    @classmethod
    def _id(cls, value: str) -> str:
        return check_id(value)


class ChatCompletionsRequest(CompletionsRequest):
    """`POST .../chat/completions` of the model proxy: any OpenAI parameter is forwarded; `n` must be 1."""

    rollout_id: str = Field(default="", max_length=256)
    """Only for generation 0.2, whose URL does not name the rollout."""
    tools: list[JsonObject] | None = None
    stream: bool = False
    """Server-sent events with text and tool-call deltas, then `[DONE]`."""


class CompletionUsage(Record):
    """Tokens of one call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class CompletionsChoice(Record):
    index: int = 0
    message: MessageDict
    finish_reason: str | None = "stop"


class CompletionsResponse(Record):
    """The trainer's answer to a model call; token ids and logprobs when the policy has them."""

    id: str
    object: str = "chat.completion"
    created: int
    """Unix seconds."""
    model: str = "default"
    choices: list[CompletionsChoice]
    usage: CompletionUsage | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_token_ids: list[int] | None = None


class LoopHealth(ServerHealth):
    """`GET /health` of a server with an agent loop: generation 0.2's keys beside the later ones."""

    agent_loop: str
    active_rollouts: int
    """Queued and running."""
    completed_rollouts: int


class RegisterRequest(Record):
    """`POST {platform}/api/cli/rollout-server/register`."""

    host: str
    port: int
    agent_loop_name: str
    api_key: str | None = None


class RegisterReply(Record):
    """What the platform says of the server."""

    id: str
    status: str
    """`healthy`, or why not."""
    health_check_result: JsonObject | None = None
    """`server_info` or `error`."""
