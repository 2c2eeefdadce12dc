"""Going on with a command inside a rollout's own environment, when this interpreter lacks what the rollout declares.

The environment is the one a job would make, from the same cache. The command is replaced by itself, run by the
environment's Python; nothing of the rollout is imported before that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .environment import INSIDE

if TYPE_CHECKING:
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
    from .make_environment import make_environment

    python, environ = make_environment(ctx, project, root / ".osmosis" / "installed" / rollout)
    sys.stdout.flush()
    os.execve(python, [python, "-m", "osmosis", *ctx.words], environ)


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
