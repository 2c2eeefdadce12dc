"""Runs workflows and graders in this process: one `execute` per rollout, a limit on how many run at once.

Whatever user code does, `execute` returns one `ExecutionResult`; only its caller's own cancellation passes through.
It opens no port and sends nothing: the rollout server and the engine do that around it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osmosis.base.plain_json import own_copy
from osmosis.records.rollout import Phase
from osmosis.records.wire import ARTIFACT_VARIABLE, RolloutInit
from osmosis.records.wire_checks import check_rollout_id

from .calls import SelfCancelled, run_with_deadline
from .chat import ChatTransport
from .context import AgentWorkflowContext, WorkflowRollout
from .driven import LimitReached
from .execution import (
    DEFAULT_MAX_CONCURRENT as DEFAULT_MAX_CONCURRENT,
)
from .execution import (
    ExecutionResult as ExecutionResult,
)
from .execution import (
    OnState,
    Slots,
    cancelled_result,
    failed_result,
    folder_of,
    limit_of,
    nobody,
    resolve_class,
)
from .grader import GraderClass
from .grading import Grading
from .rollout_sandbox import Opening, sandbox_while
from .sandbox_opening import opening_from
from .types import AgentWorkflowConfig, GraderConfig, RolloutSample
from .workflow import AgentWorkflow, AgentWorkflowOutput, WorkflowClass


class LocalBackend:
    """Runs rollouts in this process.

    `workflow` and `grader` are classes or `"module:Class"` strings; one instance of each is made per rollout with
    its config. At most `max_concurrent` rollouts run at once: the config's limit, 4 without a config, None = no
    limit. Waiting for a slot does not count against a rollout's time limits.
    """

    def __init__(
        self,
        workflow: WorkflowClass | str,
        workflow_config: AgentWorkflowConfig | None = None,
        grader: GraderClass | str | None = None,
        grader_config: GraderConfig | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.workflow: WorkflowClass = resolve_class(workflow, AgentWorkflow)
        self.workflow_config = workflow_config
        self.max_concurrent = limit_of(workflow_config)
        # The variable is set by whoever starts the rollout's process; user code constructs this without one.
        self._environ = os.environ if environ is None else environ
        root = self._environ.get(ARTIFACT_VARIABLE)
        self.artifact_root = Path(root) if root else Path("~/.osmosis").expanduser()
        self.project_path = folder_of(self.workflow)
        self._grading = None if grader is None else Grading(grader, grader_config, self.project_path)
        self.grader: GraderClass | None = None if self._grading is None else self._grading.grader
        self.grader_config = grader_config
        self.slots = Slots(self.max_concurrent)

    async def execute(
        self,
        init: RolloutInit,
        *,
        on_state: OnState | None = None,
        transport: ChatTransport | None = None,
    ) -> ExecutionResult:
        """Runs the workflow, then the grader (when there is one, `init.grade`, and a label or metadata).

        `on_state` hears queued, running, grading. `transport` answers `ctx.chat()` without HTTP. Cancelling the
        caller cancels user code and passes through; everything else is a result.
        """
        tell = on_state or nobody
        return await self.slots.run(lambda: self._run(init, tell, transport), tell)

    def _sandbox(self, init: RolloutInit) -> Opening:
        """Where this rollout's sandbox is made, unless whoever evaluates it has said so already."""
        return opening_from(self._environ, init.chat_completions_url, init.llm_api_key or init.controller_api_key)

    async def _run(self, init: RolloutInit, tell: OnState, transport: ChatTransport | None) -> ExecutionResult:
        rollout = WorkflowRollout(
            init.chat_completions_url,
            init.llm_api_key or init.controller_api_key or "",
            init.rollout_id or "",
            transport=transport,
        )
        async with sandbox_while(self._sandbox(init)):
            return await self._sandboxed(init, rollout, tell)

    async def _sandboxed(self, init: RolloutInit, rollout: WorkflowRollout, tell: OnState) -> ExecutionResult:
        with rollout:
            try:
                output = await run_with_deadline(
                    self._work(init, rollout), init.agent_timeout_sec, name=f"workflow {init.rollout_id}"
                )
                sample = await _sample_of(output, rollout)
            except LimitReached as limit:
                output, sample = None, await _partial(rollout) or RolloutSample(messages=limit.messages)
            except SelfCancelled:
                return cancelled_result(Phase.AGENT)
            except Exception as exc:  # noqa: BLE001 - one rollout: user code may raise anything
                return failed_result(exc, Phase.AGENT, await _partial(rollout))
            sample.label = init.label if sample.label is None else sample.label
            info = output.info if isinstance(output, AgentWorkflowOutput) else {}
            result = ExecutionResult("success", sample=sample, info=info)
            if self._grading is None or not init.grade:
                return result
            return await self._grading.judge(init, result, artifacts_dir=self._artifacts(init), tell=tell)

    async def _work(self, init: RolloutInit, rollout: WorkflowRollout) -> Any:
        agent = self.workflow(self.workflow_config)
        context: AgentWorkflowContext[object] = AgentWorkflowContext(
            prompt=[{key: own_copy(value) for key, value in message.items()} for message in init.initial_messages],
            config=self.workflow_config,
            metadata={key: own_copy(value) for key, value in (init.metadata or {}).items()},
            artifacts_dir=self._artifacts(init),
            rollout=rollout,
        )
        return await agent.run(context)

    def _artifacts(self, init: RolloutInit) -> Path | None:
        if not init.rollout_id:
            return None
        return self.artifact_root / check_rollout_id(init.rollout_id) / "artifacts"


async def _sample_of(output: object, rollout: WorkflowRollout) -> RolloutSample:
    if output is None:
        sample = await rollout.get_sample()
        if sample is None:
            raise ValueError(
                "run() returned None and no conversation was registered: return the messages, or use an "
                "integration that registers them"
            )
        return sample
    if isinstance(output, AgentWorkflowOutput):
        return RolloutSample(messages=output.messages, metrics=dict(output.metrics))
    if isinstance(output, list) and all(isinstance(message, dict) for message in output):
        return RolloutSample(messages=output)
    raise TypeError(
        f"run() returned {type(output).__name__}; return a list of messages, an AgentWorkflowOutput or None"
    )


async def _partial(rollout: WorkflowRollout) -> RolloutSample | None:
    """What an integration has so far, so that a failed rollout still shows its conversation."""
    try:
        return await rollout.get_sample()
    except Exception:  # noqa: BLE001 - the rollout has failed already; its own error is the one to report
        return None
