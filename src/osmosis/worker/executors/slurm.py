"""Jobs of a Slurm cluster: the shards of one run as an array, one question about all jobs, states in plain words.

What has to stand around a job there (modules, a partition, a container) is a template that the cluster's admin edits.
Slurm keeps the script of a job, with its ticket, and nothing that is secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from osmosis.errors import PlatformError, UsageError
from osmosis.records.base import Record
from osmosis.records.contract.worker_bodies import JobEndCause
from osmosis.records.worker import ResourceNeeds, Resources, megabytes
from osmosis.records.worker_config import SlurmOptions

from . import job_script
from .executor import Handle, JobStart, JobState
from .local import last_words
from .programs import Programs

JOB = "{job}"
TEMPLATE = f"#!/bin/sh\n{JOB}\n"
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
OVER: Mapping[str, tuple[str, JobEndCause]] = {
    "COMPLETED": ("it ended without a result", "died"),
    "FAILED": ("it failed", "died"),
    "CANCELLED": ("it was cancelled there (scancel)", "final"),
    "TIMEOUT": ("it reached its time limit: raise wall_s of [advanced.resources]", "final"),
    "DEADLINE": ("it reached its deadline", "final"),
    "OUT_OF_MEMORY": ("it needed more memory than it had: raise memory of [advanced.resources]", "final"),
    "NODE_FAIL": ("its node failed", "machine"),
    "BOOT_FAIL": ("its node did not start", "machine"),
    "PREEMPTED": ("it was preempted", "machine"),
    "REVOKED": ("it was revoked", "machine"),
}
"""States of jobs that are over: in words, and what that means for the run."""
TOO_LARGE = re.compile(r"slurmstepd\S*: error:.*(exceeded (job )?memory limit|oom[-_ ]kill)", re.IGNORECASE)
"""What Slurm prints into the output of a job that its own watch over memory ended: the state is only FAILED then."""


class SlurmHandle(Record):
    """By which any worker of the same cluster finds a job again."""

    executor: str
    id: str
    """`42`, or `42_1` in an array."""
    output: str
    """The file it prints to."""


class SlurmExecutor:
    """`folder`: where jobs print to, on a disk that the nodes see."""

    name = "slurm"
    remote = True

    def __init__(
        self,
        options: SlurmOptions,
        job_command: Sequence[str],
        environ: Mapping[str, str],
        *,
        folder: Path,
        resources: Resources | None = None,
    ) -> None:
        """UsageError for a template that cannot be used."""
        self._options = options
        self._job_command = list(job_command)
        self._programs = Programs(environ, prefixes=("SLURM_", "SBATCH_"))
        self._folder = folder
        self._resources = resources
        self._template = _template(options.template)

    def start(self, jobs: Sequence[JobStart]) -> list[dict[str, object]]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        several = len(jobs) > 1
        first, output = jobs[0], str(self._folder / ("%A_%a.out" if several else "%j.out"))
        words = ["sbatch", "--parsable", "--no-requeue", f"--job-name={first.name}", f"--output={output}"]
        words += [f"--array=0-{len(jobs) - 1}"] if several else []
        words += [*_asked(first.needs, self._options.grace_s), *self._options.options]
        variable = "SLURM_ARRAY_TASK_ID" if several else ""
        lines = job_script.lines(jobs, self._job_command, index_variable=variable)
        said = self._programs.say(words, self._template.replace(JOB, lines))
        number = said.strip().partition(";")[0]
        if not number.isdigit():
            raise PlatformError(f"sbatch did not say the number of its job: {said.strip()[:200]!r}")
        ids = [f"{number}_{index}" for index in range(len(jobs))] if several else [number]
        return [
            SlurmHandle(executor=self.name, id=one, output=str(self._folder / f"{one}.out")).to_dict() for one in ids
        ]

    def owns(self, handle: Handle) -> bool:
        return handle.get("executor") == self.name

    def poll(self, handles: Sequence[Handle]) -> list[JobState]:
        jobs = [SlurmHandle.model_validate(handle) for handle in handles]
        ids = [job.id for job in jobs]
        listed = self._listed(["squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%r"])
        if forgotten := [one for one in ids if one not in listed]:
            listed.update(self._of_accounting(forgotten))
        return [_state(job, listed.get(job.id)) for job in jobs]

    def _listed(self, words: Sequence[str]) -> dict[str, tuple[str, str]]:
        """State and reason by job."""
        found = {}
        for line in self._programs.say(words).splitlines():
            number, _, rest = line.strip().partition("|")
            state, _, reason = rest.partition("|")
            found[number] = (state.split(" ")[0], reason)  # `CANCELLED by 1000`
        return found

    def _of_accounting(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Of jobs that the controller has forgotten; nothing where no accounting is kept."""
        try:
            return self._listed(["sacct", "-n", "-P", "-X", "-j", ",".join(ids), "-o", "JobID,State,Reason"])
        except PlatformError:
            return {}

    def words(self, handle: Handle) -> str:
        return last_words(Path(SlurmHandle.model_validate(handle).output))

    def reap(self) -> None:
        """Slurm's jobs are no processes of this one."""

    def interrupt(self, handle: Handle) -> None:
        self._programs.say(["scancel", "--batch", "--signal=TERM", str(handle["id"])])

    def kill(self, handle: Handle) -> None:
        """`--quiet`: one that is over is no error."""
        self._programs.say(["scancel", "--quiet", str(handle["id"])])

    def resources(self) -> Resources:
        """Of all nodes that are up, together."""
        if self._resources is not None:
            return self._resources
        seen = {}
        for line in self._programs.say(["sinfo", "-h", "-N", "-r", "-o", "%N|%c|%m|%G"]).splitlines():
            node, cpus, memory, gres = line.strip().split("|", 3)
            seen[node] = (int(cpus), int(memory.rstrip("+")), _gpus(gres))
        return Resources(
            cpus=sum(one[0] for one in seen.values()),
            memory_mb=sum(one[1] for one in seen.values()),
            gpus=sum(one[2] for one in seen.values()),
        )

    def level(self) -> str:
        return "as each node can"


