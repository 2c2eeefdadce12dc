"""Workflows, graders and their contexts. `WorkflowRollout` is generation 0.3's `RolloutContext`."""

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar, Token
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field

from osmosis.base.jsonable import JsonObject, as_float
from osmosis.records.run.rollout import Message, Score, Usage
from osmosis.sdk.chat import Ask, ChatClient
from osmosis.sdk.messages import Prompts
from osmosis.sdk.sandbox import Sandbox, get_sandbox
from osmosis.sdk.types import RolloutSample

TConfig = TypeVar("TConfig")

_current: "ContextVar[WorkflowRollout | None]" = ContextVar("osmosis_workflow_rollout", default=None)


@runtime_checkable
class SampleSource(Protocol):
    async def get_sample(self) -> RolloutSample: ...


class WorkflowRollout:
    """The running rollout. Values left out come from `OSMOSIS_CHAT_COMPLETIONS_URL`, `OSMOSIS_API_KEY` and
    `OSMOSIS_ROLLOUT_ID`. As a context manager it becomes the current rollout."""

    def __init__(
        self,
        chat_completions_url: str | None = None,
        api_key: str | None = None,
        rollout_id: str | None = None,
        *,
        ask: Ask | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        # User code constructs this without an environment to pass: the process's own is the documented source.
        variables = os.environ if environ is None else environ
        self.chat_completions_url = chat_completions_url or variables.get("OSMOSIS_CHAT_COMPLETIONS_URL", "")
        self.api_key = api_key if api_key is not None else variables.get("OSMOSIS_API_KEY")
        self.rollout_id = rollout_id or variables.get("OSMOSIS_ROLLOUT_ID", "")
        self.ask = ask
        self.user_usage = Usage()  # usage of its simulated users
        self._source: SampleSource | None = None
        self._tokens: list[Token[WorkflowRollout | None]] = []

    def set_sample_source(self, source: SampleSource) -> None:
        """Register the source of the sample; `ValueError` the second time."""
        if self._source is not None:
            raise ValueError("this rollout already has a sample source: one conversation per rollout")
        self._source = source

    async def get_sample(self) -> RolloutSample | None:
        return None if self._source is None else await self._source.get_sample()

    def chat(self, *, timeout_s: float = 600.0, max_attempts: int = 4) -> ChatClient:
        if not self.chat_completions_url and self.ask is None:
            raise ValueError("no model endpoint: OSMOSIS_CHAT_COMPLETIONS_URL is not set and none was given")
        return ChatClient(
            self.chat_completions_url,
            api_key=self.api_key,
            ask=self.ask,
            timeout_s=timeout_s,
            max_attempts=max_attempts,
        )

    def __enter__(self) -> "WorkflowRollout":
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())


def get_rollout_context() -> WorkflowRollout | None:
    """Return the rollout this code runs in, or None outside of one."""
    return _current.get()


class _Context:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def artifacts_dir(self) -> Path | None:
        """Return the folder for this rollout's files, made on first use; None when nothing is kept."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    @property
    def sandbox(self) -> Sandbox:
        """Return a sandbox for the model's code: `await ctx.sandbox.run(["python", "main.py"], files={...})`."""
        return get_sandbox()


class AgentWorkflowContext(_Context, Generic[TConfig]):
    def __init__(
        self,
        prompt: list[Message],
        config: TConfig | None = None,
        metadata: JsonObject | None = None,
        artifacts_dir: Path | None = None,
        *,
        rollout: WorkflowRollout | None = None,
        prompts: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(artifacts_dir)
        self.prompt = prompt
        """The opening messages: the optional system prompt, then the user's."""
        self.config = config
        self.metadata = metadata or {}
        self.prompts = Prompts() if prompts is None else prompts
        """The texts of `prompts/NAME.md` beside the workflow, by name."""
        self._rollout = rollout

    @property
    def rollout(self) -> WorkflowRollout:
        """Return the running rollout; `RuntimeError` outside of one."""
        rollout = self._rollout or get_rollout_context()
        if rollout is None:
            raise RuntimeError("no rollout is running: this works only inside `AgentWorkflow.run`")
        return rollout

    def chat(self, *, timeout_s: float = 600.0, max_attempts: int = 4) -> ChatClient:
        """Return a client for the model of this rollout: `async with ctx.chat() as chat:`."""
        return self.rollout.chat(timeout_s=timeout_s, max_attempts=max_attempts)


class GraderContext(_Context):
    def __init__(
        self,
        label: str | None = None,
        sample: RolloutSample | None = None,
        project_path: Path | None = None,
        metadata: JsonObject | None = None,
        artifacts_dir: Path | None = None,
        *,
        config: Any = None,
        rollout_id: str = "",
    ) -> None:
        super().__init__(artifacts_dir)
        self.label = label
        """The row's ground truth."""
        self.sample = sample
        self.project_path = project_path
        """Folder of the rollout's code."""
        self.metadata = metadata or {}
        self.config = config
        self.rollout_id = rollout_id

    def set_reward(
        self, reward: float | Score, *, reason: str | None = None, parts: Mapping[str, float] | None = None
    ) -> None:
        """Set the sample's reward, its reason and its parts; a `Score` brings all three.

        `ValueError` unless it is a finite number, or when there is no sample."""
        if self.sample is None:
            raise ValueError("the rollout has no sample to set a reward on")
        if isinstance(reward, Score):
            if reward.value is None:
                raise ValueError("the Score has no value")
            reason, parts = reward.reason or reason, reward.parts or parts
            reward = reward.value
        self.sample.reward = reward
        self.sample.reason = reason
        self.sample.parts = {name: as_float(part) for name, part in parts.items()} if parts else None

    def get_samples(self) -> dict[str, RolloutSample]:
        """Return the one sample under the rollout's id, as graders written before 0.3 expect."""
        return {} if self.sample is None else {self.rollout_id: self.sample}

    def set_sample_reward(self, sample_id: str, reward: float) -> None:
        """Set the reward by sample id, as graders written before 0.3 do; `KeyError` for an unknown id."""
        if sample_id not in self.get_samples():
            raise KeyError(f"no sample {sample_id!r}: this rollout has {list(self.get_samples())}")
        self.set_reward(reward)


_conversations: "WeakKeyDictionary[WorkflowRollout, Conversation]" = WeakKeyDictionary()


class Conversation:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    def record(self, messages: list[Any]) -> None:
        if len(messages) >= len(self.messages):  # a shorter history is a side call of the framework
            self.messages = [copy.deepcopy(dict(message)) for message in messages]

    async def get_sample(self) -> RolloutSample:
        return RolloutSample(messages=self.messages)


def get_rollout() -> WorkflowRollout:
    rollout = get_rollout_context()
    if rollout is None:
        rollout = WorkflowRollout()
        if not rollout.chat_completions_url:
            raise RuntimeError("no rollout is running: this model works only inside AgentWorkflow.run")
    return rollout


def conversation_of(rollout: WorkflowRollout) -> Conversation:
    """Return the rollout's conversation, registered as its sample source unless the workflow has its own."""
    conversation = _conversations.get(rollout)
    if conversation is None:
        conversation = _conversations[rollout] = Conversation()
        try:
            rollout.set_sample_source(conversation)
        except ValueError:
            # The workflow registered a source of its own; that one decides what the sample is.
            pass
    return conversation


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
