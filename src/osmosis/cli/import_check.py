"""Importing each rollout's entrypoint in the rollout's own environment: the slow part of `osmosis doctor`.

User code runs in a process of its own, bounded in time, never in this one.
"""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

from osmosis.base import paths
from osmosis.base.wheel import build_wheel
from osmosis.errors import OsmosisError
from osmosis.jobs.environment import Builder
from osmosis.jobs.job import JobLog
from osmosis.jobs.project import read_project
from osmosis.records.problem import Problem

if TYPE_CHECKING:
    from osmosis.workspace.layout import RolloutFolder, Workspace

    from .context import AppContext

IMPORT_TIMEOUT_S = 120
# As a module called `main`, not as a script: what stands under `if __name__ == "__main__"` must not run.
_PROGRAM = "import runpy, sys; sys.path.insert(0, '.'); runpy.run_path(sys.argv[1], run_name='main')"


def check_imports(ctx: AppContext, workspace: Workspace, uv: str) -> list[Problem]:
    """One finding per rollout whose environment cannot be made or whose entrypoint cannot be imported."""
    found = []
    for rollout in workspace.rollouts():
        if rollout.entrypoint is None:
            continue
        ctx.output.say(f"importing rollouts/{rollout.name}/main.py in its own environment")
        if (problem := _check(ctx, rollout, uv)) is not None:
            found.append(problem)
    return found


def _check(ctx: AppContext, rollout: RolloutFolder, uv: str) -> Problem | None:
    where = f"rollouts/{rollout.name}"
    lines: list[str] = []
    try:
        cache = paths.cache_dir(ctx.environ)
        log = JobLog(None, lambda line: lines.append(line.message))
        builder = Builder(uv=uv, cache_dir=cache, wheel=build_wheel(cache), environ=ctx.environ, log=log)
        project = read_project(rollout.path, where)
        install_to = cache / "imports" / rollout.name
        environment = asyncio.run(builder.environment(project, commit_sha="", install_to=install_to))
    except OsmosisError as error:
        what = f"its environment cannot be created: {error.message}"
        fix = error.hint or f"correct {where}/pyproject.toml"
        return Problem(code="environment", what=what, where=f"{where}/pyproject.toml", fix=fix)
    command = [str(environment.python), "-c", _PROGRAM, "main.py"]
    environ = {**ctx.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if environment.project:
        environ["PYTHONPATH"] = str(environment.project)
    try:
        done = subprocess.run(
            command,
            cwd=rollout.path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = f"importing it took longer than {IMPORT_TIMEOUT_S} s"
        fix = 'start servers and slow work under `if __name__ == "__main__":`'
        return Problem(code="import-slow", what=what, where=f"{where}/main.py", fix=fix)
    if done.returncode == 0:
        return None
    tail = [line for line in done.stderr.strip().splitlines() if line.strip()]
    what = f"importing it failed: {tail[-1] if tail else f'exit code {done.returncode}'}"
    place = next((line.strip() for line in reversed(tail) if line.strip().startswith("File ")), "")
    fix = f"see {place}" if place else f"correct {where}/main.py"
    if "ModuleNotFoundError" in what:
        fix = f"add the package to dependencies in {where}/pyproject.toml"
    return Problem(code="import-failed", what=what, where=f"{where}/main.py", fix=fix)
