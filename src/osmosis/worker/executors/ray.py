"""Jobs of a Ray cluster that is there: each job or shard is one Ray job, submitted to its dashboard over HTTP.

Nothing of Ray is imported: what submits jobs is its documented REST interface, so a worker fits any Ray that has it,
KubeRay's and a cloud's included. The cluster itself is never started or stopped here. Ray shows a job's runtime
environment to whoever sees its dashboard: the ticket is in it, and nothing that is secret.
"""

from __future__ import annotations

import shlex
import ssl
import uuid
from collections.abc import Mapping, Sequence

import httpx

from osmosis.base.json_types import JsonObject
from osmosis.base.net import is_loopback
from osmosis.errors import OsmosisError, PlatformError
from osmosis.records.base import Record
from osmosis.records.worker import ResourceNeeds, Resources, megabytes
from osmosis.records.worker_config import RayOptions

from .executor import Handle, JobStart, JobState
from .local import LAST_WORDS

TIMEOUT_S = 60.0
MB = 1024 * 1024
ENTRY = "OSMOSIS_JOB_ENTRY"
"""Variable by which the entry comes; the job itself reads it from standard input and does not have the variable."""


class RayHandle(Record):
    """By which any worker of the same cluster finds a job again."""

    executor: str
    id: str
    """The submission id."""


class RayExecutor:
    """`job_command` starts a job in the runtime environment that the options describe."""

    name = "ray"
    remote = True

    def __init__(
        self,
        options: RayOptions,
        job_command: Sequence[str],
        environ: Mapping[str, str],
        *,
        resources: Resources | None = None,
    ) -> None:
        token = environ.get(options.token_variable, "")
        self._options = options
        self._job_command = list(job_command)
        self._resources = resources
        self._http = httpx.Client(
            base_url=options.address.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=TIMEOUT_S,
            trust_env=not is_loopback(options.address),
            verify=ssl.create_default_context(cafile=options.ca_file) if options.ca_file else True,
        )

    def start(self, jobs: Sequence[JobStart]) -> list[dict[str, object]]:
        ids: list[str] = []
        try:
            for job in jobs:
                ids.append(self._submit(job))
        except OsmosisError:
            for one in ids:  # all of them or none
                self._stop(one)
            raise
        return [RayHandle(executor=self.name, id=one).to_dict() for one in ids]

    def _submit(self, job: JobStart) -> str:
        given = self._options.runtime_env
        variables = given.get("env_vars")
        shared = dict(variables) if isinstance(variables, Mapping) else {}
        command = shlex.join([*self._job_command, "--run", job.url])
        body = {
            "submission_id": f"osmosis-{job.name}-{uuid.uuid4().hex[:8]}",
            # A shell reads it; what is in the variable is data to it.
            "entrypoint": f"exec env -u {ENTRY} {command} <<OSMOSIS\n${ENTRY}\nOSMOSIS",
            "runtime_env": {**given, "env_vars": {**shared, ENTRY: job.entry.model_dump_json()}},
            "metadata": {"osmosis_run": job.name},
            **_asked(job.needs, self._options),
        }
        return str(self._ask("POST", "/api/jobs/", body)["submission_id"])

    def owns(self, handle: Handle) -> bool:
        return handle.get("executor") == self.name

    def poll(self, handles: Sequence[Handle]) -> list[JobState]:
        listed = {one.get("submission_id"): one for one in self._ask("GET", "/api/jobs/")["jobs"]}
        return [_state(one, listed.get(one)) for one in (str(handle["id"]) for handle in handles)]

    def words(self, handle: Handle) -> str:
        try:
            return str(self._ask("GET", f"/api/jobs/{handle['id']}/logs").get("logs", ""))[-LAST_WORDS:].strip()
        except OsmosisError:  # they went with their node
            return ""

    def reap(self) -> None:
        """Ray's jobs are no processes of this one."""

    def interrupt(self, handle: Handle) -> None:
        self.kill(handle)

    def kill(self, handle: Handle) -> None:
        if self.poll([handle])[0].alive:
            self._stop(str(handle["id"]))

    def _stop(self, number: str) -> None:
        """One job, never the cluster: it gets SIGTERM, and SIGKILL some seconds later."""
        self._ask("POST", f"/api/jobs/{number}/stop")

    def resources(self) -> Resources:
        """Of all nodes that live, together."""
        if self._resources is not None:
            return self._resources
        answer = self._ask("GET", "/api/v0/nodes?detail=1&limit=10000")
        nodes = [one for one in answer["data"]["result"]["result"] if one.get("state") == "ALIVE"]
        totals = [one.get("resources_total") or {} for one in nodes]
        return Resources(
            cpus=sum(one.get("CPU", 0) for one in totals),
            memory_mb=int(sum(one.get("memory", 0) for one in totals)) // MB,
            gpus=int(sum(one.get("GPU", 0) for one in totals)),
        )

    def level(self) -> str:
        return "as each node can"

    def _ask(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        """The JSON object of the answer. PlatformError when there is none."""
        where = f"ray at {self._options.address}"
        try:
            answer = self._http.request(method, path, json=body)
        except httpx.HTTPError as problem:
            raise PlatformError(f"{where} cannot be reached: {problem}") from problem
        if answer.status_code in (401, 403):
            raise PlatformError(
                f"{where} does not take this worker: HTTP {answer.status_code}",
                hint=f"set {self._options.token_variable} to the cluster's token",
            )
        if answer.status_code >= 400:
            raise PlatformError(f"{where} answered HTTP {answer.status_code}: {answer.text[-500:]}")
        try:
            found = answer.json()
        except ValueError:
            raise PlatformError(f"{where} answered with something else than JSON") from None
        return found if isinstance(found, dict) else {"jobs": found}


def _asked(needs: ResourceNeeds, options: RayOptions) -> JsonObject:
    """What a job needs, as Ray is told."""
    asked: JsonObject = {"entrypoint_num_cpus": needs.cpus or options.cpus}
    if needs.gpus:
        asked["entrypoint_num_gpus"] = needs.gpus
    if needs.memory:
        asked["entrypoint_memory"] = megabytes(needs.memory) * MB
    if options.resources:
        asked["entrypoint_resources"] = dict(options.resources)
    return asked


def _state(number: str, listed: Mapping[str, object] | None) -> JobState:
    if listed is None:
        return JobState(alive=False, reason=f"ray does not know job {number} any more", cause="machine")
    state, message = str(listed.get("status")), str(listed.get("message") or "").partition("\n")[0].strip()
    if state == "PENDING":
        return JobState(alive=True, place=f"queued in ray as job {number}" + (f" ({message})" if message else ""))
    if state == "RUNNING":
        return JobState(alive=True)
    code = listed.get("driver_exit_code")
    code = code if isinstance(code, int) else None
    if state == "STOPPED":
        return JobState(alive=False, reason=f"job {number} was stopped in ray", cause="final")
    if state == "FAILED" and code is None:  # no driver said how it ended: what ran it is gone
        return JobState(alive=False, reason=f"ray lost job {number}: {message}", cause="machine")
    return JobState(alive=False, exit_code=code, reason=f"ray ended job {number}: {message}" if message else "")
