from abc import ABC, abstractmethod
from typing import Any, Generic, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.rollout import Message
from osmosis.sdk.context import AgentWorkflowContext, GraderContext

TConfig = TypeVar("TConfig")


class AgentWorkflowOutput(BaseModel):
    """The result of a workflow that returns more than messages. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)

    messages: list[Message]
    """The whole conversation, opening messages included."""
    metrics: dict[str, float] = Field(default_factory=dict)
    info: JsonObject = Field(default_factory=dict)
    """Any JSON worth keeping; not interpreted."""


class AgentWorkflow(ABC, Generic[TConfig]):
    """Base class of an agent. `config` is the object given to the backend, or None."""

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[TConfig]) -> AgentWorkflowOutput | list[Message] | None:
        """Run the agent on `ctx.prompt`.

        Return the conversation (a list of messages or an `AgentWorkflowOutput`), or None when an integration has
        registered the conversation with the rollout."""


WorkflowClass: TypeAlias = type[AgentWorkflow[Any]]


class Grader(ABC, Generic[TConfig]):
    """Base class of a grader. `config` is the object given to the backend, or None."""

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> None:
        """Judge `ctx.sample` against `ctx.label`: call `ctx.set_reward(x)`, or set `ctx.sample.remove_sample`."""


GraderClass: TypeAlias = type[Grader[Any]]
