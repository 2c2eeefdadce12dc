import asyncio
import json
import math
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis.base.files import read_object
from osmosis.base.jsonable import JsonObject
from osmosis.base.redact import Redactor
from osmosis.records.protocol.messages import ARTIFACT_VARIABLE, RolloutInit, check_rollout_id
from osmosis.records.run.rollout import Category, Failure, Message, Phase
from osmosis.sdk import backend
from osmosis.sdk.backend import ExecutionResult, with_failure
from osmosis.sdk.classify import describe, traceback_tail, wire_category
from osmosis.sdk.harbor import settings
from osmosis.sdk.harbor.entrypoint import RESULT_FILE, TRAJECTORY_FILE
from osmosis.sdk.harbor.handoff import close_ticket, code_of, describe_config
from osmosis.sdk.harbor.trials import AGENT_GRACE_S, Preparation, PreparedTrial, Tasks, text_of
from osmosis.sdk.messages import folder_of
from osmosis.sdk.types import AgentWorkflowConfig, GraderConfig, RolloutSample
from osmosis.sdk.workflow import GraderClass, WorkflowClass

TIMEOUTS = {
    "AgentTimeoutError": Phase.AGENT,
    "AgentSetupTimeoutError": Phase.SETUP,
    "EnvironmentStartTimeoutError": Phase.SETUP,
    "VerifierTimeoutError": Phase.SCORE,
}
_ERRORS_BY_CATEGORY = {
    Category.RATE_LIMIT: ("ApiRateLimitError", "ApiUsageLimitError", "RateLimitError"),
    Category.SERVER_ERROR: (
        *("ApiInternalServerError", "ApiOverloadedError", "ApiResponseStalledError", "UnknownApiError"),
        *("InternalServerError", "ServiceUnavailableError"),
    ),
    Category.CONNECTION: ("ApiConnectionClosedError", "NetworkConnectionError", "APIConnectionError"),
    Category.CONTEXT_LENGTH: ("ContextWindowExceededError", "ContextLengthExceededError"),
    Category.AUTH: ("AgentAuthenticationError", "AuthenticationError", "PermissionDeniedError"),
    Category.MODEL_NOT_FOUND: ("ModelNotFoundError", "ApiProviderResourceNotFoundError", "NotFoundError"),
    Category.BAD_REQUEST: ("BadRequestError",),
}
MODEL_ERRORS = {name: category for category, names in _ERRORS_BY_CATEGORY.items() for name in names}
VERIFIER_ERRORS = {
    *("RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"),
    *("AddTestsDirError", "DownloadVerifierDirError"),
}
OUTPUT_TAIL = 2000


@dataclass(frozen=True, slots=True)
class FinishedTrial:
    result: Any
    folder: Path
    prompt: list[Message]
    workflow: bool
    graded: bool

    @property
    def agent_folders(self) -> list[Path]:
        steps = [self.folder / "steps" / step.step_name / "agent" for step in self.result.step_results or ()]
        return steps or [self.folder / "agent"]


