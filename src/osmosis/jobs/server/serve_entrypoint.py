"""`python -m osmosis.jobs.server.serve_entrypoint main.py`: serve an entrypoint that starts no server itself."""

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from starlette.applications import Starlette
from starlette.types import ASGIApp

from osmosis.engine.load_agent import load_grading
from osmosis.engine.loader import load_module
from osmosis.errors import LoadError, OsmosisError
from osmosis.records.protocol.messages import PORT_VARIABLE
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.harbor.backend import HarborBackend
from osmosis.sdk.types import AgentWorkflowConfig, GraderConfig
from osmosis.sdk.workflow import AgentWorkflow, Grader
from osmosis.serve.server.app import create_rollout_server

WHAT_IS_SERVED = "an ASGI app, a LocalBackend or HarborBackend, an agent loop, or a workflow with its grader"


def make_app(module: ModuleType) -> ASGIApp:
    app = _one(module, lambda value: isinstance(value, Starlette), "app", prefer=("app",))
    if isinstance(app, Starlette):
        return app
    backend = _one(
        module, lambda value: isinstance(value, (LocalBackend, HarborBackend)), "backend", prefer=("backend",)
    )
    if backend is None:
        loop = _agent_loop(module)
        if loop is not None:
            # pydantic-settings, which it needs, is a tenth of the start of a server that serves no agent loop.
            from osmosis.compat.server import create_app

            return create_app(loop)
        workflow = _one(module, _is_class(AgentWorkflow), "workflow")
        if workflow is None:
            hint = f"it needs {WHAT_IS_SERVED} at module level, or it starts a server on {PORT_VARIABLE} itself"
            raise LoadError(f"{module.__file__} defines nothing that can be served", hint=hint)
        grader = _one(module, _is_class(Grader), "grader")
        config = _one(
            module, lambda value: isinstance(value, AgentWorkflowConfig), "workflow config", prefer=("config",)
        )
        grader_config = _one(module, lambda value: isinstance(value, GraderConfig), "grader config")
        backend = LocalBackend(workflow, config, grader, grader_config)
    return create_rollout_server(backend)


def _agent_loop(module: ModuleType) -> RolloutAgentLoop | None:
    loop = _one(module, lambda value: isinstance(value, RolloutAgentLoop), "agent loop", prefer=("agent_loop", "agent"))
    if loop is None:
        loop_class = _one(module, _is_class(RolloutAgentLoop), "agent loop class")
        loop = loop_class() if loop_class is not None else None
    return loop if isinstance(loop, RolloutAgentLoop) else None


def _one(module: ModuleType, matches: Callable[[Any], bool], kind: str, *, prefer: tuple[str, ...] = ()) -> Any:
    objects = {name: value for name, value in vars(module).items() if not name.startswith("_") and matches(value)}
    distinct = {id(value): (name, value) for name, value in objects.items()}
    if len(distinct) <= 1:
        return next((value for _, value in distinct.values()), None)
    for name in prefer:
        if name in objects:
            return objects[name]
    own = [(n, v) for n, v in distinct.values() if getattr(v, "__module__", None) == module.__name__]
    if len(own) == 1:
        return own[0][1]
    names = ", ".join(sorted(name for name, _ in distinct.values()))
    hint = "define `backend = LocalBackend(...)` with the one you mean, or start the server yourself"
    raise LoadError(f"{module.__file__} has more than one {kind}: {names}", hint=hint)


def _is_class(base: type) -> Callable[[Any], bool]:
    return lambda value: (
        inspect.isclass(value) and issubclass(value, base) and value is not base and not inspect.isabstract(value)
    )


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    if len(argv) != 1 + ("--grader" in argv[1:]) or not environ.get(PORT_VARIABLE, "").isdigit():
        sys.stderr.write(
            f"usage: {PORT_VARIABLE}=<port> python -m osmosis.jobs.server.serve_entrypoint <entrypoint.py> [--grader]\n"
        )
        return 2
    try:
        grading = load_grading(argv[0], Path.cwd()).backend if "--grader" in argv else None
        app = create_rollout_server(grading) if grading else make_app(load_module(argv[0], Path.cwd()))
    except OsmosisError as problem:
        # The last line is what a job shows first.
        if trace := problem.details.get("traceback"):
            sys.stderr.write(f"{trace}\n{problem.message}\n")
        else:
            sys.stderr.write(f"{problem.message}: {problem.hint}\n" if problem.hint else f"{problem.message}\n")
        return 1
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(environ[PORT_VARIABLE]), log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
