"""Decides how an entrypoint is started, from its text alone: a script that serves by itself, or a module whose
agent we serve (`osmosis.jobs.host`). Nothing is imported or run here.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from osmosis.base.wheel import Wheel
from osmosis.records.wire import PORT_VARIABLE

from .environment import Environment
from .job import setup_failed

Kind = Literal["script", "module"]

HOST_MODULE = "osmosis.jobs.host"
AGENT_BASES = frozenset({"RolloutAgentLoop", "AgentWorkflow"})
# For an environment without our host: its own uvicorn serves the app it exposes.
ASGI_RUNNER = (
    "import os, uvicorn; uvicorn.run({target!r}, host='127.0.0.1', port=int(os.environ[{port!r}]), log_level='warning')"
)
APP_MAKERS = frozenset({"FastAPI", "Starlette", "create_app", "create_rollout_server"})
SERVING_CALLS = frozenset({"run", "serve", "serve_forever", "serve_agent_loop", "run_app", "main"})


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """What the text says. `app` is the name of a module-level ASGI app, when there is one."""

    kind: Kind
    app: str | None = None


def look_at(text: str) -> Entrypoint:
    """How a file with this text is started.

    Reading the port variable settles it: that is a server. Otherwise something we can serve wins over a main guard,
    which in such files starts a server on a port of the author's choice.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        # Perhaps a newer Python's syntax; if not, the rollout's own Python says so with file and line.
        return Entrypoint("script")
    app = _app(tree)
    if "ROLLOUT_PORT" in text and _reads_port(tree):
        return Entrypoint("script", app)
    if app or _has_agent(tree):
        return Entrypoint("module", app)
    return Entrypoint("script" if _serves(tree) else "module", app)


def command_for(
    entrypoint: Entrypoint, file: Path, rollout_dir: Path, environment: Environment, wheel: Wheel
) -> list[str]:
    """The command that starts the rollout server, run in `rollout_dir`. Raises `JobFailed` when nothing can."""
    name = file.relative_to(rollout_dir).as_posix()
    python = str(environment.python)
    if entrypoint.kind == "script":
        return [python, name]
    if environment.osmosis_version == wheel.version:
        return [python, "-m", HOST_MODULE, name]
    if entrypoint.app:
        module = name.removesuffix(".py").replace("/", ".")
        return [python, "-c", ASGI_RUNNER.format(target=f"{module}:{entrypoint.app}", port=PORT_VARIABLE)]
    raise setup_failed(
        f"{name} does not start a server itself, and its environment has osmosis-ai "
        f"{environment.osmosis_version or '(none)'}, which cannot serve it for you",
        fix=f'require "osmosis-ai>=1" in pyproject.toml, or start the server on {PORT_VARIABLE} in {name}',
    )


def _reads_port(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith("ROLLOUT_PORT"):
            return True
    return False


def _app(tree: ast.Module) -> str | None:
    for node in tree.body:
        value = getattr(node, "value", None)
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(value, ast.Call):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and _last_name(value.func) in APP_MAKERS:
            return target.id
    return None


def _has_agent(tree: ast.Module) -> bool:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and AGENT_BASES & {_last_name(base) for base in node.bases}:
            return True
        made = node.value if isinstance(node, ast.Assign) else None
        if isinstance(made, ast.Call) and _last_name(made.func) in ("LocalBackend", "HarborBackend"):
            return True
    return False


def _serves(tree: ast.Module) -> bool:
    """A main guard, or a call at the top level that sounds like serving."""
    for node in tree.body:
        if isinstance(node, ast.If) and any(
            isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
        ):
            return True
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and _last_name(call.func) in SERVING_CALLS:
            return True
    return False


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