def build_result(trial: FinishedTrial) -> ExecutionResult:
    records = [read_result(folder / RESULT_FILE) for folder in trial.agent_folders] if trial.workflow else []
    left = [record for record in records if record is not None]
    samples = [record["sample"] for record in left if record.get("sample")]
    if samples:
        sample = _join_steps(samples)
    else:
        messages = [m for folder in trial.agent_folders for m in read_messages(folder / TRAJECTORY_FILE)]
        sample = RolloutSample(messages=messages or trial.prompt)
    prompt, cached, completion, cost = trial.result.compute_token_cost_totals()
    usage = {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": completion, "cost_usd": cost}
    sample.metrics.update({name: value for name, value in usage.items() if value is not None})
    sample.extra_fields["harbor"] = _facts(trial)
    result = ExecutionResult("success", sample=sample)
    result.info = {key: value for record in left for key, value in (record.get("info") or {}).items()}
    failed = next((record for record in left if record.get("status") != "success"), None)
    if failed is not None and failed.get("failure"):
        failure = Failure.model_validate(failed["failure"])
        with_failure(result, failure, str(failed.get("err_category") or wire_category(failure)))
        result.status = "cancelled" if failed.get("status") == "cancelled" else "failure"
        return result
    failure_found = _failure(trial)
    if failure_found is not None:
        return with_failure(result, failure_found, wire_category(failure_found))
    if trial.workflow and not left:
        missing = Failure(
            phase=Phase.AGENT,
            category=Category.AGENT_ERROR,
            message=f"the workflow succeeded, but its {RESULT_FILE} was not copied out of the sandbox",
            fix="keep the files under /logs/agent, and do not filter agent logs in environment_config",
        )
        return with_failure(result, missing, "agent_error")
    return _put_reward(trial, result)


def read_result(path: Path) -> JsonObject | None:
    return None if path.is_symlink() else read_object(path) or None


def _join_steps(samples: list[JsonObject]) -> RolloutSample:
    joined = RolloutSample(messages=[message for sample in samples for message in sample["messages"]])
    traces = [sample["trajectory_messages"] for sample in samples if sample.get("trajectory_messages") is not None]
    joined.trajectory_messages = [message for trace in traces for message in trace] if traces else None
    for sample in samples:
        joined.metrics.update(sample.get("metrics") or {})
        joined.extra_fields.update(sample.get("extra_fields") or {})
    joined.remove_sample = any(sample.get("remove_sample") for sample in samples)
    return joined


def _facts(trial: FinishedTrial) -> JsonObject:
    result = trial.result
    spans = {}
    for name in ("environment_setup", "agent_setup", "agent_execution", "verifier"):
        span = getattr(result, name)
        if span is not None and span.started_at and span.finished_at:
            spans[name] = round((span.finished_at - span.started_at).total_seconds(), 3)
    return {
        "task": result.task_name,
        "trial": result.trial_name,
        "agent": {"name": result.agent_info.name, "version": result.agent_info.version},
        "rewards": rewards_of(result),
        "seconds": spans,
    }


def rewards_of(result: Any) -> dict[str, float]:
    rewards = (result.verifier_result.rewards if result.verifier_result is not None else None) or {}
    return {name: float(value) for name, value in rewards.items() if math.isfinite(value)}


def _put_reward(trial: FinishedTrial, result: ExecutionResult) -> ExecutionResult:
    sample = result.sample
    assert sample is not None
    rewards = rewards_of(trial.result)
    sample.metrics.update({f"verifier_{name}": value for name, value in rewards.items()})
    if "reward" in rewards or len(rewards) == 1:
        sample.reward = rewards.get("reward", next(iter(rewards.values())))
        result.graded = True
    elif trial.result.verifier_result is not None and not trial.graded:
        named = ", ".join(sorted(rewards)) or "nothing"
        failure = Failure(
            phase=Phase.SCORE,
            category=Category.INVALID_SCORE,
            message=f"the task's verifier wrote {named}, but no key called reward",
            fix="write a key called reward into /logs/verifier/reward.json, or give HarborBackend a grader",
        )
        return with_failure(result, failure, "validation_error")
    return result


def _failure(trial: FinishedTrial) -> Failure | None:
    result = trial.result
    raised = result.exception_info
    at = result
    for step in result.step_results or ():
        if raised is None and step.exception_info is not None:
            raised, at = step.exception_info, step
    if raised is None:
        return None
    kind, text = raised.exception_type, raised.exception_message
    reached = Phase.AGENT if at.agent_execution is not None else Phase.SETUP
    is_verifying = at.verifier is not None or kind in VERIFIER_ERRORS
    phase = TIMEOUTS.get(kind) or (Phase.SCORE if is_verifying else reached)
    fix = f"the trial's files are in {trial.folder}"
    if kind in TIMEOUTS:
        category, fix = Category.TIMEOUT, "raise the time limit, or look for calls that block or never return"
    elif kind in MODEL_ERRORS and phase is Phase.AGENT:
        phase, category = Phase.MODEL, MODEL_ERRORS[kind]
    else:
        category = {Phase.SCORE: Category.SCORE_ERROR, Phase.SETUP: Category.UNKNOWN}.get(phase, Category.AGENT_ERROR)
    message = f"{kind}: {text}" if text else kind
    if phase is Phase.SCORE and (tail := _verifier_tail(trial.folder)):
        message = f"{message}; the verifier's output ends with: {tail}"
    return Failure(
        phase=phase,
        category=category,
        message=message,
        traceback="\n".join(raised.exception_traceback.rstrip().splitlines()[-30:]),
        fix=fix,
    )


def _verifier_tail(folder: Path) -> str:
    files = sorted(folder.glob("**/verifier/test-stdout.txt"))
    try:
        return files[-1].read_text(encoding="utf-8", errors="replace").strip()[-OUTPUT_TAIL:] if files else ""
    except OSError:
        return ""


ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def read_messages(path: Path) -> list[Message]:
    steps = (read_result(path) or {}).get("steps")
    messages: list[Message] = []
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and not step.get("is_copied_context"):
            messages.extend(_of_step(step))
    return messages


def _of_step(step: JsonObject) -> list[Message]:
    content = text_of({"content": step.get("message")})
    message: Message = {"role": ROLES.get(str(step.get("source")), "user"), "content": content}
    if step.get("reasoning_content"):
        message["reasoning_content"] = step["reasoning_content"]
    calls = [call for call in step.get("tool_calls") or () if isinstance(call, dict)]
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    messages = [message]
    call_ids = {call["id"] for call in message.get("tool_calls", ())}
    for result in (step.get("observation") or {}).get("results") or ():
        source = result.get("source_call_id")
        content = text_of(result)
        if source in call_ids:
            messages.append({"role": "tool", "tool_call_id": source, "content": content})
        elif len(call_ids) == 1:
            messages.append({"role": "tool", "tool_call_id": next(iter(call_ids)), "content": content})
        elif content:
            # What the environment says without having been called is said by nobody but the user.
            messages.append({"role": "user", "content": content})
    return messages


def _call(call: Mapping[str, object]) -> JsonObject:
    arguments = call.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    function = {"name": str(call.get("function_name") or ""), "arguments": written}
    return {"id": str(call.get("tool_call_id") or ""), "type": "function", "function": function}


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
