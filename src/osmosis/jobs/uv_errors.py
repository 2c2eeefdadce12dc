"""From what uv printed to one sentence: which dependency of which file could not be installed, and what to do.

It only reads text that uv wrote; anything it does not recognise is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from packaging.utils import canonicalize_name

from osmosis.records.rollout import Category

from .command import Finished
from .failures import TAIL_LINES, JobFailed, setup_failed
from .project import RolloutProject

_NETWORK = re.compile(
    r"error sending request|dns error|failed to lookup address|connection refused|tcp connect error|"
    r"client error \(connect\)|network is unreachable|operation timed out|unknownissuer|could not connect",
    re.IGNORECASE,
)
_MARKS = re.compile(r"^\s*(?:[×✗╰├│─▶>-]+\s*)*(?:error|cause|caused by)?\s*:?\s*", re.IGNORECASE)
MAX_REASON = 700


def no_network(output: str) -> bool:
    """Whether uv failed because the package index cannot be reached."""
    return bool(_NETWORK.search(output))


def explain(done: Finished, project: RolloutProject, arguments: Sequence[str], *, timeout_s: float) -> JobFailed:
    """The failure behind a uv command that did not succeed."""
    tail = "\n".join(done.output.splitlines()[-TAIL_LINES:])
    if done.code is None:
        return setup_failed(
            f"{project.where}: the dependencies were not installed within {timeout_s:.0f} s",
            fix="ask for less, or pin versions so that uv need not search; a uv.lock beside it helps most",
            category=Category.TIMEOUT,
            tail=tail,
        )
    if no_network(done.output):
        return setup_failed(
            f"{project.where}: the package index cannot be reached, and the cache is not enough: {reason(done.output)}",
            fix="check the network (or the proxy and UV_* settings) of the machine the job runs on, then submit again",
            category=Category.CONNECTION,
            tail=tail,
        )
    if arguments and arguments[0] == "venv":
        return setup_failed(
            f"{project.label}: no virtual environment can be made: {reason(done.output)}",
            category=Category.UNKNOWN,
            tail=tail,
        )
    if "--no-deps" in arguments:
        return setup_failed(
            f"{project.label}: the project itself cannot be built: {reason(done.output)}",
            fix=f"try it in the workspace: `uv build {project.label}`; or remove [build-system] if it is no package",
            tail=tail,
        )
    culprits = _culprits(done.output, project)
    named = f" ({', '.join(culprits)})" if culprits else ""
    return setup_failed(
        f"{project.where}: a dependency cannot be installed{named}: {reason(done.output)}",
        fix=f"correct the dependency in {project.where}, commit, push and submit again",
        tail=tail,
    )


def reason(output: str) -> str:
    """uv's own sentence: the causes if it gives some, else its last error."""
    lines = output.splitlines()
    causes = [i for i, line in enumerate(lines) if re.search(r"cause[d by]*:|╰─▶|^\s*×", line, re.IGNORECASE)]
    errors = [i for i, line in enumerate(lines) if line.lstrip().lower().startswith("error:")]
    start = (causes or errors or [max(len(lines) - 3, 0)])[-1 if not causes else 0]
    said = [_MARKS.sub("", line).strip() for line in lines[start : start + 8] if not line.startswith("hint:")]
    text = " ".join(part for part in said if part)
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "..."


def _culprits(output: str, project: RolloutProject) -> list[str]:
    """The declared dependencies that uv's message speaks of, as they are declared."""
    lowered = output.lower()
    named = []
    for requirement in project.dependencies:
        pattern = rf"(?<![\w.-]){re.escape(canonicalize_name(requirement.name))}(?![\w-])"
        if re.search(pattern, lowered):
            named.append(str(requirement))
    return named
