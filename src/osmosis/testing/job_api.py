"""The job side of a platform, small and real: an HTTP server on loopback that keeps what a job tells it.

It checks the lease token, stores rollouts once per key, and can be told to be down, to have given the lease to
somebody else, to ask the job to stop, or to refuse large bodies. It runs nothing and forgets everything at the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from osmosis.errors import LeaseLost
from osmosis.records.contract.job_messages import JobModel
from osmosis.records.keys import Key
from osmosis.records.rollout import Rollout
from osmosis.records.run import CheckpointReport, JobResult, JobSpec, LogLine, MetricPoint, Progress, RolloutBatch


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
        return {one.place: one for one in self.rollouts.values()}[(row_index, attempt)]

    def text(self) -> str:
        return "\n".join(self.raw)


@asynccontextmanager
async def job_api(run_id: str = "run_1", token: str = "lease-token", port: int = 0) -> AsyncIterator[FakeJobApi]:
    """The server, started; `FakeJobApi.url` is what a job gets as `platform_url`."""
    api = FakeJobApi(run_id, token)
    app = web.Application(client_max_size=64 * 1024 * 1024, middlewares=[_guard(api)])
    prefix = f"/api/jobs/{run_id}"
    app.router.add_get(f"{prefix}/spec", _spec(api))
    app.router.add_post(f"{prefix}/secrets", _secrets(api))
    for name in ("source", "dataset"):
        app.router.add_get(f"{prefix}/{name}", _file(api, name))
    app.router.add_get(f"{prefix}/artifacts/{{rollout_id}}", _artifacts(api))
    app.router.add_put(f"{prefix}/artifacts/{{rollout_id}}/{{path:.+}}", _put_artifact(api))
    app.router.add_post(f"{prefix}/heartbeat", _heartbeat(api))
    app.router.add_get(f"{prefix}/rollouts", _keys(api))
    app.router.add_post(f"{prefix}/rollouts", _store(api))
    app.router.add_post(f"{prefix}/logs", _logs(api))
    app.router.add_post(f"{prefix}/metrics", _metrics(api))
    app.router.add_post(f"{prefix}/checkpoints", _checkpoints(api))
    app.router.add_post(f"{prefix}/model", _model(api))
    app.router.add_post(f"{prefix}/finish", _finish(api))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield api
    finally:
        await runner.cleanup()


def _guard(api: FakeJobApi) -> Middleware:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        api.requests += 1
        if api.down:
            return web.json_response({"error": "starting"}, status=503)
        if api.lease_lost or request.headers.get("Authorization") != f"Bearer {api.token}":
            if request.method == "POST":
                api.late_writes += 1
            return web.json_response(LeaseLost("another job has this run").to_wire(), status=409)
        if request.method == "POST" and not request.path.endswith("/secrets"):
            api.raw.append(await request.text())
        return await handler(request)

    return guard


def _spec(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        assert api.spec is not None
        return web.Response(text=api.spec.model_dump_json(), content_type="application/json")

    return handle


def _secrets(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response({"values": api.secrets})

    return handle


def _file(api: FakeJobApi, name: str) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        first = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        return web.Response(body=api.files[name][first:], status=206 if first else 200)

    return handle


def _artifacts(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        before = f"artifacts/{request.match_info['rollout_id']}/"
        there = {path.removeprefix(before): len(body) for path, body in api.files.items() if path.startswith(before)}
        return web.json_response({"files": there})

    return handle


def _put_artifact(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        path = f"artifacts/{request.match_info['rollout_id']}/{request.match_info['path']}"
        api.files[path] = api.files.get(path, b"")[: int(request.query["offset"])] + await request.read()
        return web.json_response({"complete": len(api.files[path]) == int(request.query["size"])})

    return handle


def _heartbeat(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        api.heartbeats.append(Progress.model_validate_json(await request.read()))
        return web.json_response({"stop": api.stop} if api.heartbeat_reply is None else api.heartbeat_reply)

    return handle


def _model(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        api.models.append(JobModel.model_validate_json(await request.read()))
        return web.json_response({"stored": 1})

    return handle


def _keys(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        if request.query.get("bodies") != "true":
            return web.json_response({"keys": [list(key) for key in sorted(api.rollouts)]})
        first = int(request.query["offset"])
        page = sorted(api.rollouts)[first : first + int(request.query["limit"])]
        body = b"".join(api.rollouts[key].to_line() for key in page)
        return web.Response(body=body, content_type="application/x-ndjson")

    return handle


def _store(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        batch = RolloutBatch.model_validate_json(await request.read()).rollouts
        if api.refuse:
            return web.json_response({"error": "refused", "message": "refused"}, status=api.refuse)
        if api.max_rollouts is not None and len(batch) > api.max_rollouts:
            return web.json_response({"error": "too large"}, status=413)
        api.batches.append(len(batch))
        for rollout in batch:
            api.received.append(rollout.place)
            api.rollouts.setdefault(rollout.key, rollout)
        return web.json_response({"stored": len(batch)})

    return handle


def _logs(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        api.logs += [LogLine.model_validate(line) for line in (await request.json())["lines"]]
        return web.json_response({})

    return handle


def _metrics(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        api.metrics += [MetricPoint.model_validate(point) for point in (await request.json())["points"]]
        return web.json_response({})

    return handle


def _checkpoints(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        api.checkpoints += [CheckpointReport.model_validate(one) for one in (await request.json())["checkpoints"]]
        return web.json_response({})

    return handle


def _finish(api: FakeJobApi) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        api.result = JobResult.model_validate_json(await request.read())
        return web.json_response({})

    return handle
