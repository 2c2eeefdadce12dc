"""What a workflow and a grader are handed: the prompt, the row's facts, the model endpoint, a folder for artifacts.

`WorkflowRollout` is the running rollout itself (generation 0.3 calls it `RolloutContext`); it is found through a
context variable, so integrations need no argument. A context does no work of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from osmosis.base.json_types import JsonObject
from osmosis.base.numbers import as_float
from osmosis.records.rollout import Message, Score

from .chat import ChatClient, ChatTransport
from .rollout_sandbox import Sandbox, get_sandbox
from .types import RolloutSample

TConfig = TypeVar("TConfig")

_current: ContextVar[WorkflowRollout | None] = ContextVar("osmosis_workflow_rollout", default=None)


@runtime_checkable
class SampleSource(Protocol):
    """Whoever holds the conversation of a rollout and can hand it over as a sample."""

    async def get_sample(self) -> RolloutSample: ...


class WorkflowRollout:
    """The running rollout: which endpoint answers for the model, with which key, under which id.

    Values left out come from `OSMOSIS_CHAT_COMPLETIONS_URL`, `OSMOSIS_API_KEY` and `OSMOSIS_ROLLOUT_ID`, which is
    how a rollout in a process of its own learns them. As a context manager it becomes the current rollout.
    """

    def __init__(
        self,
        chat_completions_url: str | None = None,
        api_key: str | None = None,
        rollout_id: str | None = None,
        *,
        transport: ChatTransport | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        # User code constructs this without an environment to pass: the process's own is the documented source.
        known = os.environ if environ is None else environ
        self.chat_completions_url = chat_completions_url or known.get("OSMOSIS_CHAT_COMPLETIONS_URL", "")
        self.api_key = api_key if api_key is not None else known.get("OSMOSIS_API_KEY")
        self.rollout_id = rollout_id or known.get("OSMOSIS_ROLLOUT_ID", "")
        self.transport = transport
        self._source: SampleSource | None = None
        self._tokens: list[Token[WorkflowRollout | None]] = []

    def set_sample_source(self, source: SampleSource) -> None:
        """Registers who hands over the sample; `ValueError` the second time."""
        if self._source is not None:
            raise ValueError("this rollout already has a sample source: one conversation per rollout")
        self._source = source

    async def get_sample(self) -> RolloutSample | None:
        """The sample of the registered source; None when none is registered."""
        return None if self._source is None else await self._source.get_sample()

    def chat(self, *, timeout_s: float = 600.0, max_attempts: int = 4) -> ChatClient:
        """A client for this rollout's model endpoint: `async with rollout.chat() as chat:`."""
        if not self.chat_completions_url and self.transport is None:
            raise ValueError("no model endpoint: OSMOSIS_CHAT_COMPLETIONS_URL is not set and none was given")
        return ChatClient(
            self.chat_completions_url,
            api_key=self.api_key,
            transport=self.transport,
            timeout_s=timeout_s,
            max_attempts=max_attempts,
        )

    def __enter__(self) -> WorkflowRollout:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._tokens.pop())


def get_rollout_context() -> WorkflowRollout | None:
    """The rollout this code runs in, or None outside of one."""
    return _current.get()


class _Artifacts:
    """A folder that is made when it is first asked for, so that rollouts without artifacts leave none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def artifacts_dir(self) -> Path | None:
        """Where this rollout may keep files; None when nothing is kept."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder


class _Sandboxed:
    @property
    def sandbox(self) -> Sandbox:
        """Where code that a model wrote runs: `await ctx.sandbox.run(["python", "main.py"], files={...})`."""
        return get_sandbox()


class AgentWorkflowContext(_Artifacts, _Sandboxed, Generic[TConfig]):
    """What `AgentWorkflow.run` receives."""

    def __init__(
        self,
        prompt: list[Message],
        config: TConfig | None = None,
        metadata: JsonObject | None = None,
        artifacts_dir: Path | None = None,
        *,
        rollout: WorkflowRollout | None = None,
    ) -> None:
        super().__init__(artifacts_dir)
        self.prompt = prompt
        """The opening messages: the optional system prompt, then the user's."""
        self.config = config
        """The workflow's configuration."""
        self.metadata = metadata or {}
        """The row's metadata."""
        self._rollout = rollout

    @property
    def rollout(self) -> WorkflowRollout:
        """The running rollout; `RuntimeError` outside of one."""
        found = self._rollout or get_rollout_context()
        if found is None:
            raise RuntimeError("no rollout is running: this works only inside `AgentWorkflow.run`")
        return found

    def chat(self, *, timeout_s: float = 600.0, max_attempts: int = 4) -> ChatClient:
        """A client for the model of this rollout: `async with ctx.chat() as chat:`."""
        return self.rollout.chat(timeout_s=timeout_s, max_attempts=max_attempts)


class GraderContext(_Artifacts, _Sandboxed):
    """What `Grader.grade` receives."""

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
        """What the workflow left behind."""
        self.project_path = project_path
        """Folder of the rollout's code."""
        self.metadata = metadata or {}
        """The row's metadata."""
        self.config = config
        """The grader's configuration."""
        self.rollout_id = rollout_id

    def set_reward(
        self, reward: float | Score, *, reason: str | None = None, parts: Mapping[str, float] | None = None
    ) -> None:
        """Sets the sample's reward, and what people read beside it: why, and what it is made of. A `Score` brings all
        three. `ValueError` unless a finite number, or when there is no sample."""
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
        """The samples by id, as graders written before 0.3 expect: one, under the rollout's id."""
        return {} if self.sample is None else {self.rollout_id: self.sample}

    def set_sample_reward(self, sample_id: str, reward: float) -> None:
        """`set_reward` by sample id, as graders written before 0.3 call it; `KeyError` for an unknown id."""
        if sample_id not in self.get_samples():
            raise KeyError(f"no sample {sample_id!r}: this rollout has {list(self.get_samples())}")
        self.set_reward(reward)
