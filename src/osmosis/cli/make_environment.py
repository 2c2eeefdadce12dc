"""The environment that a rollout declares, for a command of this machine: the one that a job would make,
from the same cache.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from osmosis.base import paths
from osmosis.base.wheel import build_wheel
from osmosis.errors import ValidationError
from osmosis.jobs.environment import Builder
from osmosis.jobs.job import JobLog
from osmosis.jobs.project import RolloutProject
from osmosis.records.run import LogLine
from osmosis.workspace.doctor import find_uv

from .context import AppContext
from .environment import INSIDE


def make_environment(ctx: AppContext, project: RolloutProject, install_to: Path) -> tuple[str, dict[str, str]]:
    """The environment's Python, and its variables. ValidationError when it cannot be made, or has no such command."""
    uv = find_uv(ctx.environ)
    if uv is None:
        raise ValidationError("uv is missing; it creates the environments of rollouts", hint="pip install uv")
    cache = paths.cache_dir(ctx.environ)

    def say(line: LogLine) -> None:
        if not line.message.lstrip().startswith("+ "):  # one line for each of a hundred packages
            ctx.output.say(f"  {line.message}", style="dim")

    log = JobLog(None, say)
    builder = Builder(
        uv=uv,
        cache_dir=cache,
        wheel=build_wheel(cache),
        environ=dict(ctx.environ),
        log=log,
        extras=frozenset({"eval"}),  # the command itself runs in there
    )
    made = asyncio.run(builder.environment(project, commit_sha="", install_to=install_to))
    if made.osmosis_version is None or made.osmosis_version.startswith("0."):
        raise ValidationError(
            f"{project.label} asks for osmosis-ai {made.osmosis_version}, which has no such command",
            hint="ask for osmosis-ai>=1, or submit it: osmosis eval submit",
        )
    environ = {**ctx.environ, INSIDE: str(made.folder)}
    if made.project:
        old = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = os.pathsep.join([str(made.project), *([old] if old else [])])
    return str(made.python), environ
