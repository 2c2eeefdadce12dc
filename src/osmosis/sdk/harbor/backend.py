"""`HarborBackend`: each rollout is a trial of the Harbor library, its agent in a sandbox of its own.

It behaves towards the rollout server as `LocalBackend` does: one result per rollout, cancelled by cancelling, failures
as data. Where the sandbox is, Harbor decides by `environment_config`; this module starts none and keeps no secret in
any file of a trial.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...records.rollout import Category, Failure, Phase
from ...records.wire import ARTIFACT_VARIABLE, RolloutInit, check_rollout_id
from ..execution import ExecutionResult, OnState, Slots, failed_result, folder_of, limit_of, nobody, with_failure
from ..failures import describe, traceback_tail
from ..grader import Grader
from ..grading import Grading
from ..types import AgentWorkflowConfig, GraderConfig
from ..workflow import AgentWorkflow
from .code import Code, code_of, describe_config, pack
from .outcome import Finished, execution_of
from .sandbox import IN_CONTEXT, make_sdk, patch_dockerfile
from .scrub import clean_text, scrub
from .settings import choose_agent, environment_of, require_harbor, two_generations
from .tasks import Tasks, copy_task, has_tests, instruction_of, put_row
from .ticket import Delivery, Endpoint, Ticket, close_ticket, open_ticket

log = logging.getLogger(__name__)

AGENT_GRACE_S = 20.0
"""What starting the workflow's process in the sandbox may take, on top of the workflow's own time limit."""
START_ALLOWANCE_S = 660.0
"""Building and starting a sandbox (Harbor's own default limit is ten minutes), and taking it down."""
DEFAULT_SETUP_S = 360.0
CLEANUP_S = 120.0
"""How long a server that ends waits for sandboxes to be taken down."""


class AgentFailed(Exception):
    """Raised inside of a trial so that nothing is verified after an agent that failed; the trial keeps the reason."""


@dataclass(slots=True)
class _Trial:
    """One rollout on its way through Harbor."""

    init: RolloutInit
    ticket: Ticket
    config: Any
    """Harbor's `TrialConfig`."""
    scratch: Path
    """Holds the rendered task; gone with the rollout."""
    tell: OnState
    verifying_since: float | None = None

    @property
    def folder(self) -> Path:
        return Path(self.config.trials_dir) / str(self.config.trial_name)


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
        orchestrator: Any = None,
        tasks_dir: str | os.PathLike[str] | None = None,
        agent: type[AgentWorkflow[Any]] | type | str | None = None,
        native_agent_kwargs: Mapping[str, Any] | None = None,
        task_mode: str = "dataset",
        model_name: str = "openai/osmosis-rollout",
        grader: type[Grader[Any]] | str | None = None,
        workflow_config: AgentWorkflowConfig | None = None,
        grader_config: GraderConfig | None = None,
        code_dir: str | os.PathLike[str] | None = None,
        bundle: bool | str | os.PathLike[str] = True,
        environment_config: Any = None,
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
        self.model_name = model_name
        self.workflow_config = workflow_config
        self._native_kwargs = dict(native_agent_kwargs or {})
        if self._native_kwargs and (self.agent.workflow or self.agent.utility):
            raise ValueError("native_agent_kwargs are for Harbor's own agents that call a model")
        if patch_dockerfile_with_sdk and not self.agent.workflow:
            raise ValueError("patch_dockerfile_with_sdk is for an AgentWorkflow: Harbor's agents need no SDK")
        self.code = code_of(self.agent.workflow_class, code_folder) if self.agent.workflow else None
        self._config = describe_config(workflow_config, self.agent.workflow_class) if self.agent.workflow else None
        self.bundle = bundle if isinstance(bundle, bool) else Path(bundle).expanduser().resolve()
        if isinstance(self.bundle, Path) and not self.bundle.is_file():
            raise ValueError(f"bundle {self.bundle} is no file")
        self.environment_config = environment_of(environment_config)
        self._setup_timeout = _setup_timeout(agent_setup_timeout_sec, self.agent.native)
        self.max_queue_depth = _count("max_queue_depth", max_queue_depth)
        self.patch_dockerfile = patch_dockerfile_with_sdk
        self.cleanup_successful_trials = cleanup_successful_trials
        self.model_host = model_host
        # The variable is set by whoever starts the rollout's process; user code constructs this without one.
        root = (os.environ if environ is None else environ).get(ARTIFACT_VARIABLE)
        self.artifact_root = Path(root) if root else Path("~/.osmosis").expanduser()
        self.trials_dir = Path(trials_dir or self.artifact_root / "rollout_trials").expanduser().resolve()
        project = self.code.folder if self.code else None
        self._grading = None if grader is None else Grading(grader, grader_config, project)
        if self._grading is not None and project is None:
            self._grading.project_path = code_folder or folder_of(self._grading.grader)
        self.max_concurrent = limit_of(workflow_config)
        self._slots = Slots(self.max_concurrent)
        self.queued = 0
        self.running = 0
        self._delivery: Delivery | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._making = threading.Lock()
        self._unusable: str | None = None
        self._preflighted = False
        self._runs: set[asyncio.Task[Any]] = set()
        self._trials: dict[str, _Trial] = {}
        """By Harbor's name for them; how the hooks of a shared queue know ours."""
        if self.orchestrator is not None:
            self._hook(self.orchestrator)

    @property
    def overhead_s(self) -> float:
        """What a rollout may take beyond its own time limits: the sandbox has to be built, started and taken down."""
        return START_ALLOWANCE_S + self._setup_timeout + AGENT_GRACE_S

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
        tell("queued")
        queued_at = time.monotonic()
        self.queued += 1
        waiting = True
        try:
            async with self._slots.one():
                self.queued -= 1
                waiting = False
                self.running += 1
                try:
                    started = time.monotonic()
                    tell("running")
                    result = await self._run(init, tell)
                finally:
                    self.running -= 1
        finally:
            if waiting:
                self.queued -= 1
        result.queue_ms = (started - queued_at) * 1000
        result.duration_ms = (time.monotonic() - started) * 1000
        return result

    async def aclose(self) -> None:
        """Returns when the sandboxes of rollouts that were cancelled are gone, at the latest after `CLEANUP_S`."""
        ending = {task for task in self._runs if task is not asyncio.current_task()}
        if ending:
            await asyncio.wait(ending, timeout=CLEANUP_S)

    async def _run(self, init: RolloutInit, tell: OnState) -> ExecutionResult:
        try:
            trial = await asyncio.to_thread(self._prepare, init, tell)
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
                result = await self._grading.judge(budget, result, artifacts_dir=self._artifacts(init), tell=tell)
        except Exception as exc:  # noqa: BLE001 - one rollout: Harbor, an environment or a disk may raise anything
            return _redacted(failed_result(exc, Phase.SETUP, None), init)
        if result.status == "success" and self.cleanup_successful_trials:
            await asyncio.to_thread(shutil.rmtree, trial.folder, True)
        return _redacted(result, init)

    async def _through_harbor(self, trial: _Trial) -> ExecutionResult:
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

    def _prepare(self, init: RolloutInit, tell: OnState) -> _Trial:
        """Everything before Harbor: the task, the ticket, the trial's config. Blocks; raises when it cannot be."""
        self._preflight()
        task = self.tasks.of_row(init.metadata or {})
        verifies = has_tests(task)
        if not verifies and self._grading is None and init.grade:
            raise ValueError(
                f"the task {task.name} has no tests and HarborBackend has no grader: nothing gives a reward"
            )
        scratch = Path(tempfile.mkdtemp(dir=self._place(), prefix="task-"))
        try:
            endpoint = Endpoint(
                init.chat_completions_url,
                init.llm_api_key or init.controller_api_key or "",
                init.rollout_id or "",
                self.model_host,
            )
            ticket = Ticket(endpoint, messages=[dict(message) for message in init.initial_messages])
            if self.tasks.mode == "template":
                told = instruction_of(task, init)
                ticket.messages, ticket.instruction = told.messages, told.text
                task = copy_task(task, scratch)
                put_row(task, init, told)
            if self.agent.workflow:
                ticket.delivery = self._deliver()
                ticket.request = self._request(init)
                if self.patch_dockerfile:
                    task = task if self.tasks.mode == "template" else copy_task(task, scratch)
                    _patch(task, ticket.delivery.sdk)
            elif not self.agent.utility:
                ticket.native = {**self.agent.native, "model_name": self.model_name, "kwargs": self._native_kwargs}
            config = self._trial_config(init, task, ticket, verifies)
            open_ticket(ticket)
            return _Trial(init, ticket, config, scratch, tell)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

    def _trial_config(self, init: RolloutInit, task: Path, ticket: Ticket, verifies: bool) -> Any:
        from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig, VerifierConfig

        limit = init.agent_timeout_sec
        agent: dict[str, Any] = {"override_setup_timeout_sec": self._setup_timeout}
        if self.agent.utility:
            agent |= self.agent.native
        else:
            shown = "WorkflowAgent" if self.agent.workflow else "NativeAgent"
            agent |= {"import_path": f"{__package__}.agents:{shown}", "kwargs": {"ticket": ticket.id}}
            agent["model_name"] = self.model_name
        if limit is not None:
            agent["override_timeout_sec"] = limit + (AGENT_GRACE_S if self.agent.workflow else 0.0)
        named = re.sub(r"[^A-Za-z0-9._-]", "-", init.rollout_id or "rollout")[:48].strip("._-") or "rollout"
        return TrialConfig(
            task=TaskConfig(path=task),
            trial_name=f"{named}-{secrets.token_hex(4)}",
            trials_dir=self.trials_dir,
            agent=AgentConfig(**agent),
            environment=self.environment_config.model_copy(deep=True),
            verifier=VerifierConfig(
                override_timeout_sec=init.grader_timeout_sec, disable=not verifies or not init.grade
            ),
        )

    def _request(self, init: RolloutInit) -> dict[str, Any]:
        return {
            "workflow": self.agent.workflow,
            "config": self._config,
            "metadata": dict(init.metadata or {}),
            "extra_fields": init.extra_fields,
            "agent_timeout_sec": init.agent_timeout_sec,
        }

    def _preflight(self) -> None:
        """Harbor's own check of the environment, once; its words are the reason of every rollout that follows."""
        with self._making:
            if not self._preflighted:
                from harbor.environments.factory import EnvironmentFactory

                try:
                    EnvironmentFactory.run_preflight(self.environment_config.type, self.environment_config.import_path)
                except SystemExit as exc:  # how Harbor says that credentials or an engine are missing
                    self._unusable = str(exc.code)
                self._preflighted = True
        if self._unusable is not None:
            raise RuntimeError(f"the sandbox of environment_config cannot be used: {self._unusable}")

    def _place(self) -> Path:
        """A folder of this backend's own, gone with it."""
        with self._making:
            if self._scratch is None:
                self._scratch = tempfile.TemporaryDirectory(prefix="osmosis-harbor-")
        return Path(self._scratch.name)

    def _deliver(self) -> Delivery:
        """The SDK and the code, made once for all rollouts."""
        place = self._place()
        with self._making:
            if self._delivery is None:
                code = self.code or Code(Path(), "", ("",))
                project = self.code.folder if self.code else None
                identity = make_sdk(place / "sdk", place, project)
                sent: Path | None = self.bundle if isinstance(self.bundle, Path) else None
                if self.bundle is True and self.code is not None:
                    sent = place / "code.tar.gz"
                    sent.write_bytes(pack(self.code, [self.tasks.folder, self.trials_dir]))
                self._delivery = Delivery(place / "sdk", identity, sent, code.paths if sent is not None else ())
            return self._delivery

    def _close(self, trial: _Trial) -> None:
        """After the trial, however it ended: no secret in its files, nothing rendered left, artifacts in place."""
        close_ticket(trial.ticket.id)
        shutil.rmtree(trial.scratch, ignore_errors=True)
        if not trial.folder.is_dir():
            return
        scrub(trial.folder, filter(None, (trial.init.llm_api_key, trial.init.controller_api_key)))
        target = self._artifacts(trial.init)
        if target is not None:
            _keep(trial.folder, target)

    def _artifacts(self, init: RolloutInit) -> Path | None:
        if not init.rollout_id:
            return None
        return self.artifact_root / check_rollout_id(init.rollout_id) / "artifacts"


def _keep(folder: Path, target: Path) -> None:
    """What the agent published, and what the verifier wrote, where a rollout's artifacts are."""
    for source in sorted(folder.glob("**/artifacts/logs/artifacts")):
        if any(source.iterdir()):
            shutil.copytree(source, target, dirs_exist_ok=True)
    for source in sorted(folder.glob("**/verifier")):
        if source.is_dir() and any(source.iterdir()):
            shutil.copytree(source, target / "verifier", dirs_exist_ok=True)


def _patch(task: Path, sdk: Path) -> None:
    dockerfile = task / "environment" / "Dockerfile"
    if not dockerfile.is_file():
        raise ValueError(f"patch_dockerfile_with_sdk: the task {task.name} has no environment/Dockerfile to patch")
    dockerfile.write_text(patch_dockerfile(dockerfile.read_text(encoding="utf-8")), encoding="utf-8")
    shutil.copytree(sdk, dockerfile.parent / IN_CONTEXT, dirs_exist_ok=True)


def _redacted(result: ExecutionResult, init: RolloutInit) -> ExecutionResult:
    """A failed command of a sandbox is quoted with its variables in Harbor's error."""
    found = result.failure
    if found is None:
        return result
    known = [secret for secret in (init.llm_api_key, init.controller_api_key) if secret]
    trace = clean_text(found.traceback, known) if found.traceback else None
    clean = found.model_copy(update={"message": clean_text(found.message, known), "traceback": trace})
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


def _setup_timeout(given: float | None, native: dict[str, Any]) -> float:
    if given is not None:
        if given <= 0:
            raise ValueError(f"agent_setup_timeout_sec is {given}: it is a number of seconds above 0")
        return float(given)
    if not native:
        return DEFAULT_SETUP_S
    from .agents import setup_timeout_of

    return setup_timeout_of(native)


def _count(name: str, given: int | None) -> int | None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 0):
        raise ValueError(f"{name} is {given!r}: it is a whole number, 0 or more")
    return given
