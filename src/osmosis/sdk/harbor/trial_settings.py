"""What `HarborBackend` is told, checked and put into Harbor's own terms once, when it is made.

Every argument that cannot work is refused here, with a `TypeError` or `ValueError` that names it, before any rollout
has been accepted. Harbor itself is loaded here and nowhere above.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis.base.json_types import JsonObject
from osmosis.sdk.execution import resolve_class
from osmosis.sdk.workflow import AgentWorkflow

from .code import import_string

DEFAULT_SETUP_S = 360.0
"""What installing an agent or the SDK in a sandbox may take, as in Harbor."""
UTILITIES = ("oracle", "nop")
"""Harbor's agents that call no model; the oracle needs its own name in the trial's config."""
MISSING = "HarborBackend needs the harbor library (Python 3.12 or later): pip install 'osmosis-ai[harbor]'"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which agent runs: one of the two."""

    workflow_class: type | None = None
    """None for a workflow that only the sandbox can import."""
    workflow: str | None = None
    """`module:Class` as the sandbox imports it."""
    native: JsonObject = field(default_factory=dict)
    """`name` or `import_path` of one of Harbor's agents."""

    @property
    def utility(self) -> bool:
        return self.native.get("name") in UTILITIES


def require_harbor() -> None:
    """`ImportError` that says what to install when Harbor is not there."""
    try:
        import harbor.trial.trial  # noqa: F401 - whether it can be imported is the question
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "harbor":
            raise
        raise ImportError(MISSING) from exc


def choose_agent(agent: object, code_dir: Path | None) -> Chosen:
    """The agent behind a class, a `"module:Class"` string, one of Harbor's names, or None for the oracle."""
    from harbor.agents.base import BaseAgent
    from harbor.models.agent.name import AgentName

    if agent is None:
        return Chosen(native={"name": "oracle"})
    if isinstance(agent, str):
        if agent in AgentName.values() or agent.startswith("acp:"):
            return Chosen(native={"name": agent})
        if ":" not in agent and "." not in agent:
            known = ", ".join(sorted(AgentName.values()))
            raise ValueError(f"{agent!r} is neither one of Harbor's agents nor a 'module:Class'; Harbor has {known}")
        found = _imported(agent, code_dir)
        if found is None:
            return Chosen(workflow=agent)
    else:
        found = agent
    if inspect.isclass(found) and issubclass(found, BaseAgent):
        return Chosen(native={"import_path": f"{found.__module__}:{found.__qualname__}"})
    workflow = resolve_class(found, AgentWorkflow)
    return Chosen(workflow_class=workflow, workflow=import_string(workflow))


def environment_of(given: object) -> Any:
    """Harbor's `EnvironmentConfig` from one, its fields, a type's name or an import path; Docker from nothing."""
    from harbor.models.environment_type import EnvironmentType
    from harbor.models.trial.config import EnvironmentConfig

    if given is None:
        return EnvironmentConfig()
    if isinstance(given, EnvironmentConfig):
        return given
    if isinstance(given, EnvironmentType):
        return EnvironmentConfig(type=given)
    if isinstance(given, str):
        return EnvironmentConfig.model_validate({"import_path" if ":" in given else "type": given})
    if isinstance(given, Mapping):
        return EnvironmentConfig.model_validate(dict(given))
    raise TypeError(
        f"environment_config is a {type(given).__name__}: give the name of a Harbor environment, 'module:Class', a "
        "mapping, or Harbor's EnvironmentConfig"
    )


def two_generations(orchestrator: object, tasks_dir: object) -> tuple[Any, Path]:
    """Generation 0.4 has no orchestrator, and its tasks_dir comes first: both ways of calling mean the same."""
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


def _imported(agent: str, code_dir: Path | None) -> Any:
    """The class, or None when only the sandbox can import it: its module is code of the rollout's, and something that
    it needs is not installed here."""
    module, _, name = agent.rpartition(":" if ":" in agent else ".")
    try:
        found: object = importlib.import_module(module)
    except ImportError as exc:
        if ":" in agent and code_dir is not None and _file_in(module, code_dir):
            return None
        raise ImportError(f"the agent {agent!r} cannot be imported: {exc}") from exc
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"the agent {agent!r} does not exist: {module} has no {name}")
        found = getattr(found, part)
    return found


def _file_in(module: str, code_dir: Path) -> bool:
    stem = Path(*module.split("."))
    roots = (code_dir, code_dir / "src")
    return any((r / stem.with_suffix(".py")).is_file() or (r / stem / "__init__.py").is_file() for r in roots)
