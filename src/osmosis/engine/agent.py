"""Finds what to run behind `module:attribute`, a file, or a module: an agent loop, or a workflow with its grader.

Makes the one object that `in_process` takes, and knows which source files it is made of, so that a resume can
tell whether the agent changed.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from osmosis.base.light_dataclass import dataclass
from osmosis.errors import LoadError
from osmosis.sdk.agent_loop import RolloutAgentLoop

from .loader import load_module, load_object, source_files, source_hash, source_of

if TYPE_CHECKING:
    from osmosis.sdk.backend import LocalBackend
    from osmosis.sdk.grader import GraderClass


@dataclass(slots=True)
class Agent:
    """What runs: exactly one of `loop` and `backend`."""

    name: str
    loop: RolloutAgentLoop | None = None
    backend: LocalBackend | None = None
    files: list[Path] = field(default_factory=list)
    """The source files it is made of, as far as they are the user's own."""

    @property
    def code_hash(self) -> str:
        return source_hash(self.files)

    @property
    def graded(self) -> bool:
        """Whether rollouts come back with a reward of their own."""
        return self.backend is not None and self.backend.grader is not None

    @property
    def kind(self) -> str:
        if self.loop is not None:
            return "agent loop"
        return "workflow and grader" if self.graded else "workflow"


def load_agent(path: str, base_dir: Path, *, grader: str | GraderClass | None = None) -> Agent:
    """The agent at `module:attribute`; a bare module or file is searched for the one agent it defines."""
    if ":" in path:
        found = load_object(path, base_dir)
        module = _module_of(path, found, base_dir)
    else:
        module = load_module(path, base_dir)
        found = module
    agent = _agent(path, found, module, grader, base_dir)
    agent.files = source_files(module, base_dir)
    return agent


def agent_of(found: object, name: str, base_dir: Path, *, grader: str | GraderClass | None = None) -> Agent:
    """The agent that an object is, as `load_agent` would have found it; `name` is what errors call it."""
    owner = found if inspect.isclass(found) else type(found)
    agent = _agent(name, found, sys.modules.get(owner.__module__), grader, base_dir)
    agent.files = source_of(found, base_dir)[0]
    return agent


def as_agent(found: object) -> Agent:
    """An agent from an object that is one already: an instance or class of an agent loop, a workflow, a backend."""
    if isinstance(found, Agent):
        return found
    return _agent(type(found).__name__, found, sys.modules.get(type(found).__module__), None, Path())


def _agent(
    path: str, found: object, module: ModuleType | None, grader: str | GraderClass | None, base_dir: Path
) -> Agent:
    """`found` is the module itself where the one agent that it defines is meant."""
    loop = _loop(path, found)
    if loop is None:
        from .workflow_agent import backend_of, only_agent  # the workflow's side: an agent loop starts without it

        if module is not None and found is module:
            found = only_agent(path, module)
            loop = _loop(path, found)
        if loop is None:
            return Agent(path, backend=backend_of(path, found, module, grader, base_dir))
    if grader:
        name = grader.rpartition(":")[2] if isinstance(grader, str) else grader.__name__
        raise LoadError(
            f"{path} is an agent loop, which is scored by score functions: {name} would not be used",
            hint="leave out --grader",
        )
    return Agent(path, loop=loop)


def _loop(path: str, found: object) -> RolloutAgentLoop | None:
    """The agent loop that an object is; None for anything else."""
    if not inspect.isclass(found):
        return found if isinstance(found, RolloutAgentLoop) else None
    if not issubclass(found, RolloutAgentLoop):
        return None
    try:
        return found()
    except Exception as error:
        raise LoadError(
            f"{path}: {found.__name__}() needs arguments: {type(error).__name__}: {error}",
            hint=f"create the instance in the module and name that: agent_loop = {found.__name__}(...)",
        ) from error


def _module_of(path: str, found: object, base_dir: Path) -> ModuleType:
    owner = getattr(found, "__module__", None) or type(found).__module__
    named = load_module(path.partition(":")[0], base_dir)
    return named if not isinstance(owner, str) or owner.startswith("osmosis.") else sys.modules.get(owner, named)
