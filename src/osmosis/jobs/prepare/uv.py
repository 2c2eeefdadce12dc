import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from osmosis.jobs.commands import CommandResult, run_command
from osmosis.jobs.context import TAIL_LINES, JobFailed, setup_failure
from osmosis.jobs.prepare.project import RolloutProject
from osmosis.records.run.rollout import Category

FIND_TIMEOUT_S = 60.0
VERSION_OF = "import platform; print(platform.python_version())"


@dataclass(frozen=True, slots=True)
class Interpreter:
    path: Path
    version: str


async def choose_interpreter(
    requires: SpecifierSet, *, where: str, uv: str, environ: Mapping[str, str], cwd: Path
) -> Interpreter:
    """Return the running Python if `requires` allows it, else one on this machine. Raise `JobFailed`."""
    running = platform.python_version()
    if requires.contains(running, prereleases=True):
        # Not this process's virtual environment: what is made with it could read that.
        own: str = getattr(sys, "_base_executable", sys.executable)
        return Interpreter(Path(own).resolve(), running)
    named = await run_command(
        (uv, "python", "find", "--no-project", "--system", str(requires)),
        cwd=cwd,
        environ=environ,
        timeout_s=FIND_TIMEOUT_S,
    )
    on_path = [Path(line) for line in named.stdout.splitlines()[-1:]] if named.ok else []
    # Version managers put Pythons into sibling folders.
    pythons = []
    for folder in Path(sys.base_prefix).parent.iterdir():
        numbers = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", folder.name)
        python = folder / "bin" / "python3"
        if numbers and python.exists():
            pythons.append((tuple(int(n or 0) for n in numbers.groups()), python))
    for path in (*on_path, *[python for _, python in sorted(pythons)]):
        version = await run_command(
            (str(path), "-I", "-c", VERSION_OF), cwd=cwd, environ=environ, timeout_s=FIND_TIMEOUT_S
        )
        if version.ok and requires.contains(version.stdout.strip(), prereleases=True):
            return Interpreter(path, version.stdout.strip())
    raise setup_failure(
        f"{where}: [project].requires-python is {str(requires)!r}: this machine has Python {running}, and none "
        "that matches",
        fix="install a matching Python on the platform's machine, or widen requires-python",
        category=Category.UNKNOWN,
        tail=named.output,
    )


_NETWORK = re.compile(
    r"error sending request|dns error|failed to lookup address|connection refused|tcp connect error|"
    r"client error \(connect\)|network is unreachable|operation timed out|unknownissuer|could not connect",
    re.IGNORECASE,
)
_MARKS = re.compile(r"^\s*(?:[×✗╰├│─▶>-]+\s*)*(?:error|cause|caused by)?\s*:?\s*", re.IGNORECASE)
MAX_REASON = 700


def is_network_failure(output: str) -> bool:
    return bool(_NETWORK.search(output))


def describe_failure(
    done: CommandResult, project: RolloutProject, arguments: Sequence[str], *, timeout_s: float
) -> JobFailed:
    tail = "\n".join(done.output.splitlines()[-TAIL_LINES:])
    if done.code is None:
        message = f"{project.where}: the dependencies were not installed within {timeout_s:.0f} s"
        fix = "remove dependencies, or pin versions so that uv need not search; a uv.lock helps most"
        return setup_failure(message, fix=fix, category=Category.TIMEOUT, tail=tail)
    if is_network_failure(done.output):
        return setup_failure(
            f"{project.where}: the package index cannot be reached, and uv's cache does not have everything: "
            f"{reason(done.output)}",
            fix="check the network (or the proxy and UV_* settings) of the machine the job runs on, then submit again",
            category=Category.CONNECTION,
            tail=tail,
        )
    if arguments and arguments[0] == "venv":
        message = f"{project.label}: the virtual environment cannot be created: {reason(done.output)}"
        return setup_failure(message, category=Category.UNKNOWN, tail=tail)
    if "--no-deps" in arguments:
        fix = f"try: osmosis check {project.label.rpartition('/')[2]}; or remove [build-system] if it is no package"
        message = f"{project.label}: the project itself cannot be built: {reason(done.output)}"
        return setup_failure(message, fix=fix, tail=tail)
    lowered = done.output.lower()
    culprits = []
    for requirement in project.dependencies:
        pattern = rf"(?<![\w.-]){re.escape(canonicalize_name(requirement.name))}(?![\w-])"
        if re.search(pattern, lowered):
            culprits.append(str(requirement))
    named = f" ({', '.join(culprits)})" if culprits else ""
    message = f"{project.where}: a dependency cannot be installed{named}: {reason(done.output)}"
    fix = f"fix the dependency in {project.where}, commit, push and submit again"
    return setup_failure(message, fix=fix, tail=tail)


def reason(output: str) -> str:
    lines = output.splitlines()
    causes = [i for i, line in enumerate(lines) if re.search(r"cause[d by]*:|╰─▶|^\s*×", line, re.IGNORECASE)]
    errors = [i for i, line in enumerate(lines) if line.lstrip().lower().startswith("error:")]
    start = (causes or errors or [max(len(lines) - 3, 0)])[-1 if not causes else 0]
    parts = [_MARKS.sub("", line).strip() for line in lines[start : start + 8] if not line.startswith("hint:")]
    text = " ".join(part for part in parts if part)
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "..."
