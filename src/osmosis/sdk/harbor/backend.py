import asyncio
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osmosis.base.jsonable import JsonObject
from osmosis.base.redact import Redactor
from osmosis.records.protocol.messages import ARTIFACT_VARIABLE, RolloutInit, check_rollout_id
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.sdk import backend
from osmosis.sdk.classify import describe, traceback_tail
from osmosis.sdk.harbor import settings
from osmosis.sdk.harbor.handoff import close_ticket, code_of, describe_config
from osmosis.sdk.harbor.results import FinishedTrial, build_result
from osmosis.sdk.harbor.trials import AGENT_GRACE_S, Preparation, PreparedTrial, Tasks
from osmosis.sdk.messages import folder_of
from osmosis.sdk.types import AgentWorkflowConfig, GraderConfig
from osmosis.sdk.workflow import GraderClass, WorkflowClass

START_ALLOWANCE_S = 660.0
CLEANUP_S = 120.0


class AgentFailed(Exception):
    """Raised inside of a trial so that nothing is verified after an agent that failed."""


class HarborBackend:
    """Runs rollouts as Harbor trials; docs/sdk.md explains each argument. Raises `ImportError` when harbor is not
    installed, `TypeError` and `ValueError` for arguments that cannot work."""

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
        settings.require_harbor()
        self.orchestrator, folder = settings.split_orchestrator(orchestrator, tasks_dir)
        self.tasks = Tasks.open(folder, task_mode)
        code_folder = None if code_dir is None else Path(code_dir).expanduser().resolve()
        self.agent = settings.choose_agent(agent, code_folder)
        workflow = self.agent.workflow_class
        if native_agent_kwargs and (self.agent.workflow or self.agent.utility):
            raise ValueError("native_agent_kwargs applies only to Harbor's own agents that call a model")
        if patch_dockerfile_with_sdk and not self.agent.workflow:
            raise ValueError(
                "patch_dockerfile_with_sdk applies only to an AgentWorkflow: Harbor's agents do not use the SDK"
            )
        code = code_of(workflow, code_folder) if self.agent.workflow else None
        sent = _bundle(bundle)
        if max_queue_depth is not None and (type(max_queue_depth) is not int or max_queue_depth < 0):
            raise ValueError(f"max_queue_depth is {max_queue_depth!r}; it must be a whole number, 0 or more")
        self.max_queue_depth = max_queue_depth
        self.cleanup_successful_trials = cleanup_successful_trials
        # The variable is set by whoever starts the rollout's process; user code constructs this without one.
        root = (os.environ if environ is None else environ).get(ARTIFACT_VARIABLE)
        self.artifact_root = Path(root) if root else Path("~/.osmosis").expanduser()
        self._keeps_artifacts = bool(root)
        self.trials_dir = Path(trials_dir or self.artifact_root / "rollout_trials").expanduser().resolve()
        project = code.folder if code else code_folder
        self._grader_runner = None if grader is None else backend.GraderRunner(grader, grader_config, project)
        if self._grader_runner is not None and project is None:
            self._grader_runner.project_path = folder_of(self._grader_runner.grader)
        self._preparation = Preparation(
            tasks=self.tasks,
            agent=self.agent,
            code=code,
            config=describe_config(workflow_config, workflow) if self.agent.workflow else None,
            bundle=sent,
            native_kwargs=dict(native_agent_kwargs or {}),
            model_name=model_name,
            model_host=model_host,
            environment=settings.environment_of(environment_config),
            trials_dir=self.trials_dir,
            setup_timeout_s=_setup_timeout(agent_setup_timeout_sec, self.agent.native),
            patch_dockerfile=patch_dockerfile_with_sdk,
            has_grader=self._grader_runner is not None,
        )
        self.max_concurrent = backend.max_concurrent_of(workflow_config)
        self.slots = backend.Slots(self.max_concurrent)
        self._runs: set[asyncio.Task[object]] = set()
        self._trials: dict[str, PreparedTrial] = {}
        if self.orchestrator is not None:
            self._hook(self.orchestrator)

    @property
    def overhead_s(self) -> float:
        """Return the seconds beyond a rollout's own limits: the sandbox is built, started and taken down."""
        return START_ALLOWANCE_S + self._preparation.setup_timeout_s + AGENT_GRACE_S

    async def execute(self, init: RolloutInit, *, on_state: backend.OnState | None = None) -> backend.ExecutionResult:
        """Run one trial, then the grader (when there is one and `init.grade`). Cancelling the caller stops the sandbox
        and passes through; everything else is a result."""
        tell = on_state or backend.ignore_state
        task = asyncio.current_task()
        if task is not None:
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)
        return await self.slots.run(lambda: self._run(init, tell), tell)

    async def aclose(self) -> None:
        ending = {task for task in self._runs if task is not asyncio.current_task()}
        if ending:
            await asyncio.wait(ending, timeout=CLEANUP_S)

    async def _run(self, init: RolloutInit, tell: backend.OnState) -> backend.ExecutionResult:
        try:
            trial = await asyncio.to_thread(self._preparation.trial, init, tell)
        except Exception as exc:  # noqa: BLE001 - one rollout: a row, a task or a disk may be anything
            readable = isinstance(exc, (ValueError, TypeError))
            failure = Failure(
                phase=Phase.SETUP,
                category=Category.BAD_REQUEST if readable else Category.UNKNOWN,
                message=str(exc) if readable or isinstance(exc, RuntimeError) else describe(exc),
                traceback=None if readable else traceback_tail(exc),
            )
            return backend.with_failure(
                backend.ExecutionResult("failure"), failure, "validation_error" if readable else "agent_error"
            )
        try:
            try:
                result = await self._through_harbor(trial)
                if result.sample is not None:
                    result.sample.label = init.label
            finally:
                await asyncio.shield(asyncio.to_thread(self._close, trial))
            if result.status == "success" and self._grader_runner is not None and init.grade:
                task = backend.WorkflowTask.from_init(init)
                if task.grader_timeout_s is not None and trial.verifying_since is not None:
                    left_s = task.grader_timeout_s - (time.monotonic() - trial.verifying_since)
                    task.grader_timeout_s = max(left_s, 0.001)
                result = await self._grader_runner.grade(
                    task, result, artifacts_dir=self._artifacts(trial), on_state=tell
                )
        except Exception as exc:  # noqa: BLE001 - one rollout: Harbor, an environment or a disk may raise anything
            return _redacted(backend.failed_result(exc, Phase.SETUP, None), init)
        if result.status == "success" and self.cleanup_successful_trials:
            await asyncio.to_thread(shutil.rmtree, trial.folder, True)
        return _redacted(result, init)

    async def _through_harbor(self, trial: PreparedTrial) -> backend.ExecutionResult:
        from harbor.trial.trial import Trial

        name = str(trial.config.trial_name)
        self._trials[name] = trial
        try:
            if self.orchestrator is not None:
                finished = await self.orchestrator.submit(trial.config)
            else:
                harbor_trial = await Trial.create(trial.config)
                self._hook(harbor_trial)
                finished = await harbor_trial.run()
        finally:
            self._trials.pop(name, None)
        over = FinishedTrial(
            finished,
            trial.folder,
            trial.ticket.messages or [dict(message) for message in trial.init.initial_messages],
            workflow=self.agent.workflow is not None,
            graded=self._grader_runner is not None or not trial.init.grade,
        )
        return await asyncio.to_thread(build_result, over)

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
        close_ticket(trial.ticket.id)
        shutil.rmtree(trial.scratch, ignore_errors=True)
        if not trial.folder.is_dir():
            return
        _redactor(trial.init).files(trial.folder)
        _keep(trial.folder, self._artifacts(trial))

    def _artifacts(self, trial: PreparedTrial) -> Path:
        if self._keeps_artifacts and trial.init.rollout_id:
            return self.artifact_root / check_rollout_id(trial.init.rollout_id) / "artifacts"
        return trial.folder / "kept"


def _keep(folder: Path, target: Path) -> None:
    """Copy the files of agent and verifier, without links: a sandbox's would point into this machine."""
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


def _redacted(result: backend.ExecutionResult, init: RolloutInit) -> backend.ExecutionResult:
    failure = result.failure
    if failure is None:
        return result
    clean = failure.model_copy(
        update=_redactor(init).data({"message": failure.message, "traceback": failure.traceback})
    )
    result.failure, result.err_message, result.traceback = clean, clean.message, clean.traceback
    return result


def _bundle(bundle: bool | str | os.PathLike[str]) -> bool | Path:
    if isinstance(bundle, bool):
        return bundle
    sent = Path(bundle).expanduser().resolve()
    if not sent.is_file():
        raise ValueError(f"bundle {sent} is not a file")
    return sent


def _setup_timeout(seconds: float | None, native: JsonObject) -> float:
    if seconds is not None:
        if seconds <= 0:
            raise ValueError(f"agent_setup_timeout_sec is {seconds}; it must be a number of seconds above 0")
        return float(seconds)
    if not native:
        return settings.DEFAULT_SETUP_S
    from osmosis.sdk.harbor.agents import setup_timeout_of

    return setup_timeout_of(native)
