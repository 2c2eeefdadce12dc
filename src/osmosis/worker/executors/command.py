import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from osmosis.errors import PlatformError
from osmosis.records.config.worker import CommandOptions, ResourceNeeds, Resources, fill_placeholders, megabytes
from osmosis.worker.executors.executor import Handle, JobStart, JobState, SchedulerExecutor, SchedulerHandle
from osmosis.worker.executors.local import ALLOWED


class CommandExecutor(SchedulerExecutor):
    name = "command"

    def __init__(
        self,
        options: CommandOptions,
        job_command: Sequence[str],
        environ: Mapping[str, str],
        *,
        resources: Resources | None = None,
    ) -> None:
        self._options = options
        self._job_command = list(job_command)
        self._programs = Programs(environ, names=options.env)
        self._resources = resources or Resources()

    def start(self, jobs: Sequence[JobStart]) -> list[dict[str, object]]:
        if variable := self._options.index_variable:
            number = self._submit(jobs, variable)
            ids = [self._options.task_id.format(id=number, index=index) for index in range(len(jobs))]
        else:
            ids = self.start_each(jobs, lambda job: self._submit([job], ""))
        return [SchedulerHandle(executor=self.name, id=job_id).to_dict() for job_id in ids]

    def _submit(self, jobs: Sequence[JobStart], variable: str) -> str:
        values = {"name": jobs[0].name, "count": str(len(jobs)), **_sizes(jobs[0].needs)}
        command = fill_placeholders(self._options.start, values)
        output = self._programs.say(command, job_script(jobs, self._job_command, index_variable=variable))
        match = re.search(self._options.id_pattern, output)
        if match is None:
            message = f"{command[0]} did not say what it calls the job: {output.strip()[:200]!r}"
            raise PlatformError(message, hint="id_pattern of [command] finds the id in what start prints")
        return match[1] if match.re.groups else match[0]

    def poll(self, handles: Sequence[Handle]) -> list[JobState]:
        listed = {}
        for line in self._programs.say(self._options.listing).splitlines():
            if (match := re.search(self._options.line_pattern, line)) is not None:
                groups = match.groupdict()
                listed[groups.get("id") or ""] = groups
        return [self._state(number, listed.get(number)) for number in (str(handle["id"]) for handle in handles)]

    def _state(self, number: str, listed: Mapping[str, str | None] | None) -> JobState:
        if listed is None:
            return JobState(alive=False, reason=f"the scheduler does not list job {number} any more")
        state, detail, code = listed.get("state") or "", listed.get("why") or "", listed.get("code") or ""
        if state in self._options.queued:
            return JobState(alive=True, place=f"queued as job {number}" + (f" ({detail})" if detail else ""))
        if state not in self._options.ended:
            return JobState(alive=True)
        reason = f"the scheduler says that job {number} is {state}" + (f": {detail}" if detail else "")
        return JobState(alive=False, exit_code=int(code) if code.lstrip("-").isdigit() else None, reason=reason)

    def read_output(self, handle: Handle) -> str:
        """Return nothing: only the scheduler knows where it puts a job's output."""
        return ""

    def end(self, number: str) -> None:
        self._programs.say(fill_placeholders(self._options.end, {"id": number}))

    def resources(self) -> Resources:
        return self._resources

    def level(self) -> str:
        return "as each machine of the scheduler can"


def _sizes(needs: ResourceNeeds) -> dict[str, str]:
    return {
        "cpus": f"{needs.cpus or 0:g}",
        "memory_mb": str(megabytes(needs.memory)),
        "gpus": str(needs.gpus or 0),
        "disk_mb": str(megabytes(needs.disk)),
        "wall_s": f"{needs.wall_s or 0:g}",
    }


LIMIT_S = 60.0


class Programs:
    """Call programs. `names` and `prefixes` select further variables that they get."""

    def __init__(
        self, environ: Mapping[str, str], *, names: Sequence[str] = (), prefixes: tuple[str, ...] = ()
    ) -> None:
        self._environ = {
            key: value
            for key, value in environ.items()
            if ALLOWED.match(key) or key in names or (prefixes and key.startswith(prefixes))
        }

    def say(self, command: Sequence[str], standard_input: str = "") -> str:
        try:
            done = subprocess.run(
                list(command),
                input=standard_input,
                env=self._environ,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                check=False,
            )
        except OSError as problem:
            raise PlatformError(f"{command[0]} could not be started: {problem.strerror or problem}") from problem
        except subprocess.TimeoutExpired:
            raise PlatformError(f"{command[0]} did not answer within {LIMIT_S:g} s") from None
        if done.returncode != 0:
            output = (done.stderr.strip() or done.stdout.strip())[-500:]
            raise PlatformError(f"{command[0]} failed with exit code {done.returncode}: {output}")
        return done.stdout if done.stdout.strip() else done.stderr


_END = "OSMOSIS"


def job_script_lines(jobs: Sequence[JobStart], command: Sequence[str], *, index_variable: str = "") -> str:
    """Return lines for `sh`. With several jobs the variable is the index of this task, from 0."""
    if len(jobs) == 1 and not index_variable:
        return _one(jobs[0], command)
    cases = "".join(f"{number})\n{_one(job, command)};;\n" for number, job in enumerate(jobs))
    return f'case "${{{index_variable}}}" in\n{cases}esac\n'


def job_script(jobs: Sequence[JobStart], command: Sequence[str], *, index_variable: str = "") -> str:
    return f"#!/bin/sh\n{job_script_lines(jobs, command, index_variable=index_variable)}"


def _one(job: JobStart, command: Sequence[str]) -> str:
    entry = job.entry.model_dump_json()  # one line, so it cannot be the last one
    return f"exec {shlex.join([*command, '--run', job.url])} <<'{_END}'\n{entry}\n{_END}\n"
