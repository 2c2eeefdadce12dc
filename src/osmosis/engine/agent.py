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
from typing import TYPE_CHECKING, Any

from osmosis.base.light_dataclass import dataclass
from osmosis.errors import LoadError
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.grader import Grader, GraderClass
from osmosis.sdk.types import AgentWorkflowConfig
from osmosis.sdk.workflow import AgentWorkflow

from .loader import load_module, load_object, source_files, source_hash, source_of

if TYPE_CHECKING:
    from osmosis.sdk.backend import LocalBackend


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
        found = _discover(path, module)
    agent = _agent(path, found, module, _grader_class(grader, base_dir))
    agent.files = source_files(module, base_dir)
    return agent


def agent_of(found: object, name: str, base_dir: Path, *, grader: str | GraderClass | None = None) -> Agent:
    """The agent that an object is, as `load_agent` would have found it; `name` is what errors call it."""
    owner = found if inspect.isclass(found) else type(found)
    agent = _agent(name, found, sys.modules.get(owner.__module__), _grader_class(grader, base_dir))
    agent.files = source_of(found, base_dir)[0]
    return agent


def as_agent(found: object) -> Agent:
    """An agent from an object that is one already: an instance or class of an agent loop, a workflow, a backend."""
    if isinstance(found, Agent):
        return found
    return _agent(type(found).__name__, found, sys.modules.get(type(found).__module__), None)


def _agent(path: str, found: object, module: ModuleType | None, grader: GraderClass | None) -> Agent:
    if inspect.isclass(found) and issubclass(found, RolloutAgentLoop):
        found = _instance(path, found)
    if isinstance(found, RolloutAgentLoop):
        _refuse_grader(path, grader, "an agent loop, which is scored by score functions")
        return Agent(path, loop=found)
    backend = _backend()
    if isinstance(found, backend):
        _refuse_grader(path, grader, "a LocalBackend, which brings its own grader")
        return Agent(path, backend=found)
    if isinstance(found, AgentWorkflow):
        found = type(found)
    if inspect.isclass(found) and issubclass(found, AgentWorkflow):
        # A config without a limit: how many run at once is the plan's decision here.
        config = AgentWorkflowConfig(name=found.__name__)
        return Agent(path, backend=backend(found, config, grader or _only_grader(path, module)))
    from osmosis.sdk.harbor.backend import HarborBackend  # of all agents, the fewest are one

    if isinstance(found, HarborBackend):
        raise LoadError(
            f"{path} is a HarborBackend: its agent runs in sandboxes, which cannot call into this process",
            hint=f"serve it (`osmosis serve -m {path} --local`), then evaluate that with --server URL",
        )
    raise LoadError(
        f"{path} is a {type(found).__name__}, not an agent",
        hint="name a RolloutAgentLoop (instance or class), an AgentWorkflow class or a LocalBackend",
    )


def _backend() -> type[LocalBackend]:
    from osmosis.sdk.backend import LocalBackend  # the workflow's side: an agent loop starts without it

    return LocalBackend


def _refuse_grader(path: str, grader: GraderClass | None, what: str) -> None:
    if grader is not None:
        raise LoadError(f"{path} is {what}: {grader.__name__} would not be used", hint="leave out --grader")


def _instance(path: str, cls: type[RolloutAgentLoop]) -> RolloutAgentLoop:
    try:
        return cls()
    except Exception as error:
        raise LoadError(
            f"{path}: {cls.__name__}() needs arguments: {type(error).__name__}: {error}",
            hint=f"create the instance in the module and name that: agent_loop = {cls.__name__}(...)",
        ) from error


def _grader_class(grader: str | GraderClass | None, base_dir: Path) -> GraderClass | None:
    if not grader:
        return None
    if isinstance(grader, str):
        return _grader(load_object(grader, base_dir), grader)
    return _grader(grader, grader.__qualname__)


def _grader(found: object, path: str | None) -> GraderClass:
    if not (inspect.isclass(found) and issubclass(found, Grader)):
        raise LoadError(f"{path} is not a subclass of Grader", hint="name a subclass of Grader")
    return found


def _module_of(path: str, found: object, base_dir: Path) -> ModuleType:
    owner = getattr(found, "__module__", None) or type(found).__module__
    named = load_module(path.partition(":")[0], base_dir)
    return named if not isinstance(owner, str) or owner.startswith("osmosis.") else sys.modules.get(owner, named)


def _own(module: ModuleType, base: type) -> list[Any]:
    """The concrete subclasses of `base` that the module itself defines."""
    return [
        v
        for v in vars(module).values()
        if inspect.isclass(v) and issubclass(v, base) and v.__module__ == module.__name__ and not inspect.isabstract(v)
    ]


def _only_grader(path: str, module: ModuleType | None) -> GraderClass | None:
    graders = _own(module, Grader) if module else []
    if len(graders) > 1:
        names = ", ".join(g.__name__ for g in graders)
        raise LoadError(
            f"{path}: the module has several graders: {names}", hint="choose one with --grader module:Class"
        )
    return graders[0] if graders else None


def _discover(path: str, module: ModuleType) -> object:
    ready = [v for v in vars(module).values() if isinstance(v, (RolloutAgentLoop, _backend()))]
    found = list(dict.fromkeys(ready)) or _own(module, RolloutAgentLoop) or _own(module, AgentWorkflow)
    if len(found) == 1:
        return found[0]
    if not found:
        raise LoadError(f"{path} defines no agent", hint="write module:attribute, for example server:agent_loop")
    names = ", ".join(sorted(n for n, v in vars(module).items() if any(v is f for f in found)))
    raise LoadError(f"{path} defines several agents: {names}", hint=f"name one: {path}:{names.split(', ')[0]}")
