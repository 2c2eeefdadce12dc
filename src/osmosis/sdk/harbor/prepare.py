"""Prepare a row's trial for Harbor. Everything here may block."""

import re
import secrets
import shutil
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis.base.jsonable import JsonObject
from osmosis.records.protocol.messages import RolloutInit
from osmosis.sdk.backend import OnState
from osmosis.sdk.harbor.handoff import (
    IN_CONTEXT,
    Code,
    Delivery,
    Endpoint,
    Ticket,
    make_sdk,
    open_ticket,
    pack,
    patch_dockerfile,
)
from osmosis.sdk.harbor.settings import AgentChoice
from osmosis.sdk.harbor.tasks import Tasks, copy_task, has_tests, instruction_of, put_row

AGENT_GRACE_S = 20.0
"""Seconds for starting the workflow's process in the sandbox, on top of the workflow's own time limit."""


@dataclass(slots=True)
class PreparedTrial:
    init: RolloutInit
    ticket: Ticket
    config: Any
    scratch: Path
    tell: OnState
    verifying_since: float | None = None

    @property
    def folder(self) -> Path:
        return Path(self.config.trials_dir) / str(self.config.trial_name)


@dataclass
class Preparation:
    tasks: Tasks
    agent: AgentChoice
    code: Code | None
    config: JsonObject | None
    bundle: bool | Path
    native_kwargs: JsonObject
    model_name: str
    model_host: str | None
    environment: Any
    trials_dir: Path
    setup_timeout_s: float
    patch_dockerfile: bool
    has_grader: bool
    _making: threading.Lock = field(default_factory=threading.Lock)
    _scratch: tempfile.TemporaryDirectory[str] | None = None
    _delivery: Delivery | None = None
    _preflighted: bool = False
    _unusable: str | None = None

    def trial(self, init: RolloutInit, tell: OnState) -> PreparedTrial:
        with self._making:
            if not self._preflighted:
                from harbor.environments.factory import EnvironmentFactory

                try:
                    EnvironmentFactory.run_preflight(self.environment.type, self.environment.import_path)
                except SystemExit as exc:  # how Harbor says that credentials or an engine are missing
                    self._unusable = str(exc.code)
                self._preflighted = True
        if self._unusable is not None:
            raise RuntimeError(f"the sandbox in environment_config cannot be used: {self._unusable}")
        task = self.tasks.of_row(init.metadata or {})
        verifies = has_tests(task)
        if not verifies and not self.has_grader and init.grade:
            raise ValueError(
                f"the task {task.name} has no tests and HarborBackend has no grader: nothing gives a reward"
            )
        scratch = Path(tempfile.mkdtemp(dir=self._scratch_folder(), prefix="task-"))
        try:
            endpoint = Endpoint(
                init.chat_completions_url,
                init.llm_api_key or init.controller_api_key or "",
                init.rollout_id or "",
                self.model_host,
            )
            ticket = Ticket(endpoint, messages=[dict(message) for message in init.initial_messages])
            if self.tasks.mode == "template":
                instruction = instruction_of(task, init)
                ticket.messages, ticket.instruction = instruction.messages, instruction.text
                task = copy_task(task, scratch)
                put_row(task, init, instruction)
            if self.agent.workflow:
                ticket.delivery = self._deliver()
                ticket.request = {
                    "workflow": self.agent.workflow,
                    "config": self.config,
                    "metadata": dict(init.metadata or {}),
                    "extra_fields": init.extra_fields,
                    "agent_timeout_sec": init.agent_timeout_sec,
                }
                if self.patch_dockerfile:
                    task = task if self.tasks.mode == "template" else copy_task(task, scratch)
                    patch_task(task, ticket.delivery.sdk)
            elif not self.agent.utility:
                ticket.native = {**self.agent.native, "model_name": self.model_name, "kwargs": self.native_kwargs}
            config = self._trial_config(init, task, ticket, verifies)
            open_ticket(ticket)
            return PreparedTrial(init, ticket, config, scratch, tell)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

    def _trial_config(self, init: RolloutInit, task: Path, ticket: Ticket, verifies: bool) -> Any:
        from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig, VerifierConfig

        limit = init.agent_timeout_sec
        agent: JsonObject = {"override_setup_timeout_sec": self.setup_timeout_s}
        if self.agent.utility:
            agent |= self.agent.native
        else:
            class_name = "WorkflowAgent" if self.agent.workflow else "NativeAgent"
            agent |= {"import_path": f"{__package__}.agents:{class_name}", "kwargs": {"ticket": ticket.id}}
            agent["model_name"] = self.model_name
        if limit is not None:
            agent["override_timeout_sec"] = limit + (AGENT_GRACE_S if self.agent.workflow else 0.0)
        named = re.sub(r"[^A-Za-z0-9._-]", "-", init.rollout_id or "rollout")[:48].strip("._-") or "rollout"
        return TrialConfig(
            task=TaskConfig(path=task),
            trial_name=f"{named}-{secrets.token_hex(4)}",
            trials_dir=self.trials_dir,
            agent=AgentConfig(**agent),
            environment=self.environment.model_copy(deep=True),
            verifier=VerifierConfig(
                override_timeout_sec=init.grader_timeout_sec, disable=not verifies or not init.grade
            ),
        )

    def _scratch_folder(self) -> Path:
        with self._making:
            if self._scratch is None:
                self._scratch = tempfile.TemporaryDirectory(prefix="osmosis-harbor-")
        return Path(self._scratch.name)

    def _deliver(self) -> Delivery:
        scratch = self._scratch_folder()
        with self._making:
            if self._delivery is None:
                code = self.code or Code(Path(), "", ("",))
                identity = make_sdk(scratch / "sdk", scratch, self.code.folder if self.code else None)
                sent: Path | None = self.bundle if isinstance(self.bundle, Path) else None
                if self.bundle is True and self.code is not None:
                    sent = scratch / "code.tar.gz"
                    sent.write_bytes(pack(self.code, [self.tasks.folder, self.trials_dir]))
                self._delivery = Delivery(scratch / "sdk", identity, sent, code.paths if sent is not None else ())
            return self._delivery


def patch_task(task: Path, sdk: Path) -> None:
    dockerfile = task / "environment" / "Dockerfile"
    if not dockerfile.is_file():
        raise ValueError(f"patch_dockerfile_with_sdk: the task {task.name} has no environment/Dockerfile to patch")
    dockerfile.write_text(patch_dockerfile(dockerfile.read_text(encoding="utf-8")), encoding="utf-8")
    shutil.copytree(sdk, dockerfile.parent / IN_CONTEXT, dirs_exist_ok=True)
