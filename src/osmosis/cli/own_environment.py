"""Going on with a command inside a rollout's own environment, when this interpreter lacks what the rollout declares.

The environment is the one a job would make, from the same cache. The command is replaced by itself, run by the
environment's Python; nothing of the rollout is imported before that.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis.base import paths
from osmosis.errors import ValidationError

from .environment import INSIDE

if TYPE_CHECKING:
    from osmosis.records.run import LogLine

    from .context import AppContext


def continue_inside(ctx: AppContext, root: Path, rollout: str) -> None:
    """Return when everything that `rollouts/<rollout>` declares is here; else replace this process.

    Raises when the environment cannot be made, with the reason and what to change.
    """
    if ctx.environ.get(INSIDE):
        return
    from osmosis.jobs.project import read_project  # brings packaging along

    label = f"rollouts/{rollout}"
    project = read_project(root / "rollouts" / rollout, label)
    lacking = [str(need) for need in project.dependencies if not satisfied(need)]
    if not lacking and not project.installable:
        return
    ctx.output.say(f"{label} needs {', '.join(lacking[:5]) or 'to be installed'}: using its own environment")
    python, environ = _environment(ctx, project, root / ".osmosis" / "installed" / rollout)
    sys.stdout.flush()
    os.execve(python, [python, "-m", "osmosis", *ctx.words], environ)


def _environment(ctx: AppContext, project: Any, install_to: Path) -> tuple[str, dict[str, str]]:
    # What makes environments: a run whose libraries are all here starts without it.
    from osmosis.base.wheel import build_wheel
    from osmosis.jobs.environment import Builder
    from osmosis.jobs.job import JobLog
    from osmosis.workspace.doctor import find_uv

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


def satisfied(need: Any, extra: str = "") -> bool:
    """Is a declared requirement met in this interpreter, the requirements of its extras included."""
    from importlib import metadata

    from packaging.requirements import Requirement

    if need.marker is not None and not need.marker.evaluate({"extra": extra}):
        return True
    try:
        found = metadata.distribution(need.name)
    except metadata.PackageNotFoundError:
        return False
    if need.url or not need.specifier.contains(found.version, prereleases=True):
        return False
    inner = [Requirement(line) for line in found.requires or []] if need.extras else []
    return all(
        satisfied(one, name) for name in need.extras for one in inner if one.marker and "extra" in str(one.marker)
    )
