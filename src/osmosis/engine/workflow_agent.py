"""The agents that are no agent loops: a workflow with its grader, or a backend that is one already.

Says what else an object is that was named as an agent, and which agent a module means.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from osmosis.errors import LoadError
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.grader import Grader, GraderClass
from osmosis.sdk.types import AgentWorkflowConfig
from osmosis.sdk.workflow import AgentWorkflow

from .loader import load_object


def backend_of(
    path: str, found: object, module: ModuleType | None, grader: str | GraderClass | None, base_dir: Path
) -> LocalBackend:
    """What runs this workflow; the grader is the one that is given, else the only one of the module.

    Raises LoadError for an object that is no agent.
    """
    given = _grader_class(grader, base_dir)
    if isinstance(found, LocalBackend):
        if given is not None:
            raise LoadError(
                f"{path} is a LocalBackend, which brings its own grader: {given.__name__} would not be used",
                hint="leave out --grader",
            )
        return found
    if isinstance(found, AgentWorkflow):
        found = type(found)
    if inspect.isclass(found) and issubclass(found, AgentWorkflow):
        # A config without a limit: how many run at once is the plan's decision here.
        config = AgentWorkflowConfig(name=found.__name__)
        return LocalBackend(found, config, given or _only_grader(path, module))
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


def only_agent(path: str, module: ModuleType) -> object:
    """The one agent that a module defines: an instance, else a class. Raises LoadError for none and for several."""
    ready = [v for v in vars(module).values() if isinstance(v, (RolloutAgentLoop, LocalBackend))]
    found = list(dict.fromkeys(ready)) or _own(module, RolloutAgentLoop) or _own(module, AgentWorkflow)
    if len(found) == 1:
        return found[0]
    if not found:
        raise LoadError(f"{path} defines no agent", hint="write module:attribute, for example server:agent_loop")
    names = ", ".join(sorted(n for n, v in vars(module).items() if any(v is f for f in found)))
    raise LoadError(f"{path} defines several agents: {names}", hint=f"name one: {path}:{names.split(', ')[0]}")