def _template(file: str) -> str:
    if not file:
        return TEMPLATE
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"[slurm] template: {file}: {problem.strerror or problem}") from None
    if not text.startswith("#!") or text.count(JOB) != 1:
        raise UsageError(
            f"[slurm] template: {file} is not a batch script with one line {JOB}",
            hint=f"its first line is #!/bin/bash, and {JOB} stands where the job begins",
        )
    return text


def _asked(needs: ResourceNeeds, grace_s: float) -> list[str]:
    """What a job needs, as sbatch is told."""
    words = [f"--cpus-per-task={math.ceil(needs.cpus)}"] if needs.cpus else []
    words += [f"--mem={megabytes(needs.memory)}M"] if needs.memory else []
    words += [f"--gres=gpu:{needs.gpus}"] if needs.gpus else []
    words += [f"--tmp={megabytes(needs.disk)}M"] if needs.disk else []
    return words + ([f"--time={math.ceil((needs.wall_s + grace_s) / 60)}"] if needs.wall_s else [])


def _state(job: SlurmHandle, listed: tuple[str, str] | None) -> JobState:
    number = job.id
    if listed is None:
        return JobState(alive=False, reason=f"slurm does not know job {number} any more")
    state, reason = listed
    if state == "FAILED" and TOO_LARGE.search(last_words(Path(job.output))):
        state, reason = "OUT_OF_MEMORY", ""
    why = f" ({reason})" if reason not in ("", "None") else ""
    if state in WAITING:
        return JobState(alive=True, place=f"queued in slurm as job {number}{why}")
    if state not in OVER:
        return JobState(alive=True)
    words, cause = OVER[state]
    return JobState(alive=False, reason=f"slurm ended job {number}: {words}{why}", cause=cause)


def _gpus(gres: str) -> int:
    """Of `gpu:a100:4(S:0-1),tmp:1`: the last part is how many, if it is a number."""
    kinds = [one.split(":") for one in re.sub(r"\([^)]*\)", "", gres).split(",")]
    return sum(int(one[-1]) if one[-1].isdigit() else 1 for one in kinds if one[0] == "gpu")
