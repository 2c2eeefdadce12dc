"""The agent of generation 0.3: subclass `AgentWorkflow`, write `run`, talk to the model the rollout was given.

A workflow never scores itself; that is the grader's. One instance is made per rollout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from osmosis.base.json_types import JsonObject
from osmosis.records.rollout import Message

from .context import AgentWorkflowContext

TConfig = TypeVar("TConfig")


class AgentWorkflowOutput(BaseModel):
    """What a workflow returns when messages alone do not say enough. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)

    messages: list[Message]
    """The whole conversation, opening messages included."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Numbers worth plotting."""
    info: JsonObject = Field(default_factory=dict)
    """Anything JSON worth keeping; not interpreted."""


class AgentWorkflow(ABC, Generic[TConfig]):
    """Base class of an agent. `config` is the object given to the backend, or None."""

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[TConfig]) -> AgentWorkflowOutput | list[Message] | None:
        """Runs the agent on `ctx.prompt`.

        Returns the conversation (a list of messages or an `AgentWorkflowOutput`), or None when an integration has
        registered the conversation with the rollout.
        """


WorkflowClass: TypeAlias = type[AgentWorkflow[Any]]
"""A workflow, whatever config it takes."""
