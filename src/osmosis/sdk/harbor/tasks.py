"""Which Harbor task a rollout is, and the folder it runs from: an existing one, or a copy rendered for one row.

A copy is what has the row in it (`tests/osmosis_row.json`, `solution/osmosis_row.json`): Harbor puts `tests/` into the
sandbox when the agent is done, and `solution/` only for the oracle. A name in a row never leads out of `tasks_dir`.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from osmosis.records.wire import RolloutInit
from osmosis.sdk.types import json_safe

from .instruction import Instruction, from_row

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TASK_KEYS = ("task_name", "task", "task_id", "task_path", "harbor_task")
"""The keys of a row's metadata that may name its task; the first one that is there counts."""
ROW_FILE = "osmosis_row.json"

TaskMode = Literal["template", "dataset"]


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of one backend."""

    folder: Path
    mode: TaskMode

    @classmethod
    def open(cls, folder: Path, mode: str) -> Tasks:
        """`ValueError` when the mode is neither, or the folder holds no task."""
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
        """The folder of the row's task; `ValueError` when the row names none, or one that is not there."""
        named = next((metadata[key] for key in TASK_KEYS if metadata.get(key)), None)
        if named is None or (self.mode == "template" and is_task(self.folder)):
            return self._only()
        path = (self.folder / str(named)).resolve()
        if not path.is_relative_to(self.folder):
            raise ValueError(f"the row's task {str(named)!r} is outside tasks_dir {self.folder}")
        if not is_task(path):
            raise ValueError(f"the row's task {str(named)!r} is not in tasks_dir {self.folder}: no task.toml in {path}")
        return path

    def _only(self) -> Path:
        if is_task(self.folder):
            return self.folder
        found = sorted(child for child in self.folder.iterdir() if is_task(child))
        if self.mode == "template" and len(found) == 1:
            return found[0]
        names = ", ".join(path.name for path in found[:5])
        raise ValueError(
            f"the row does not name a task: tasks_dir {self.folder} has {len(found)} ({names}), so its metadata "
            "needs one of "
            f"the keys {', '.join(TASK_KEYS)}"
        )


def is_task(folder: Path) -> bool:
    return (folder / "task.toml").is_file()


def has_tests(task: Path) -> bool:
    """Whether Harbor has something to verify with: scripts of the task or of one of its steps, or an image's own."""
    if any(any(task.glob(pattern)) for pattern in ("tests/test.*", "steps/*/tests/test.*")):
        return True
    config = tomllib.loads((task / "task.toml").read_text(encoding="utf-8"))
    return bool((config.get("verifier") or {}).get("environment"))


def instruction_of(task: Path, init: RolloutInit) -> Instruction:
    """What the agent of a template is told for this row; `ValueError` when nothing."""
    path = task / "instruction.md"
    words = path.read_text(encoding="utf-8") if path.is_file() else None
    return from_row(init.initial_messages, init.metadata or {}, words)


def copy_task(task: Path, into: Path) -> Path:
    """A copy of `task` in `into`, under its own name: images are cached by it."""
    copy = into / task.name
    shutil.copytree(task, copy, symlinks=True)
    return copy


def put_row(copy: Path, init: RolloutInit, instruction: Instruction) -> None:
    """Writes the row into a copied task."""
    for step in copy.glob("steps/*/instruction.md"):
        told = from_row(init.initial_messages, init.metadata or {}, step.read_text(encoding="utf-8"))
        step.write_text(told.text, encoding="utf-8")
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
            (folder / ROW_FILE).write_text(body, encoding="utf-8")
