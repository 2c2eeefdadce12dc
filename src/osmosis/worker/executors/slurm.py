"""Jobs of a Slurm cluster: the shards of one run as an array, one query for all jobs."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from osmosis.errors import PlatformError, UsageError
from osmosis.records.api.workers import JobEndCause
from osmosis.records.config.worker import ResourceNeeds, Resources, SlurmOptions, megabytes
from osmosis.worker.executors.command import Programs, job_script_lines
from osmosis.worker.executors.executor import Handle, JobStart, JobState, SchedulerExecutor, SchedulerHandle
from osmosis.worker.executors.local import last_words

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
TOO_LARGE = re.compile(r"slurmstepd\S*: error:.*(exceeded (job )?memory limit|oom[-_ ]kill)", re.IGNORECASE)
"""Text of Slurm when its own memory watch ended a job: the state is only FAILED then."""


class SlurmHandle(SchedulerHandle):
    """`id` is `42`, or `42_1` in an array; `output` is the file that the job prints to."""

    output: str


class SlurmExecutor(SchedulerExecutor):
    """`folder` is where jobs print to, on a disk that the nodes see."""

    name = "slurm"

    def __init__(
        self,
        options: SlurmOptions,
        job_command: Sequence[str],
        environ: Mapping[str, str],
        *,
        folder: Path,
        resources: Resources | None = None,
    ) -> None:
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
        command = ["sbatch", "--parsable", "--no-requeue", f"--job-name={first.name}", f"--output={output}"]
        command += [f"--array=0-{len(jobs) - 1}"] if several else []
        command += [*_resource_options(first.needs, self._options.grace_s), *self._options.options]
        variable = "SLURM_ARRAY_TASK_ID" if several else ""
        lines = job_script_lines(jobs, self._job_command, index_variable=variable)
        output_text = self._programs.say(command, self._template.replace(JOB, lines))
        number = output_text.strip().partition(";")[0]
        if not number.isdigit():
            raise PlatformError(f"sbatch did not say the number of its job: {output_text.strip()[:200]!r}")
        ids = [f"{number}_{index}" for index in range(len(jobs))] if several else [number]
        return [
            SlurmHandle(executor=self.name, id=id_, output=str(self._folder / f"{id_}.out")).to_dict() for id_ in ids
        ]

    def poll(self, handles: Sequence[Handle]) -> list[JobState]:
        jobs = [SlurmHandle.model_validate(handle) for handle in handles]
        ids = [job.id for job in jobs]
        listed = self._listed(["squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%r"])
        if forgotten := [id_ for id_ in ids if id_ not in listed]:
            listed.update(self._of_accounting(forgotten))
        return [_state(job, listed.get(job.id)) for job in jobs]

    def _listed(self, command: Sequence[str]) -> dict[str, tuple[str, str]]:
        states = {}
        for line in self._programs.say(command).splitlines():
            number, _, rest = line.strip().partition("|")
            state, _, reason = rest.partition("|")
            states[number] = (state.split(" ")[0], reason)  # `CANCELLED by 1000`
        return states

    def _of_accounting(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        try:
            return self._listed(["sacct", "-n", "-P", "-X", "-j", ",".join(ids), "-o", "JobID,State,Reason"])
        except PlatformError:
            return {}

    def read_output(self, handle: Handle) -> str:
        return last_words(Path(SlurmHandle.model_validate(handle).output))

    def interrupt(self, handle: Handle) -> None:
        self._programs.say(["scancel", "--batch", "--signal=TERM", str(handle["id"])])

    def kill(self, handle: Handle) -> None:
        self._programs.say(["scancel", "--quiet", str(handle["id"])])

    def resources(self) -> Resources:
        if self._resources is not None:
            return self._resources
        nodes = {}
        for line in self._programs.say(["sinfo", "-h", "-N", "-r", "-o", "%N|%c|%m|%G"]).splitlines():
            node, cpus, memory, gres = line.strip().split("|", 3)
            nodes[node] = (int(cpus), int(memory.rstrip("+")), _gpus(gres))
        sums = [sum(sizes[at] for sizes in nodes.values()) for at in range(3)]
        return Resources(cpus=sums[0], memory_mb=sums[1], gpus=sums[2])

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
        message = f"[slurm] template: {file} is not a batch script with one line {JOB}"
        raise UsageError(message, hint=f"its first line is #!/bin/bash, and {JOB} stands where the job begins")
    return text


def _resource_options(needs: ResourceNeeds, grace_s: float) -> list[str]:
    options = [f"--cpus-per-task={math.ceil(needs.cpus)}"] if needs.cpus else []
    options += [f"--mem={megabytes(needs.memory)}M"] if needs.memory else []
    options += [f"--gres=gpu:{needs.gpus}"] if needs.gpus else []
    options += [f"--tmp={megabytes(needs.disk)}M"] if needs.disk else []
    return options + ([f"--time={math.ceil((needs.wall_s + grace_s) / 60)}"] if needs.wall_s else [])


def _state(job: SlurmHandle, listed: tuple[str, str] | None) -> JobState:
    number = job.id
    if listed is None:
        return JobState(alive=False, reason=f"slurm does not know job {number} any more")
    state, reason = listed
    if state == "FAILED" and TOO_LARGE.search(last_words(Path(job.output))):
        state, reason = "OUT_OF_MEMORY", ""
    suffix = f" ({reason})" if reason not in ("", "None") else ""
    if state in WAITING:
        return JobState(alive=True, place=f"queued in slurm as job {number}{suffix}")
    if state not in OVER:
        return JobState(alive=True)
    words, cause = OVER[state]
    return JobState(alive=False, reason=f"slurm ended job {number}: {words}{suffix}", cause=cause)


def _gpus(gres: str) -> int:
    """Count the GPUs of `gpu:a100:4(S:0-1),tmp:1`: the last part is how many, if it is a number."""
    kinds = [kind.split(":") for kind in re.sub(r"\([^)]*\)", "", gres).split(",")]
    return sum(int(kind[-1]) if kind[-1].isdigit() else 1 for kind in kinds if kind[0] == "gpu")
