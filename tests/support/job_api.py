"""The job side of a platform, small and real: an HTTP server on loopback that keeps what a job tells it.

It checks the lease token, stores rollouts once per key, and can be told to be down, to have given the lease to
somebody else, to ask the job to stop, or to refuse large bodies. It runs nothing and forgets everything at the end.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from osmosis.errors import LeaseLost
from osmosis.records.api.workers import JobModel
from osmosis.records.run.job import CheckpointReport, JobResult, JobSpec, LogLine, MetricPoint, Progress, RolloutBatch
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import Key


@dataclass
class FakeJobApi:
    """What the server knows; change the fields while it runs."""

    run_id: str
    token: str
    url: str = ""
    spec: JobSpec | None = None
    """What a job is told that asks."""
    secrets: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    """What is sent as `source` and `dataset`, and what came as `artifacts/...`."""
    rollouts: dict[Key, Rollout] = field(default_factory=dict)
    received: list[tuple[int, int]] = field(default_factory=list)
    """(row index, attempt) in the order they came, repeated ones too."""
    batches: list[int] = field(default_factory=list)
    heartbeats: list[Progress] = field(default_factory=list)
    logs: list[LogLine] = field(default_factory=list)
    metrics: list[MetricPoint] = field(default_factory=list)
    checkpoints: list[CheckpointReport] = field(default_factory=list)
    models: list[JobModel] = field(default_factory=list)
    result: JobResult | None = None
    raw: list[str] = field(default_factory=list)
    """Every accepted body, as it came."""
    requests: int = 0
    down: bool = False
    """Answer 503, as a platform that is starting again behind a proxy."""
    lease_lost: bool = False
    stop: bool = False
    """Ask the job to stop in the next heartbeat's reply."""
    heartbeat_reply: object = None
    """Answer heartbeats with this instead."""
    refuse: int | None = None
    """Answer every batch of rollouts with this status."""
    max_rollouts: int | None = None
    """Answer 413 to larger batches."""
    late_writes: int = 0
    """Writes refused because the lease was lost."""

    def at(self, row_index: int, attempt: int) -> Rollout:
        """The rollout of this place; `KeyError` when there is none."""
        return {rollout.place: rollout for rollout in self.rollouts.values()}[(row_index, attempt)]

    def text(self) -> str:
        return "\n".join(self.raw)

    @property
    def guard(self) -> Middleware:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            self.requests += 1
            if self.down:
                return web.json_response({"error": "starting"}, status=503)
            if self.lease_lost or request.headers.get("Authorization") != f"Bearer {self.token}":
                self.late_writes += request.method == "POST"
                return web.json_response(LeaseLost("another job has this run").to_wire(), status=409)
            if request.method == "POST" and not request.path.endswith("/secrets"):
                self.raw.append(await request.text())
            return await handler(request)

        return guard

    async def send(self, request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        if name == "spec":
            return web.Response(text=self.spec.model_dump_json(), content_type="application/json")
        if name != "rollouts":
            first = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
            return web.Response(body=self.files[name][first:], status=206 if first else 200)
        if request.query.get("bodies") != "true":
            return web.json_response({"keys": [list(key) for key in sorted(self.rollouts)]})
        first = int(request.query["offset"])
        page = sorted(self.rollouts)[first : first + int(request.query["limit"])]
        body = b"".join(self.rollouts[key].to_line() for key in page)
        return web.Response(body=body, content_type="application/x-ndjson")

    async def send_artifact_sizes(self, request: web.Request) -> web.Response:
        prefix = f"artifacts/{request.match_info['rollout_id']}/"
        sizes = {path.removeprefix(prefix): len(body) for path, body in self.files.items() if path.startswith(prefix)}
        return web.json_response({"files": sizes})

    async def take_artifact(self, request: web.Request) -> web.Response:
        path = f"artifacts/{request.match_info['rollout_id']}/{request.match_info['path']}"
        self.files[path] = self.files.get(path, b"")[: int(request.query["offset"])] + await request.read()
        return web.json_response({"complete": len(self.files[path]) == int(request.query["size"])})

    async def take(self, request: web.Request) -> web.Response:
        name, body = request.path.rpartition("/")[2], await request.read()
        answer: object = {}
        if name == "secrets":
            answer = {"values": self.secrets}
        elif name == "heartbeat":
            self.heartbeats.append(Progress.model_validate_json(body))
            answer = {"stop": self.stop} if self.heartbeat_reply is None else self.heartbeat_reply
        elif name == "rollouts":
            return self._take_rollouts(RolloutBatch.model_validate_json(body).rollouts)
        elif name == "logs":
            self.logs += [LogLine.model_validate(line) for line in json.loads(body)["lines"]]
        elif name == "metrics":
            self.metrics += [MetricPoint.model_validate(point) for point in json.loads(body)["points"]]
        elif name == "checkpoints":
            self.checkpoints += [CheckpointReport.model_validate(saved) for saved in json.loads(body)["checkpoints"]]
        elif name == "model":
            self.models.append(JobModel.model_validate_json(body))
            answer = {"stored": 1}
        else:
            self.result = JobResult.model_validate_json(body)
        return web.json_response(answer)

    def _take_rollouts(self, batch: list[Rollout]) -> web.Response:
        if self.refuse:
            return web.json_response({"error": "refused", "message": "refused"}, status=self.refuse)
        if self.max_rollouts is not None and len(batch) > self.max_rollouts:
            return web.json_response({"error": "too large"}, status=413)
        self.batches.append(len(batch))
        for rollout in batch:
            self.received.append(rollout.place)
            self.rollouts.setdefault(rollout.key, rollout)
        return web.json_response({"stored": len(batch)})


@asynccontextmanager
async def job_api(run_id: str = "run_1", token: str = "lease-token", port: int = 0) -> AsyncIterator[FakeJobApi]:
    """The server, started; `FakeJobApi.url` is what a job gets as `platform_url`."""
    api = FakeJobApi(run_id, token)
    app = web.Application(client_max_size=64 * 1024 * 1024, middlewares=[api.guard])
    prefix = f"/api/jobs/{run_id}"
    for name in ("spec", "source", "dataset", "rollouts"):
        app.router.add_get(f"{prefix}/{name}", api.send)
    app.router.add_get(f"{prefix}/artifacts/{{rollout_id}}", api.send_artifact_sizes)
    app.router.add_put(f"{prefix}/artifacts/{{rollout_id}}/{{path:.+}}", api.take_artifact)
    for name in ("secrets", "heartbeat", "rollouts", "logs", "metrics", "checkpoints", "model", "finish"):
        app.router.add_post(f"{prefix}/{name}", api.take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield api
    finally:
        await runner.cleanup()
