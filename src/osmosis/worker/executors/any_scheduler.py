"""Jobs of any scheduler, by three commands: one starts a script, one lists what there is, one ends a job.

No shell reads the commands, and a job's own words never become more than one of theirs. The scheduler is given tickets
alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from osmosis.errors import PlatformError
from osmosis.records.base import Record
from osmosis.records.worker import ResourceNeeds, Resources, megabytes
from osmosis.records.worker_config import CommandOptions, filled

from . import job_script
from .executor import Handle, JobStart, JobState
from .programs import Programs


class CommandHandle(Record):
    """By which any worker with the same scheduler finds a job again."""

    executor: str
    id: str
    """As the scheduler lists it."""


class CommandExecutor:
    """`job_command` starts a job where the scheduler runs it."""

    name = "command"
    remote = True

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
        variable = self._options.index_variable
        if variable:
            number = self._submit(jobs, variable)
            ids = [self._options.task_id.format(id=number, index=index) for index in range(len(jobs))]
        else:
            ids = self._one_by_one(jobs)
        return [CommandHandle(executor=self.name, id=one).to_dict() for one in ids]

    def _one_by_one(self, jobs: Sequence[JobStart]) -> list[str]:
        ids: list[str] = []
        try:
            for job in jobs:
                ids.append(self._submit([job], ""))
        except PlatformError:
            for one in ids:  # all of them or none
                self._end(one)
            raise
        return ids

    def _submit(self, jobs: Sequence[JobStart], variable: str) -> str:
        first = jobs[0]
        words = filled(self._options.start, {"name": first.name, "count": str(len(jobs)), **_sizes(first.needs)})
        said = self._programs.say(words, job_script.script(jobs, self._job_command, index_variable=variable))
        found = re.search(self._options.id_pattern, said)
        if found is None:
            raise PlatformError(
                f"{words[0]} did not say what it calls the job: {said.strip()[:200]!r}",
                hint="id_pattern of [command] finds the id in what start prints",
            )
        return found[1] if found.re.groups else found[0]

    def owns(self, handle: Handle) -> bool:
        return handle.get("executor") == self.name

    def poll(self, handles: Sequence[Handle]) -> list[JobState]:
        listed = {}
        for line in self._programs.say(self._options.listing).splitlines():
            if (found := re.search(self._options.line_pattern, line)) is not None:
                groups = found.groupdict()
                listed[groups.get("id") or ""] = groups
        return [self._state(one, listed.get(one)) for one in (str(handle["id"]) for handle in handles)]

    def _state(self, number: str, listed: Mapping[str, str | None] | None) -> JobState:
        if listed is None:
            return JobState(alive=False, reason=f"the scheduler does not list job {number} any more")
        state, why, code = listed.get("state") or "", listed.get("why") or "", listed.get("code") or ""
        if state in self._options.queued:
            return JobState(alive=True, place=f"queued as job {number}" + (f" ({why})" if why else ""))
        if state not in self._options.ended:
            return JobState(alive=True)
        words = f"the scheduler says that job {number} is {state}" + (f": {why}" if why else "")
        return JobState(alive=False, exit_code=int(code) if code.lstrip("-").isdigit() else None, reason=words)

    def words(self, handle: Handle) -> str:
        """None: where a scheduler puts what a job prints is not known here."""
        return ""

    def reap(self) -> None:
        """The scheduler's jobs are no processes of this one."""

    def interrupt(self, handle: Handle) -> None:
        self.kill(handle)

    def kill(self, handle: Handle) -> None:
        if self.poll([handle])[0].alive:
            self._end(str(handle["id"]))

    def _end(self, number: str) -> None:
        self._programs.say(filled(self._options.end, {"id": number}))

    def resources(self) -> Resources:
        return self._resources

    def level(self) -> str:
        return "as each machine of the scheduler can"


def _sizes(needs: ResourceNeeds) -> dict[str, str]:
    """What a job asks for; 0 where it asks for nothing."""
    return {
        "cpus": f"{needs.cpus or 0:g}",
        "memory_mb": str(megabytes(needs.memory)),
        "gpus": str(needs.gpus or 0),
        "disk_mb": str(megabytes(needs.disk)),
        "wall_s": f"{needs.wall_s or 0:g}",
    }
