"""Generation 0.2 of the remote-rollout protocol, without its request (`loop_request`); unknown keys are ignored."""

import json
from enum import Enum
from typing import Annotated, Any

import pydantic

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record
from osmosis.records.protocol.messages import ServerHealth, check_bearer, check_id, check_url
from osmosis.records.run.rollout import Failure


class _JsonSchema(Record):
    model_config = pydantic.ConfigDict(extra="allow")

    @pydantic.model_serializer(mode="wrap")
    def _schema(self, handler: pydantic.SerializerFunctionWrapHandler) -> JsonObject:
        # `default: null` and `const: null` mean something in JSON Schema; an unset field of ours does not.
        dumped = handler(self)
        extra = self.__pydantic_extra__ or {}
        schema = {key: value for key, value in dumped.items() if value is not None or key in extra}
        return {**schema, **{key: value for key, value in extra.items() if key not in schema}}


class OpenAIFunctionPropertySchema(_JsonSchema):
    type: str | list[str] | None = None
    """JSON type; may be left out where `anyOf` or `$ref` says it."""
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(_JsonSchema):
    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema] = pydantic.Field(default_factory=dict)
    required: list[str] = pydantic.Field(default_factory=list)

    @pydantic.field_validator("properties", mode="before")
    @classmethod
    def _boolean_schemas(cls, value: object) -> object:
        # JSON Schema allows true (anything) and false (nothing) in place of an object.
        if not isinstance(value, dict):
            return value
        return {name: {} if sub is True else {"not": {}} if sub is False else sub for name, sub in value.items()}


class OpenAIFunctionSchema(Record):
    name: str
    description: str = ""
    parameters: OpenAIFunctionParametersSchema = pydantic.Field(default_factory=OpenAIFunctionParametersSchema)
    strict: bool = False


class OpenAIFunctionToolSchema(Record):
    """A tool in the OpenAI shape: `{"type": "function", "function": {...}}`."""

    type: str = "function"
    function: OpenAIFunctionSchema


class OpenAIFunctionParsedSchema(Record):
    """A call as a model wrote it: the arguments are still text."""

    name: str
    arguments: str


class OpenAIFunctionCallSchema(Record):
    name: str
    arguments: JsonObject

    @staticmethod
    def from_openai_function_parsed_schema(
        parsed: OpenAIFunctionParsedSchema,
    ) -> "tuple[OpenAIFunctionCallSchema, bool]":
        try:
            arguments = json.loads(parsed.arguments)
        except json.JSONDecodeError:
            arguments = None
        failed = not isinstance(arguments, dict)
        return OpenAIFunctionCallSchema(name=parsed.name, arguments={} if failed else arguments), failed


class OpenAIFunctionToolCall(Record):
    id: str
    type: str = "function"
    function: OpenAIFunctionCallSchema


class ToolResponse(Record):
    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    @pydantic.field_validator("image", "video", mode="before")
    @classmethod
    def _lists(cls, value: object) -> object:
        if value is not None and not isinstance(value, list):
            raise ValueError("must be a list, even for one")
        return value

    def is_empty(self) -> bool:
        return not self.text and not self.image and not self.video

    def is_text_only(self) -> bool:
        return bool(self.text) and not self.image and not self.video


MessageDict = JsonObject
SamplingParamsDict = JsonObject
RolloutId = Annotated[str, pydantic.Field(min_length=1, max_length=256), pydantic.AfterValidator(check_id)]
DEFAULT_MAX_METADATA_SIZE_BYTES = 1024 * 1024  # Bytes of a request's `metadata` as JSON
_metadata_limit = DEFAULT_MAX_METADATA_SIZE_BYTES


def get_max_metadata_size_bytes() -> int:
    return _metadata_limit


def set_max_metadata_size_bytes(size_bytes: int) -> None:
    global _metadata_limit
    if size_bytes <= 0:
        raise ValueError(f"the metadata limit must be positive, got {size_bytes}")
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

    def counting(self, prompt_tokens: int, response_tokens: int, latency_ms: float) -> "RolloutMetrics":
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

    rollout_id: RolloutId
    server_url: Annotated[str, pydantic.AfterValidator(lambda value: check_url("server_url", value, None))]
    """The trainer's address; kept verbatim."""
    messages: list[MessageDict]
    completion_params: SamplingParamsDict
    tool_server_url: str | None = None
    max_turns: int = 10
    """Below 1 is accepted, and the rollout ends with an error; so is the next."""
    max_tokens_total: int = 8192
    metadata: JsonObject = pydantic.Field(default_factory=dict)
    """The row's columns and whatever the trainer adds."""
    api_key: str | None = None
    """Bearer for calls to `server_url`."""
    idempotency_key: str | None = None
    """Absent: `rollout_id` is the key."""

    @pydantic.field_validator("api_key")
    @classmethod
    def _key(cls, value: str | None, info: pydantic.ValidationInfo) -> str | None:
        check_url("server_url", info.data.get("server_url", "http://unknown"), value)
        return check_bearer(value)

    @pydantic.field_validator("metadata")
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


class InitResponse(Record):
    """202 of `/v1/rollout/init`: the tools the policy may call."""

    rollout_id: str
    tools: list[OpenAIFunctionToolSchema] = pydantic.Field(default_factory=list)


class RolloutResponse(Record):
    """`POST {server_url}/v1/rollout/completed`: the terminal result."""

    rollout_id: str
    status: LoopStatus
    final_messages: list[MessageDict] = pydantic.Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    reward: float | None = None
    metrics: RolloutMetrics | None = None
    extra_fields: JsonObject = pydantic.Field(default_factory=dict)
    failure: Failure | None = None
    """Why it is an ERROR, with phase, category and traceback; ours, other servers leave it out."""


class CompletionsRequest(Record):
    """`POST {server_url}/v1/chat/completions`. Sampling parameters beyond the named ones travel as well."""

    model_config = pydantic.ConfigDict(extra="allow")

    model: str = "default"
    messages: list[MessageDict]
    rollout_id: RolloutId
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: list[str] | None = None
    logprobs: bool = True


class ChatCompletionsRequest(CompletionsRequest):
    """`POST .../chat/completions` of the model proxy: any OpenAI parameter is forwarded; `n` must be 1."""

    rollout_id: Annotated[str, pydantic.Field(max_length=256), pydantic.AfterValidator(check_id)] = ""
    """Only for generation 0.2, whose URL does not name the rollout."""
    tools: list[JsonObject] | None = None
    stream: bool = False
    """Server-sent events with text and tool-call deltas, then `[DONE]`."""


class CompletionUsage(Record):
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
    id: str
    status: str
    """`healthy`, or why not."""
    health_check_result: JsonObject | None = None
    """`server_info` or `error`."""
