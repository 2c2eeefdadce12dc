"""Tools and their calls in the OpenAI shape. Any JSON Schema fits: keywords without a field are kept."""

import json
from typing import Any

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record


class _JsonSchema(Record):
    model_config = ConfigDict(extra="allow")

    @model_serializer(mode="wrap")
    def _schema(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
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
    properties: dict[str, OpenAIFunctionPropertySchema] = Field(default_factory=dict)
    required: list[str] = Field(default_factory=list)

    @field_validator("properties", mode="before")
    @classmethod
    def _boolean_schemas(cls, value: object) -> object:
        # JSON Schema allows true (anything) and false (nothing) in place of an object.
        if not isinstance(value, dict):
            return value
        return {name: {} if sub is True else {"not": {}} if sub is False else sub for name, sub in value.items()}


class OpenAIFunctionSchema(Record):
    name: str
    description: str = ""
    parameters: OpenAIFunctionParametersSchema = Field(default_factory=OpenAIFunctionParametersSchema)
    strict: bool = False


class OpenAIFunctionToolSchema(Record):
    """A tool in the OpenAI shape: `{"type": "function", "function": {...}}`."""

    type: str = "function"
    function: OpenAIFunctionSchema

    def to_dict(self) -> JsonObject:
        return self.model_dump(mode="json", exclude_none=True)


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

    @field_validator("image", "video", mode="before")
    @classmethod
    def _lists(cls, value: object) -> object:
        if value is not None and not isinstance(value, list):
            raise ValueError("must be a list, even for one")
        return value

    def is_empty(self) -> bool:
        return not self.text and not self.image and not self.video

    def is_text_only(self) -> bool:
        return bool(self.text) and not self.image and not self.video
