"""`HarborBackend`: each rollout is a trial of the Harbor library, its agent in a sandbox of its own.

It behaves towards the rollout server as `LocalBackend` does: one result per rollout, cancelled by cancelling, failures
as data. Where the sandbox is, Harbor decides by `environment_config`; this module starts none and keeps no secret in
any file of a trial.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osmosis.base.json_types import JsonObject
from osmosis.base.redact import Redactor
from osmosis.records.rollout import Category, Failure, Phase
from osmosis.records.wire import ARTIFACT_VARIABLE, RolloutInit
from osmosis.records.wire_checks import check_rollout_id
from osmosis.sdk.classify import describe, traceback_tail
from osmosis.sdk.execution import (
    ExecutionResult,
    OnState,
    Slots,
    failed_result,
    folder_of,
    limit_of,
    nobody,
    with_failure,
)
from osmosis.sdk.grader import GraderClass
from osmosis.sdk.grading import Grading
from osmosis.sdk.types import AgentWorkflowConfig, GraderConfig
from osmosis.sdk.workflow import WorkflowClass

from .code import code_of, describe_config
from .outcome import Finished, execution_of
from .preparing import AGENT_GRACE_S, Preparation, PreparedTrial
from .tasks import Tasks
from .ticket import close_ticket
from .trial_settings import DEFAULT_SETUP_S, Chosen, choose_agent, environment_of, require_harbor, two_generations

START_ALLOWANCE_S = 660.0
"""Building and starting a sandbox (Harbor's own default limit is ten minutes), and taking it down."""
CLEANUP_S = 120.0
"""How long a server that ends waits for sandboxes to be taken down."""


class AgentFailed(Exception):
    """Raised inside of a trial so that nothing is verified after an agent that failed; the trial keeps the reason."""


class HarborBackend:
    """Runs rollouts as Harbor trials.

    - `orchestrator`: a harbor `TrialQueue` that runs the trials (its concurrency and retries); none is needed.
    - `tasks_dir`: a Harbor task, or a folder of them. `task_mode="template"` copies one for every row and writes the
      row into the copy; `"dataset"` runs the one that the row's metadata names (`TASK_KEYS` of `tasks.py`).
    - `agent`: an `AgentWorkflow` (class or `"module:Class"`), the name of one of Harbor's agents, a Harbor agent class,
      or None for the oracle, which runs the task's own solution. `native_agent_kwargs` go to one of Harbor's agents,
      `model_name` is what it calls the model.
    - `grader`, `grader_config`: grade on this machine, after the task's verifier; its reward is on `ctx.sample` by
      then. Without a grader the verifier's reward is the reward.
    - `code_dir`: what the workflow needs, by default the folder its module is imported from. `bundle`: True packs and
      sends it, a path is sent instead (a `tar.gz`), False: the image has the code.
    - `environment_config`: which sandbox: a name (`"docker"`, `"daytona"`), `"module:Class"`, a mapping or Harbor's
      `EnvironmentConfig`.
    - `trials_dir`: where Harbor keeps its files, `<artifact root>/rollout_trials` unless given; those of trials that
      ended well are removed unless `cleanup_successful_trials` is False.
    - `patch_dockerfile_with_sdk`: build the SDK into the task's image instead of installing it in every trial.
    - `agent_setup_timeout_sec`: for installing agent or SDK in the sandbox. `max_queue_depth`: how many rollouts may
      wait; a rollout server answers 429 to the next.
    - `model_host`: what the sandbox calls this machine, put in place of a loopback host in the model's URL.

    Raises `ImportError` when harbor is not installed, `TypeError` and `ValueError` for arguments that cannot work.
    """

    def __init__(
        self,
        orchestrator: object = None,
        tasks_dir: str | os.PathLike[str] | None = None,
        agent: WorkflowClass | type | str | None = None,
        native_agent_kwargs: Mapping[str, object] | None = None,
        task_mode: str = "dataset",
        model_name: str = "openai/osmosis-rollout",
        grader: GraderClass | str | None = None,
        workflow_config: AgentWorkflowConfig | None = None,
        grader_config: GraderConfig | None = None,
        code_dir: str | os.PathLike[str] | None = None,
        bundle: bool | str | os.PathLike[str] = True,
        environment_config: object = None,
        trials_dir: str | os.PathLike[str] | None = None,
        cleanup_successful_trials: bool = True,
        patch_dockerfile_with_sdk: bool = False,
        agent_setup_timeout_sec: float | None = None,
        max_queue_depth: int | None = None,
        *,
        model_host: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        require_harbor()
        self.orchestrator, folder = two_generations(orchestrator, tasks_dir)
        self.tasks = Tasks.open(folder, task_mode)
        code_folder = None if code_dir is None else Path(code_dir).expanduser().resolve()
        self.agent = choose_agent(agent, code_folder)
        workflow = self.agent.workflow_class
        _check_agent(self.agent, native_agent_kwargs, patch_dockerfile_with_sdk)
        code = code_of(workflow, code_folder) if self.agent.workflow else None
        sent = _bundle(bundle)
        self.max_queue_depth = _count("max_queue_depth", max_queue_depth)
        self.cleanup_successful_trials = cleanup_successful_trials
        # The variable is set by whoever starts the rollout's process; user code constructs this without one.
        root = (os.environ if environ is None else environ).get(ARTIFACT_VARIABLE)
        self.artifact_root = Path(root) if root else Path("~/.osmosis").expanduser()
        self._keeps_artifacts = bool(root)
        self.trials_dir = Path(trials_dir or self.artifact_root / "rollout_trials").expanduser().resolve()
        project = code.folder if code else code_folder
        self._grading = None if grader is None else _grading_of(grader, grader_config, project)
        self._preparation = Preparation(
            tasks=self.tasks,
            agent=self.agent,
            code=code,
            config=describe_config(workflow_config, workflow) if self.agent.workflow else None,
            bundle=sent,
            native_kwargs=dict(native_agent_kwargs or {}),
            model_name=model_name,
            model_host=model_host,
            environment=environment_of(environment_config),
            trials_dir=self.trials_dir,
            setup_timeout_s=_setup_timeout(agent_setup_timeout_sec, self.agent.native),
            patch_dockerfile=patch_dockerfile_with_sdk,
            has_grader=self._grading is not None,
        )
        self.max_concurrent = limit_of(workflow_config)
        self.slots = Slots(self.max_concurrent)
        self._runs: set[asyncio.Task[object]] = set()
        self._trials: dict[str, PreparedTrial] = {}
        """By Harbor's name for them; how the hooks of a shared queue know ours."""
        if self.orchestrator is not None:
            self._hook(self.orchestrator)

    @property
    def overhead_s(self) -> float:
        """What a rollout may take beyond its own time limits: the sandbox has to be built, started and taken down."""
        return START_ALLOWANCE_S + self._preparation.setup_timeout_s + AGENT_GRACE_S

    async def execute(self, init: RolloutInit, *, on_state: OnState | None = None) -> ExecutionResult:
        """Runs one trial, then the grader (when there is one and `init.grade`).

        `on_state` hears queued, running, grading. Cancelling the caller stops the sandbox and passes through;
        everything else is a result.
        """
        tell = on_state or nobody
        task = asyncio.current_task()
        if task is not None:
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)
        return await self.slots.run(lambda: self._run(init, tell), tell)

    async def aclose(self) -> None:
        """Returns when the sandboxes of rollouts that were cancelled are gone, at the latest after `CLEANUP_S`."""
        ending = {task for task in self._runs if task is not asyncio.current_task()}
        if ending:
            await asyncio.wait(ending, timeout=CLEANUP_S)

    async def _run(self, init: RolloutInit, tell: OnState) -> ExecutionResult:
        try:
            trial = await asyncio.to_thread(self._preparation.trial, init, tell)
        except Exception as exc:  # noqa: BLE001 - one rollout: a row, a task or a disk may be anything
            return _not_started(exc)
        try:
            try:
                result = await self._through_harbor(trial)
                if result.sample is not None:
                    result.sample.label = init.label
            finally:
                await asyncio.shield(asyncio.to_thread(self._close, trial))
            if result.status == "success" and self._grading is not None and init.grade:
                budget = init
                if init.grader_timeout_sec is not None and trial.verifying_since is not None:
                    left = init.grader_timeout_sec - (time.monotonic() - trial.verifying_since)
                    budget = init.model_copy(update={"grader_timeout_sec": max(left, 0.001)})
                result = await self._grading.judge(budget, result, artifacts_dir=self._artifacts(trial), tell=tell)
        except Exception as exc:  # noqa: BLE001 - one rollout: Harbor, an environment or a disk may raise anything
            return _redacted(failed_result(exc, Phase.SETUP, None), init)
        if result.status == "success" and self.cleanup_successful_trials:
            await asyncio.to_thread(shutil.rmtree, trial.folder, True)
        return _redacted(result, init)

    async def _through_harbor(self, trial: PreparedTrial) -> ExecutionResult:
        """The trial from its config to its result; the files are read before they are scrubbed or removed."""
        from harbor.trial.trial import Trial

        name = str(trial.config.trial_name)
        self._trials[name] = trial
        try:
            if self.orchestrator is not None:
                finished = await self.orchestrator.submit(trial.config)
            else:
                made = await Trial.create(trial.config)
                self._hook(made)
                finished = await made.run()
        finally:
            self._trials.pop(name, None)
        over = Finished(
            finished,
            trial.folder,
            trial.ticket.messages or [dict(message) for message in trial.init.initial_messages],
            workflow=self.agent.workflow is not None,
            graded=self._grading is not None or not trial.init.grade,
        )
        return await asyncio.to_thread(execution_of, over)

    def _hook(self, target: Any) -> None:
        from harbor.trial.hooks import TrialEvent

        target.add_hook(TrialEvent.VERIFICATION_START, self._before_verification)

    async def _before_verification(self, event: Any) -> None:
        trial = self._trials.get(str(event.config.trial_name))
        if trial is None:
            return
        steps = event.result.step_results or ()
        if event.result.exception_info is not None or (steps and steps[-1].exception_info is not None):
            raise AgentFailed("the agent failed, so there is nothing to verify")
        trial.verifying_since = trial.verifying_since or time.monotonic()
        trial.tell("grading")

    def _close(self, trial: PreparedTrial) -> None:
        """After the trial, however it ended: no secret in its files, nothing rendered left, artifacts in place."""
        close_ticket(trial.ticket.id)
        shutil.rmtree(trial.scratch, ignore_errors=True)
        if not trial.folder.is_dir():
            return
        _redactor(trial.init).files(trial.folder)
        _keep(trial.folder, self._artifacts(trial))

    def _artifacts(self, trial: PreparedTrial) -> Path:
        """Where the rollout's artifacts go: with all others when somebody collects them, else with the trial."""
        if self._keeps_artifacts and trial.init.rollout_id:
            return self.artifact_root / check_rollout_id(trial.init.rollout_id) / "artifacts"
        return trial.folder / "kept"


def _keep(folder: Path, target: Path) -> None:
    """What the agent published, and what the verifier wrote, where a rollout's artifacts are. No links: in a sandbox
    they may point anywhere, and here they would point into this machine."""
    for source in sorted(folder.glob("**/artifacts/logs/artifacts")):
        if any(source.iterdir()):
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=_links)
    for source in sorted(folder.glob("**/verifier")):
        if source.is_dir() and not source.is_symlink() and any(source.iterdir()) and not source.is_relative_to(target):
            shutil.copytree(source, target / "verifier", dirs_exist_ok=True, ignore=_links)


