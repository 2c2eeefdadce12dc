"""Harbor's tasks, and a row's trial made of one. Everything here may block."""

import json
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from osmosis.base.files import tomllib
from osmosis.base.jsonable import JsonObject
from osmosis.records.protocol.messages import RolloutInit
from osmosis.records.run.rollout import Message
from osmosis.records.run.rows import TASK_KEYS
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
from osmosis.sdk.types import json_safe


@dataclass(frozen=True, slots=True)
class Tasks:
    folder: Path
    mode: Literal["template", "dataset"]

    @classmethod
    def open(cls, folder: Path, mode: str) -> "Tasks":
        if mode not in ("template", "dataset"):
            raise ValueError(f"task_mode is {mode!r}; it must be 'template' or 'dataset'")
        folder = folder.expanduser().resolve()
        if not folder.is_dir():
            raise ValueError(f"tasks_dir {folder} is not a folder")
        if not is_task(folder) and not any(is_task(child) for child in folder.iterdir()):
            raise ValueError(
                f"tasks_dir {folder} has no Harbor task: give a folder with a task.toml, or a folder of such folders"
            )
        return cls(folder, "template" if mode == "template" else "dataset")

    def of_row(self, metadata: Mapping[str, object]) -> Path:
        named = next((metadata[key] for key in TASK_KEYS if metadata.get(key)), None)
        if named is None or (self.mode == "template" and is_task(self.folder)):
            if is_task(self.folder):
                return self.folder
            tasks = sorted(child for child in self.folder.iterdir() if is_task(child))
            if self.mode == "template" and len(tasks) == 1:
                return tasks[0]
            names = ", ".join(path.name for path in tasks[:5])
            raise ValueError(
                f"the row does not name a task: tasks_dir {self.folder} has {len(tasks)} ({names}), so its metadata "
                f"needs one of the keys {', '.join(TASK_KEYS)}"
            )
        path = (self.folder / str(named)).resolve()
        if not path.is_relative_to(self.folder):
            raise ValueError(f"the row's task {str(named)!r} is outside tasks_dir {self.folder}")
        if not is_task(path):
            raise ValueError(f"the row's task {str(named)!r} is not in tasks_dir {self.folder}: no task.toml in {path}")
        return path


def is_task(folder: Path) -> bool:
    return (folder / "task.toml").is_file()


def has_tests(task: Path) -> bool:
    if any(any(task.glob(pattern)) for pattern in ("tests/test.*", "steps/*/tests/test.*")):
        return True
    config = tomllib.loads((task / "task.toml").read_text(encoding="utf-8"))
    return bool((config.get("verifier") or {}).get("environment"))


def instruction_of(task: Path, init: RolloutInit) -> "Instruction":
    path = task / "instruction.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else None
    return from_row(init.initial_messages, init.metadata or {}, text)


def copy_task(task: Path, into: Path) -> Path:
    copy = into / task.name
    shutil.copytree(task, copy, symlinks=True)
    return copy


def put_row(copy: Path, init: RolloutInit, instruction: "Instruction") -> None:
    for step in copy.glob("steps/*/instruction.md"):
        rendered = from_row(init.initial_messages, init.metadata or {}, step.read_text(encoding="utf-8"))
        step.write_text(rendered.text, encoding="utf-8")
    (copy / "instruction.md").write_text(instruction.text, encoding="utf-8")
    row = {
        "rollout_id": init.rollout_id,
        "label": init.label,
        "metadata": json_safe(init.metadata or {}, "metadata"),
        "messages": json_safe(init.initial_messages, "messages"),
    }
    body = json.dumps(row, ensure_ascii=False, indent=1) + "\n"
    for folder in (copy / "tests", copy / "solution", *copy.glob("steps/*/tests"), *copy.glob("steps/*/solution")):
        if folder.is_dir():
            (folder / "osmosis_row.json").write_text(body, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Instruction:
    messages: list[Message]  # For a workflow: the row's messages, with the task's words in the user's last one
    text: str


def from_row(messages: list[Message], metadata: Mapping[str, object], template: str | None) -> Instruction:
    prompt = _last_user(messages)
    text = template or ""
    if "{{" in text or "{%" in text:
        text = _render(text, messages, metadata).strip()
    elif text.strip():
        text = f"{text.strip()}\n\n{prompt}".strip()
    else:
        text = prompt
    if not text.strip():
        raise ValueError("the row has no prompt and the template's instruction.md adds none, so there is no task")
    names_system = template is not None and "system_prompt" in template
    earlier = [dict(message) for message in messages]
    if earlier and earlier[-1].get("role") == "user":
        earlier.pop()
    rendered = [*earlier, {"role": "user", "content": text}]
    lines = [
        text_of(m) if _is_system(m) else f"{m.get('role')}: {text_of(m)}"
        for m in earlier
        if not (names_system and _is_system(m))
    ]
    return Instruction(rendered, "\n\n".join([*filter(None, lines), text]))


def under_task(messages: list[Message], text: str) -> list[Message]:
    return [*(dict(m) for m in messages if _is_system(m)), {"role": "user", "content": text}]


def text_of(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and part.get("text"))
    return "" if content is None else str(content)


def _is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")


def _last_user(messages: list[Message]) -> str:
    return next((text_of(m) for m in reversed(messages) if m.get("role") == "user"), "")


def _render(template: str, messages: list[Message], metadata: Mapping[str, object]) -> str:
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import SandboxedEnvironment

    values = {
        "prompt": _last_user(messages),
        "system_prompt": "\n\n".join(text_of(m) for m in messages if _is_system(m)),
        "messages": messages,
        "metadata": metadata,
    }
    try:
        return SandboxedEnvironment(undefined=StrictUndefined).from_string(template).render(values)
    except TemplateError as exc:
        raise ValueError(
            f"instruction.md cannot be rendered for this row: {exc}; available names: {', '.join(values)}"
        ) from exc


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
