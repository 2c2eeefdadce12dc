import asyncio
import logging
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import sqlalchemy as sa
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from osmosis._version import __version__
from osmosis.base.http_server import HostGuard, HostNames
from osmosis.errors import NetworkError
from osmosis.platform import Platform, web
from osmosis.platform.auth import login, routes as auth
from osmosis.platform.auth.openid import OpenIdProvider
from osmosis.platform.background import RepeatingThread, run_in_turn
from osmosis.platform.datasets import ingest, routes as datasets
from osmosis.platform.db import HEAD
from osmosis.platform.embedded_worker import LeaseReaper, Reachability, build_embedded_worker
from osmosis.platform.git import routes as git, sync
from osmosis.platform.http import BodyLimits, ClientVersions, JsonRoute, RequestLog, check_reader, handle_errors
from osmosis.platform.maintenance.gc import sweep_daily
from osmosis.platform.maintenance.telemetry import PlatformMetrics
from osmosis.platform.models import routes as models
from osmosis.platform.models.inference import InferenceProxy
from osmosis.platform.objects.publish import publish_all
from osmosis.platform.run_upload import finished_run, routes as run_upload
from osmosis.platform.runs import decisions, notices, routes as eval_runs, schedules
from osmosis.platform.scheduling import routes as scheduling
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.training import routes as training
from osmosis.platform.workspaces import routes as workspaces
from osmosis.records.api.accounts import Health

log = logging.getLogger(__name__)


async def _poll(platform: Platform) -> None:
    while True:
        await asyncio.sleep(platform.settings.remote_poll_s)
        try:
            for repository_id in await run_in_threadpool(sync.list_external, platform.db):
                await run_in_turn("sync", repository_id, sync.poll, platform.db, platform.settings, repository_id)
        except Exception:
            # The border of a task that must go on: one bad look is not the last.
            log.exception("polling the connected repositories failed")


def _take_up_now(platform: Platform) -> None:
    for finish in (ingest.forget_abandoned, ingest.recover, finished_run.recover):
        try:
            finish(platform)
        except NetworkError as error:
            log.warning("what was left half done waits for the next start: %s", error.message)


def create_app(settings: PlatformSettings) -> FastAPI:
    platform = Platform.open(settings)
    login.prepare(platform)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Recover unfinished uploads at start, in a thread if an object store must be asked, which may not answer.
        if not platform.objects.elsewhere:
            _take_up_now(platform)
        else:
            threading.Thread(target=_take_up_now, args=(platform,), daemon=True, name="take-up").start()
        publish_all(platform)
        reaper = app.state.reaper = LeaseReaper(platform)
        reaper.start()
        loop_watch = asyncio.create_task(reaper.note_loop_alive())
        reachability = Reachability(settings.job_base_url, settings.lease_s)
        worker = build_embedded_worker(platform, reachability=reachability) if settings.worker else None
        daily = sweep_daily(platform)
        if worker is not None:
            worker.start()
            daily.start()
        notifier = RepeatingThread("delivery of notices", 2.0, partial(notices.deliver_due, platform))
        scheduler = RepeatingThread("submits of schedules", 30.0, partial(schedules.submit_due, platform))
        decider = RepeatingThread("looks of decisions", 2.0, partial(decisions.advance_all, platform))
        app.state.notifier, app.state.decider = notifier, decider
        for thread in (notifier, scheduler, decider):
            thread.start()
        polling = asyncio.create_task(_poll(platform)) if settings.remote_poll_s else None
        try:
            yield
        finally:
            loop_watch.cancel()
            if polling is not None:
                polling.cancel()
            daily.stop(wait_s=0)  # it may be long at it, and goes on tomorrow
            if worker is not None:
                await run_in_threadpool(worker.stop)
            await app.state.inference.close()
            await run_in_threadpool(reaper.stop)
            for thread in (notifier, scheduler, decider):
                await run_in_threadpool(thread.stop)
            platform.db.close()

    app = FastAPI(title="osmosis platform", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.platform = platform
    app.state.openid = OpenIdProvider(settings.openid) if settings.openid else None
    app.state.inference = InferenceProxy(settings.inference_timeout_s)
    for router in ROUTERS:
        # as they are: include_router would build each of them again, at the first request
        app.router.routes.extend(router.routes)
    sync.recover(app.state.platform.db)
    handle_errors(app)
    web.mount(app)  # which shows some errors as pages
    app.add_middleware(ClientVersions)
    app.add_middleware(BodyLimits, platform=platform)
    measurements = PlatformMetrics(platform)
    hint = "start the platform with --allowed-host NAME, or with --public-url https://NAME"
    app.add_middleware(HostGuard, names=HostNames(settings.host_names), hint=hint, open_paths=("/health", "/ready"))

    app.add_middleware(RequestLog, measurements=measurements, lines=settings.log_requests)

    @app.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> Response:
        check_reader(request, settings)
        return Response(measurements.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def health() -> Health:
        return Health(status="healthy", version=__version__)

    app.router.add_api_route("/health", health, methods=["GET"], route_class_override=JsonRoute)

    @app.get("/ready", responses={503: {"model": Health}})
    def ready(answer: Response) -> Health:
        """Say to load balancers whether requests can be served now; the reason why not is in the log alone."""
        problem = find_unreadiness(platform)
        if problem:
            log.warning("not ready: %s", problem)
            answer.status_code = 503
        return Health(status="unready" if problem else "ready", version=__version__)

    return app


LEAST_FREE_BYTES = 16 * 1024 * 1024


def find_unreadiness(platform: Platform) -> str:
    try:
        with platform.db.read() as session:
            version = session.scalar(sa.text("SELECT version_num FROM alembic_version"))
    except sa.exc.SQLAlchemyError as error:
        return f"the database does not answer: {type(error).__name__}"
    if version != HEAD:
        return f"the database is at revision {version}, this version needs {HEAD}"
    try:
        free = shutil.disk_usage(platform.settings.data_dir).free
    except OSError as error:
        return f"the data folder cannot be read: {error.strerror}"
    if free < LEAST_FREE_BYTES:
        return f"{free} bytes are free in the data folder"
    return ""


ROUTERS: tuple[APIRouter, ...] = (
    auth.router, workspaces.router, git.router, git.host_router, datasets.router, run_upload.router, eval_runs.router,
    training.router, models.files_router, models.router, models.inference_router,
    models.not_offered, scheduling.tickets_router, scheduling.router, scheduling.workers_router,
    scheduling.people_router,
)  # fmt: skip
