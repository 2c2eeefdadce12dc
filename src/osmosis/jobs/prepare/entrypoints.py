"""Decide how an entrypoint is started, from its text alone: nothing is imported or run."""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from osmosis.base.installation import Wheel
from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import reader_main
from osmosis.errors import OsmosisError, ValidationError
from osmosis.jobs.context import JobFailed, setup_failure
from osmosis.jobs.prepare.environment import Environment
from osmosis.jobs.prepare.project import RolloutProject, read_project, read_text
from osmosis.records.protocol.messages import PORT_VARIABLE
from osmosis.sandbox import Policy
from osmosis.sandbox.process import read_with

Kind = Literal["script", "module", "grader"]

HOST_MODULE = "osmosis.jobs.server.serve_entrypoint"
AGENT_BASES = frozenset({"RolloutAgentLoop", "AgentWorkflow"})
# For an environment without our host: its own uvicorn serves the app it exposes.
ASGI_RUNNER = (
    "import os, uvicorn; uvicorn.run({target!r}, host='127.0.0.1', port=int(os.environ[{port!r}]), log_level='warning')"
)
APP_MAKERS = frozenset({"FastAPI", "Starlette", "create_app", "create_rollout_server"})
SERVING_CALLS = frozenset({"run", "serve", "serve_forever", "serve_agent_loop", "run_app", "main"})


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """`app` is the name of a module-level ASGI app, or None. A `grader` grades what a program left."""

    kind: Kind
    app: str | None = None


def classify_entrypoint(text: str) -> Entrypoint:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # Perhaps a newer Python's syntax; if not, the rollout's own Python says so with file and line.
        return Entrypoint("script")
    app = _app(tree)
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    if "ROLLOUT_PORT" in text and any(string.endswith("ROLLOUT_PORT") for string in strings):
        return Entrypoint("script", app)
    if app or _has_agent(tree):
        return Entrypoint("module", app)
    return Entrypoint("script" if _serves(tree) else "module", app)


def build_command(
    entrypoint: Entrypoint,
    file: Path,
    rollout_dir: Path,
    environment: Environment,
    wheel: Wheel,
    *,
    policy: Policy | None = None,
) -> list[str]:
    """Return the command line, with the names that paths have inside the sandbox of `policy`."""
    name = file.relative_to(rollout_dir).as_posix()
    python = str(policy.inside(environment.python) if policy else environment.python)
    if entrypoint.kind == "script":
        return [python, name]
    if environment.osmosis_version == wheel.version:
        return [python, "-m", HOST_MODULE, name, *(["--grader"] if entrypoint.kind == "grader" else [])]
    if entrypoint.app and entrypoint.kind == "module":
        module = name.removesuffix(".py").replace("/", ".")
        return [python, "-c", ASGI_RUNNER.format(target=f"{module}:{entrypoint.app}", port=PORT_VARIABLE)]
    raise setup_failure(
        f"{name} does not start a server itself, and its environment has osmosis-ai "
        f"{environment.osmosis_version or '(none)'}, which cannot serve it for you",
        fix=f'require "osmosis-ai>=1" in pyproject.toml, or start the server on {PORT_VARIABLE} in {name}',
    )


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
        call = node.value if isinstance(node, ast.Assign) else None
        if isinstance(call, ast.Call) and _last_name(call.func) in ("LocalBackend", "HarborBackend"):
            return True
    return False


def _serves(tree: ast.Module) -> bool:
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


READ_S = 30.0
MEMORY_MB = 1024
MOST_ENTRYPOINT_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class ReadRollout:
    project: RolloutProject
    entrypoint: Entrypoint


def read_rollout(source: Path, rollout: str, entrypoint: str) -> ReadRollout:
    label, folder = f"rollouts/{rollout}", source / "rollouts" / rollout
    request = {"folder": str(folder), "label": label, "entrypoint": entrypoint}
    words = ("-m", "osmosis.jobs.prepare.entrypoints")
    try:
        answer = read_with(words, request, what=label, files=(source,), seconds=READ_S, memory_mb=MEMORY_MB)
    except OsmosisError as problem:
        raise setup_failure(problem.message, fix=problem.hint) from None
    return TypeAdapter(ReadRollout).validate_python(answer)


def _read(request: JsonObject) -> object:
    folder, label = Path(str(request["folder"])), str(request["label"])
    try:
        project = read_project(folder, label)
        text = read_text(folder, str(request["entrypoint"]), label, most_bytes=MOST_ENTRYPOINT_BYTES)
    except JobFailed as problem:
        raise ValidationError(problem.message, hint=problem.hint) from None
    return TypeAdapter(ReadRollout).dump_python(ReadRollout(project, classify_entrypoint(text or "")), mode="json")


if __name__ == "__main__":
    sys.exit(reader_main(_read))
