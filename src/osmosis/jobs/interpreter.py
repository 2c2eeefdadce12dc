"""Which Python a rollout's environment is made with: the one that runs the job, unless the rollout forbids it.

Another one is only looked for on this machine; none is ever downloaded.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from osmosis.records.rollout import Category

from .command import run_command
from .failures import setup_failed

FIND_TIMEOUT_S = 60.0
VERSION_OF = "import platform; print(platform.python_version())"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python on this machine."""

    path: Path
    version: str


async def choose_interpreter(
    requires: SpecifierSet, *, where: str, uv: str, environ: Mapping[str, str], cwd: Path
) -> Interpreter:
    """The running Python if `requires` allows it, else one found on PATH. `environ` is uv's.

    Raises `JobFailed` when this machine has none; `where` names the file that asks for it.
    """
    running = platform.python_version()
    if requires.contains(running, prereleases=True):
        return Interpreter(Path(sys.executable), running)
    found = await run_command(
        (uv, "python", "find", "--no-project", "--system", str(requires)),
        cwd=cwd,
        environ=environ,
        timeout_s=FIND_TIMEOUT_S,
    )
    path = found.stdout.strip().splitlines()[-1] if found.ok and found.stdout.strip() else ""
    if path:
        version = await run_command((path, "-I", "-c", VERSION_OF), cwd=cwd, environ=environ, timeout_s=FIND_TIMEOUT_S)
        if version.ok:
            return Interpreter(Path(path), version.stdout.strip())
    raise setup_failed(
        f"{where}: [project].requires-python is {str(requires)!r}: this machine has Python {running}, none that fits",
        fix="install such a Python where the platform runs, or widen requires-python",
        category=Category.UNKNOWN,
        tail=found.output,
    )
