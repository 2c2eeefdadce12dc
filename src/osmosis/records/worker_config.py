"""`worker.toml`: what a worker is told that is more than a few flags, such as the scheduler that its jobs go to.

Secrets are no part of it: the worker's token has a file of its own, and a scheduler's is named by its variable.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import InitErrorDetails

from .contract.worker_bodies import QUEUE_S
from .gate_address import GateAddress
from .rules import Table, at, broken
from .worker import Resources

ExecutorName = Literal["local", "command", "slurm", "ray"]
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
START_WORDS = frozenset({"name", "count", "cpus", "memory_mb", "gpus", "disk_mb", "wall_s"})
"""What the start command of a scheduler may be told of a job, besides its script on standard input."""
END_WORDS = frozenset({"id"})


def filled(words: list[str], values: dict[str, str]) -> list[str]:
    """A command with its placeholders filled in; each word stays one, whatever is in it."""
    return [_PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), word) for word in words]


def _words(value: object) -> object:
    return shlex.split(value) if isinstance(value, str) else value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as problem:
        raise ValueError(f"is no regular expression: {problem}") from None
    return value


Command = Annotated[list[str], BeforeValidator(_words), Field(min_length=1)]
"""A program and its arguments: a list, or one text that is split as a shell would; no shell ever reads it."""
Pattern = Annotated[str, AfterValidator(_regex)]


class CommandOptions(Table):
    """`[command]`: any scheduler, by three commands."""

    start: Command
    """Starts the script on its standard input, and prints what the scheduler calls the job."""
    listing: Command = Field(alias="list")
    """Prints a line for each job: its id, its state."""
    end: Command
    """Ends job `{id}`, or takes it out of its queue."""
    id_pattern: Pattern = r"(\S+)\s*$"
    """Finds the id in what `start` prints: its first group."""
    line_pattern: Pattern = r"^\s*(?P<id>\S+)\s+(?P<state>\S+)"
    """Finds `id` and `state` in a line of `list`; also `code` (exit code) and `why`, if it has such groups."""
    queued: list[str] = Field(default_factory=lambda: ["queued", "pending", "PENDING"])
    """States of jobs that have not begun."""
    ended: list[str] = Field(default_factory=lambda: ["ended", "finished", "failed", "COMPLETED", "FAILED"])
    """States of jobs that are over, as is one that is not listed. In every other state a job works."""
    index_variable: str = ""
    """Variable with the number of a task, where `start` starts `{count}` tasks at once; empty: it starts one."""
    task_id: str = "{id}_{index}"
    """What `list` and `end` call a task of several."""
    env: list[str] = Field(default_factory=list)
    """Variables of the worker that the commands need beyond the usual ones, such as KUBECONFIG."""

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        for key, known in (("start", START_WORDS), ("list", frozenset[str]()), ("end", END_WORDS)):
            for word in re.findall(_PLACEHOLDER, str(written.get(key, ""))):
                if word not in known:
                    names = ", ".join(f"{{{name}}}" for name in sorted(known)) or "none"
                    yield at(broken(f"knows no {{{word}}}", f"its placeholders: {names}"), key)
        if "end" in written and "{id}" not in str(written["end"]):
            yield at(broken("does not say which job", "put {id} where the job's id belongs"), "end")


class SlurmOptions(Table):
    """`[slurm]`."""

    template: str = ""
    """File with the batch script: its own `#SBATCH` lines, modules, variables; `{job}` stands where the job begins."""
    options: list[str] = Field(default_factory=list, examples=[["--partition=gpu", "--account=research"]])
    """Further options of sbatch."""
    grace_s: float = Field(default=900, ge=0)
    """Time limit of a job beyond its `wall_s`: checkout and environment."""


class RayOptions(Table):
    """`[ray]`: a cluster that is there."""

    address: str = "http://127.0.0.1:8265"
    """Of its dashboard, where jobs are submitted."""
    token_variable: str = "RAY_AUTH_TOKEN"
    """Variable of the worker with the cluster's token, if it has one."""
    ca_file: str = ""
    """Certificates to trust the address by (PEM)."""
    runtime_env: dict[str, object] = Field(default_factory=dict, examples=[{"image_uri": "registry/osmosis:1.1"}])
    """Runtime environment of jobs, as Ray documents it: `pip`, `uv`, `image_uri`, `env_vars`."""
    cpus: float = Field(default=1, ge=0)
    """Processors of a job that asks for none. With 0 and no resources Ray puts every job on its head node."""
    resources: dict[str, float] = Field(default_factory=dict, examples=[{"osmosis": 1}])
    """Further resources of each job: one unit per node spreads jobs over the nodes."""


class WorkerConfig(Table):
    """`osmosis worker start --config worker.toml`. A flag wins over its key."""

    executor: ExecutorName = "local"
    """Where jobs run: on this machine, or where a scheduler puts them."""
    max_jobs: int = Field(default=1, ge=1)
    """Jobs at once, also in a scheduler's queue."""
    labels: dict[str, str] = Field(default_factory=dict)
    """What runs can ask for."""
    queue_s: float = Field(default=QUEUE_S, gt=0, le=30 * QUEUE_S)
    """Seconds that a job may wait in a scheduler's queue; then its ticket expires, and it is taken out."""
    poll_s: float = Field(default=5, gt=0)
    """Seconds between questions to a scheduler, each about all jobs."""
    job_command: Annotated[list[str], BeforeValidator(_words)] = Field(
        default_factory=list, examples=[["apptainer", "exec", "osmosis.sif", "python3", "-m", "osmosis.jobs"]]
    )
    """What starts a job where the scheduler runs it; empty: the Python of the worker, on a disk that both see."""
    node_dir: str = ""
    """Folder of jobs where the scheduler runs them, such as "$HOME/osmosis" with variables of that machine; empty: that
    of the worker, on a disk that both see."""
    resources: Resources | None = None
    """What jobs can have there, all together; None: as the scheduler says."""
    gate: GateAddress = Field(default_factory=GateAddress)
    """How rollout servers on other machines reach training jobs here."""
    command: CommandOptions | None = None
    slurm: SlurmOptions = Field(default_factory=SlurmOptions)
    ray: RayOptions = Field(default_factory=RayOptions)

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        if written.get("executor") == "command" and "command" not in written:
            yield at(broken("says nothing of the scheduler", "add [command] with start, list and end"), "executor")
