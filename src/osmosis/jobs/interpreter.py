"""Which Python a rollout's environment is made with: the one that runs the job, unless the rollout forbids it.

Another one is only looked for on this machine; none is ever downloaded.
"""

from __future__ import annotations

import platform
import re
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
    named = await run_command(
        (uv, "python", "find", "--no-project", "--system", str(requires)),
        cwd=cwd,
        environ=environ,
        timeout_s=FIND_TIMEOUT_S,
    )
    on_path = [Path(line) for line in named.stdout.splitlines()[-1:]] if named.ok else []
    for path in (*on_path, *_beside_ours()):
        version = await run_command(
            (str(path), "-I", "-c", VERSION_OF), cwd=cwd, environ=environ, timeout_s=FIND_TIMEOUT_S
        )
        if version.ok and requires.contains(version.stdout.strip(), prereleases=True):
            return Interpreter(path, version.stdout.strip())
    raise setup_failed(
        f"{where}: [project].requires-python is {str(requires)!r}: this machine has Python {running}, none that fits",
        fix="install such a Python where the platform runs, or widen requires-python",
        category=Category.UNKNOWN,
        tail=named.output,
    )


def _beside_ours() -> list[Path]:
    """Pythons in sibling folders of the running one, as version managers lay them out; oldest first, because the
    lower bound of a range is what its author is likeliest to have tried."""
    found = []
    for folder in Path(sys.base_prefix).parent.iterdir():
        numbers = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", folder.name)
        python = folder / "bin" / "python3"
        if numbers and python.exists():
            found.append((tuple(int(n or 0) for n in numbers.groups()), python))
    return [python for _, python in sorted(found)]
