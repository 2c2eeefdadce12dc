import inspect
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.rollout import Message


def parse_tool_calls(message: Message) -> list[JsonObject]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def normalize_stop(stop: object) -> list[str] | None:
    if isinstance(stop, str):
        return [stop]
    if isinstance(stop, list):
        return [str(sequence) for sequence in stop]
    return None


def get_message_content(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def get_message_role(message: Message) -> str:
    role = message.get("role")
    return role if isinstance(role, str) else "unknown"


def is_assistant_message(message: Message) -> bool:
    return get_message_role(message) == "assistant"


def is_tool_message(message: Message) -> bool:
    return get_message_role(message) == "tool"


def is_user_message(message: Message) -> bool:
    return get_message_role(message) == "user"


def count_messages_by_role(messages: list[Message]) -> dict[str, int]:
    return dict(Counter(get_message_role(message) for message in messages))


def solution_of(messages: Sequence[Message]) -> str:
    for message in reversed(messages):
        if message.get("role") == "assistant" and message.get("content") is not None:
            content = message["content"]
            if isinstance(content, list):
                return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
            return str(content)
    return ""


FOLDER, SUFFIX = "prompts", ".md"
changed_prompts: ContextVar[Mapping[str, str] | None] = ContextVar("changed_prompts", default=None)
"""Texts by name that take the place of files, in the attempt that runs."""


class Prompts(Mapping[str, str]):
    """The texts of a folder by name, read each time. A variable `PROMPT_NAME` names another text for that name."""

    def __init__(self, agent: type | None = None) -> None:
        self._agent = agent

    @cached_property
    def folder(self) -> Path:
        """The folder beside the module of the agent's class, or above it in its project."""
        if self._agent is None:
            return Path(FOLDER)
        folder = folder_of(self._agent)
        parents = [folder, *folder.parents]
        top = next((i for i, parent in enumerate(parents) if (parent / "pyproject.toml").is_file()), 0)
        homes = [parent / FOLDER for parent in parents[: top + 1]]
        return next((home for home in homes if home.is_dir()), homes[0])

    def __getitem__(self, name: str) -> str:
        if (text := (changed_prompts.get() or {}).get(name)) is not None:
            return text.strip()
        path = self.folder / f"{os.environ.get(prompt_variable(name), name)}{SUFFIX}"
        try:
            return path.read_text("utf-8").strip()
        except FileNotFoundError:
            others = f"; there are: {', '.join(self)}" if len(self) else ""
            raise KeyError(f"there is no prompt {path.stem!r}: write {path}{others}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}")))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def prompt_variable(name: str) -> str:
    return "PROMPT_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def folder_of(cls: type) -> Path:
    """Return the folder of a class's module; of a class that no file defines, as in a notebook, the current one."""
    try:
        return Path(inspect.getfile(cls)).resolve().parent
    except (TypeError, OSError):
        return Path.cwd()
