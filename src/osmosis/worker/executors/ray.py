"""Jobs of an existing Ray cluster: each job or shard is one Ray job, submitted to its dashboard over HTTP."""

import shlex
import ssl
import uuid
from collections.abc import Mapping, Sequence

import httpx

from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_loopback
from osmosis.errors import OsmosisError, PlatformError
from osmosis.records.config.worker import RayOptions, Resources, megabytes
from osmosis.worker.executors.executor import Handle, JobStart, JobState, SchedulerExecutor, SchedulerHandle
from osmosis.worker.executors.local import LAST_WORDS

TIMEOUT_S = 60.0
MB = 1024 * 1024
ENTRY = "OSMOSIS_JOB_ENTRY"
"""Variable with the entry; the job reads it from standard input and does not see the variable."""


class RayExecutor(SchedulerExecutor):
    name = "ray"

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
        ids = self.start_each(jobs, self._submit)
        return [SchedulerHandle(executor=self.name, id=number).to_dict() for number in ids]

    def _submit(self, job: JobStart) -> str:
        runtime_env = self._options.runtime_env
        variables = runtime_env.get("env_vars")
        shared = dict(variables) if isinstance(variables, Mapping) else {}
        command = shlex.join([*self._job_command, "--run", job.url])
        request: JsonObject = {"entrypoint_num_cpus": job.needs.cpus or self._options.cpus}
        if job.needs.gpus:
            request["entrypoint_num_gpus"] = job.needs.gpus
        if job.needs.memory:
            request["entrypoint_memory"] = megabytes(job.needs.memory) * MB
        if self._options.resources:
            request["entrypoint_resources"] = dict(self._options.resources)
        body = {
            "submission_id": f"osmosis-{job.name}-{uuid.uuid4().hex[:8]}",
            # A shell reads it; what is in the variable is data to it.
            "entrypoint": f"exec env -u {ENTRY} {command} <<OSMOSIS\n${ENTRY}\nOSMOSIS",
            "runtime_env": {**runtime_env, "env_vars": {**shared, ENTRY: job.entry.model_dump_json()}},
            "metadata": {"osmosis_run": job.name},
            **request,
        }
        return str(self._ask("POST", "/api/jobs/", body)["submission_id"])

    def poll(self, handles: Sequence[Handle]) -> list[JobState]:
        listed = {job.get("submission_id"): job for job in self._ask("GET", "/api/jobs/")["jobs"]}
        return [_state(id_, listed.get(id_)) for id_ in (str(handle["id"]) for handle in handles)]

    def read_output(self, handle: Handle) -> str:
        try:
            return str(self._ask("GET", f"/api/jobs/{handle['id']}/logs").get("logs", ""))[-LAST_WORDS:].strip()
        except OsmosisError:  # they went with their node
            return ""

    def end(self, number: str) -> None:
        self._ask("POST", f"/api/jobs/{number}/stop")

    def resources(self) -> Resources:
        if self._resources is not None:
            return self._resources
        answer = self._ask("GET", "/api/v0/nodes?detail=1&limit=10000")
        nodes = [node for node in answer["data"]["result"]["result"] if node.get("state") == "ALIVE"]
        totals = [node.get("resources_total") or {} for node in nodes]
        cpus, memory, gpus = (sum(node.get(name, 0) for node in totals) for name in ("CPU", "memory", "GPU"))
        return Resources(cpus=cpus, memory_mb=int(memory) // MB, gpus=int(gpus))

    def level(self) -> str:
        return "as each node can"

    def _ask(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        where = f"ray at {self._options.address}"
        try:
            answer = self._http.request(method, path, json=body)
        except httpx.HTTPError as problem:
            raise PlatformError(f"{where} cannot be reached: {problem}") from problem
        if answer.status_code in (401, 403):
            message = f"{where} does not take this worker: HTTP {answer.status_code}"
            raise PlatformError(message, hint=f"set {self._options.token_variable} to the cluster's token")
        if answer.status_code >= 400:
            raise PlatformError(f"{where} answered HTTP {answer.status_code}: {answer.text[-500:]}")
        try:
            parsed = answer.json()
        except ValueError:
            raise PlatformError(f"{where} answered with something else than JSON") from None
        return parsed if isinstance(parsed, dict) else {"jobs": parsed}


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
