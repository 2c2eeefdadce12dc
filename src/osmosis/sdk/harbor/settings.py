import importlib
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis.base.installation import extra_command
from osmosis.base.jsonable import JsonObject
from osmosis.sdk.backend import resolve_class
from osmosis.sdk.harbor.handoff import import_string
from osmosis.sdk.workflow import AgentWorkflow

DEFAULT_SETUP_S = 360.0
UTILITIES = ("oracle", "nop")  # Harbor's agents that call no model; the oracle needs its own name in the trial's config
MISSING = "HarborBackend needs the harbor library (Python 3.12 or later)"


@dataclass(frozen=True, slots=True)
class AgentChoice:
    workflow_class: type | None = None
    workflow: str | None = None
    native: JsonObject = field(default_factory=dict)

    @property
    def utility(self) -> bool:
        return self.native.get("name") in UTILITIES


def require_harbor() -> None:
    try:
        import harbor.trial.trial  # noqa: F401 - whether it can be imported is the question
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "harbor":
            raise
        raise ImportError(f"{MISSING}: {extra_command('harbor')}") from exc


def choose_agent(agent: object, code_dir: Path | None) -> AgentChoice:
    from harbor.agents.base import BaseAgent
    from harbor.models.agent.name import AgentName

    if agent is None:
        return AgentChoice(native={"name": "oracle"})
    if isinstance(agent, str):
        if agent in AgentName.values() or agent.startswith("acp:"):
            return AgentChoice(native={"name": agent})
        if ":" not in agent and "." not in agent:
            names = ", ".join(sorted(AgentName.values()))
            raise ValueError(f"{agent!r} is neither one of Harbor's agents nor a 'module:Class'; Harbor has {names}")
        resolved = _import_class(agent, code_dir)
        if resolved is None:
            return AgentChoice(workflow=agent)
    else:
        resolved = agent
    if inspect.isclass(resolved) and issubclass(resolved, BaseAgent):
        return AgentChoice(native={"import_path": f"{resolved.__module__}:{resolved.__qualname__}"})
    workflow = resolve_class(resolved, AgentWorkflow)
    return AgentChoice(workflow_class=workflow, workflow=import_string(workflow))


def environment_of(environment: object) -> Any:
    from harbor.models.environment_type import EnvironmentType
    from harbor.models.trial.config import EnvironmentConfig

    if environment is None:
        return EnvironmentConfig()
    if isinstance(environment, EnvironmentConfig):
        return environment
    if isinstance(environment, EnvironmentType):
        return EnvironmentConfig(type=environment)
    if isinstance(environment, str):
        return EnvironmentConfig.model_validate({"import_path" if ":" in environment else "type": environment})
    if isinstance(environment, Mapping):
        return EnvironmentConfig.model_validate(dict(environment))
    raise TypeError(
        f"environment_config is a {type(environment).__name__}: give the name of a Harbor environment, 'module:Class', "
        "a mapping, or Harbor's EnvironmentConfig"
    )


def split_orchestrator(orchestrator: object, tasks_dir: object) -> tuple[Any, Path]:
    if tasks_dir is None:
        if not isinstance(orchestrator, (str, os.PathLike)):
            raise TypeError("HarborBackend needs tasks_dir, the folder with the Harbor tasks")
        orchestrator, tasks_dir = None, orchestrator
    if orchestrator is not None and not (hasattr(orchestrator, "submit") and hasattr(orchestrator, "add_hook")):
        raise TypeError(
            f"the orchestrator is a {type(orchestrator).__name__}: give a harbor TrialQueue (or what has its submit "
            "and add_hook), or none"
        )
    if not isinstance(tasks_dir, (str, os.PathLike)):
        raise TypeError(f"tasks_dir is a {type(tasks_dir).__name__}, not a path")
    return orchestrator, Path(tasks_dir)


def _import_class(agent: str, code_dir: Path | None) -> Any:
    """Import the class; None when only the sandbox can, because the module needs what is not installed here."""
    module, _, name = agent.rpartition(":" if ":" in agent else ".")
    try:
        value: object = importlib.import_module(module)
    except ImportError as exc:
        if ":" in agent and code_dir is not None and _file_in(module, code_dir):
            return None
        raise ImportError(f"the agent {agent!r} cannot be imported: {exc}") from exc
    for part in name.split("."):
        if not hasattr(value, part):
            raise ValueError(f"the agent {agent!r} does not exist: {module} has no {name}")
        value = getattr(value, part)
    return value


def _file_in(module: str, code_dir: Path) -> bool:
    stem = Path(*module.split("."))
    roots = (code_dir, code_dir / "src")
    return any((r / stem.with_suffix(".py")).is_file() or (r / stem / "__init__.py").is_file() for r in roots)
