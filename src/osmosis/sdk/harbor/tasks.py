import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from osmosis.base.files import tomllib
from osmosis.records.protocol.messages import RolloutInit
from osmosis.records.run.rollout import Message
from osmosis.records.run.rows import TASK_KEYS
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
    messages: list[Message]
    """For a workflow: the row's messages, with the task's words in the user's last one."""
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