def _links(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if os.path.islink(os.path.join(folder, name))}


def _redactor(init: RolloutInit) -> Redactor:
    return Redactor(filter(None, (init.llm_api_key, init.controller_api_key)))


def _redacted(result: ExecutionResult, init: RolloutInit) -> ExecutionResult:
    """A failed command of a sandbox is quoted with its variables in Harbor's error."""
    found = result.failure
    if found is None:
        return result
    clean = found.model_copy(update=_redactor(init).data({"message": found.message, "traceback": found.traceback}))
    result.failure, result.err_message, result.traceback = clean, clean.message, clean.traceback
    return result


def _not_started(exc: Exception) -> ExecutionResult:
    """A rollout that never got as far as Harbor: its row or its task is at fault, or this machine."""
    told = isinstance(exc, (ValueError, TypeError))
    failure = Failure(
        phase=Phase.SETUP,
        category=Category.BAD_REQUEST if told else Category.UNKNOWN,
        message=str(exc) if told or isinstance(exc, RuntimeError) else describe(exc),
        traceback=None if told else traceback_tail(exc),
    )
    return with_failure(ExecutionResult("failure"), failure, "validation_error" if told else "agent_error")


def _check_agent(agent: Chosen, native: Mapping[str, object] | None, patch_dockerfile: bool) -> None:
    if native and (agent.workflow or agent.utility):
        raise ValueError("native_agent_kwargs applies only to Harbor's own agents that call a model")
    if patch_dockerfile and not agent.workflow:
        raise ValueError(
            "patch_dockerfile_with_sdk applies only to an AgentWorkflow: Harbor's agents do not use the SDK"
        )


def _bundle(given: bool | str | os.PathLike[str]) -> bool | Path:
    if isinstance(given, bool):
        return given
    sent = Path(given).expanduser().resolve()
    if not sent.is_file():
        raise ValueError(f"bundle {sent} is not a file")
    return sent


def _grading_of(grader: GraderClass | str, config: GraderConfig | None, project: Path | None) -> Grading:
    """The grader on this machine, by default with the folder that its module is in."""
    grading = Grading(grader, config, project)
    if project is None:
        grading.project_path = folder_of(grading.grader)
    return grading


def _setup_timeout(given: float | None, native: JsonObject) -> float:
    if given is not None:
        if given <= 0:
            raise ValueError(f"agent_setup_timeout_sec is {given}; it must be a number of seconds above 0")
        return float(given)
    if not native:
        return DEFAULT_SETUP_S
    from .agents import setup_timeout_of

    return setup_timeout_of(native)


def _count(name: str, given: int | None) -> int | None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 0):
        raise ValueError(f"{name} is {given!r}; it must be a whole number, 0 or more")
    return given
