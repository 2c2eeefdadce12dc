from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated

import orjson
from fastapi import APIRouter, Body, Depends, Response
from fastapi.responses import Response as Raw, StreamingResponse
from sqlalchemy.orm import Session

from osmosis.errors import NotFound, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.auth.dependencies import PlatformDep, Scope, ScopeDep, may
from osmosis.platform.background import slow, stream_apart
from osmosis.platform.datasets import ingest
from osmosis.platform.db import count_of
from osmosis.platform.http import JsonRoute, Reading, Writing
from osmosis.platform.models import deployments, service as models
from osmosis.platform.objects.parts import SIGNED, object_url, sign_url
from osmosis.platform.objects.store import Content
from osmosis.platform.paging import LogSliceDep, LongPageDep, PageDep
from osmosis.platform.run_source import DatabaseLibrary
from osmosis.platform.runs import (
    benchmarks,
    decisions,
    downloads,
    lifecycle,
    rollouts,
    schedules,
    share_links,
    submit,
    views,
)
from osmosis.platform.runs.retry import retry as retry_run
from osmosis.platform.scheduling import workers
from osmosis.platform.workspaces import audit
from osmosis.records.api import runs as run_api
from osmosis.records.api.body import LogPage
from osmosis.records.api.training import TrainingRunDetail, TrainingRunPage
from osmosis.records.run.annotations import MarkChange
from osmosis.records.run.history import History
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.status import RunKind
from osmosis.viewer.history import HistoryQuery, build_history
from osmosis.viewer.index import remove_index

ANSWERS: dict[RunKind, tuple[type[run_api.RunPage], type[run_api.RunDetail]]] = {
    "eval": (run_api.EvalRunPage, run_api.EvalRunDetail),
    "training": (TrainingRunPage, TrainingRunDetail),
}


@dataclass(frozen=True, slots=True)
class RunRoutes:
    kind: RunKind

    @property
    def prefix(self) -> str:
        return f"/api/cli/{self.kind}-runs"

    def router(self) -> APIRouter:
        router = APIRouter(route_class=JsonRoute)
        page, detail = ANSWERS[self.kind]
        router.add_api_route(self.prefix, self.list_runs, methods=["GET"], response_model=page)
        router.add_api_route(f"{self.prefix}/{{name}}", self.get_run, methods=["GET"], response_model=detail)
        router.add_api_route(f"{self.prefix}/{{name}}", self.mark, methods=["PATCH"])
        router.add_api_route(f"{self.prefix}/{{name}}", self.delete, methods=["DELETE"], status_code=204)
        router.add_api_route(f"{self.prefix}/{{name}}/logs", self.logs, methods=["GET"])
        router.add_api_route(f"{self.prefix}/{{name}}/stop", self.stop, methods=["POST"])
        router.add_api_route(f"{self.prefix}/{{name}}/priority", self.prioritize, methods=["PUT"])
        router.add_api_route(f"{self.prefix}/{{name}}/share-links", self.list_share_links, methods=["GET"])
        router.add_api_route(f"{self.prefix}/{{name}}/share-links", self.share, methods=["POST"])
        path = f"{self.prefix}/{{name}}/share-links/{{link_id}}"
        router.add_api_route(path, self.unshare, methods=["DELETE"], status_code=204)
        return router

    def find(self, session: Session, scope: Scope, name: str) -> tables.Run:
        return lifecycle.find(session, scope.workspace, self.kind, name)

    def list_runs(
        self, platform: PlatformDep, session: Reading, scope: ScopeDep, page: PageDep, tag: str | None = None
    ) -> run_api.RunPage:
        runs, total = lifecycle.list_runs(session, page, scope.workspace.id, self.kind, tag)
        return views.build_page(session, platform.settings, self.kind, runs, page.place(len(runs), total))

    def get_run(self, name: str, platform: PlatformDep, session: Reading, scope: ScopeDep) -> run_api.RunDetail:
        return views.build_detail(session, platform.settings, self.find(session, scope, name))

    def logs(self, name: str, session: Reading, scope: ScopeDep, page: LogSliceDep) -> LogPage:
        run = self.find(session, scope, name)
        return page.fetch(session, tables.RunLog, tables.RunLog.run_id == run.id)

    def stop(self, name: str, platform: PlatformDep, session: Writing, scope: ScopeDep) -> run_api.StoppingRun:
        run = self.find(session, scope, name)
        lifecycle.request_stop(session, run)
        audit.note(session, scope, "run.stop", run.name, workspace=scope.workspace)
        values = {"platform_url": platform.settings.run_url(run.id), "total_dataset_rows": run.dataset_rows}
        return run_api.StoppingRun.from_row(run, **values, stop_requested=run.stop_requested_at is not None)

    def mark(self, name: str, session: Writing, scope: ScopeDep, body: MarkChange) -> run_api.MarkedRun:
        run = self.find(session, scope, name)
        lifecycle.mark(session, run, body)
        audit.note(session, scope, "run.mark", name, workspace=scope.workspace, renamed=body.name)
        return run_api.MarkedRun.from_row(run)

    def prioritize(
        self, name: str, body: run_api.RunPriority, session: Writing, scope: ScopeDep
    ) -> run_api.RunPriority:
        run = self.find(session, scope, name)
        lifecycle.prioritize(session, run, body.priority, scope.user.name)
        audit.note(session, scope, "run.priority", run.name, workspace=scope.workspace, priority=body.priority)
        return body

    def list_share_links(self, name: str, session: Reading, scope: ScopeDep) -> run_api.ShareLinkList:
        links = share_links.list_valid(session, self.find(session, scope, name))
        return run_api.ShareLinkList(links=[run_api.ShareLink.from_row(link) for link in links])

    def share(
        self, name: str, body: run_api.NewShareLink, platform: PlatformDep, session: Writing, scope: ScopeDep
    ) -> run_api.ShareLink:
        run = self.find(session, scope, name)
        link, url = share_links.create(session, platform.settings, scope, scope.workspace, run, body.expires_in)
        return run_api.ShareLink.from_row(link, url=url)

    def unshare(self, name: str, link_id: str, session: Writing, scope: ScopeDep) -> None:
        share_links.revoke(session, scope, scope.workspace, self.find(session, scope, name), link_id)

    @slow("objects")
    def delete(self, name: str, platform: PlatformDep, scope: ScopeDep) -> None:
        with platform.db.write() as session:
            run = self.find(session, scope, name)
            remove(session, run)
            audit.note(session, scope, "run.delete", run.name, workspace=scope.workspace, kind=run.kind)
        clean(platform, run)


def remove(session: Session, run: tables.Run) -> None:
    deployments.refuse_deployed(session, run)
    lifecycle.delete(session, run)


def clean(platform: Platform, run: tables.Run) -> None:
    platform.objects.delete(f"runs/{run.id}/")
    remove_index(platform.settings.viewer_index(run.id))
    models.delete_files(platform, f"models/runs/{run.id}/")
    for part in run.parts:
        if part["path"]:  # of a dataset that is gone, or has a newer file, this run was the last that needed it
            ingest.clean(platform, PurePosixPath(part["path"]).parent.name)


routes = RunRoutes("eval")
router = routes.router()
PREFIX = routes.prefix


@router.post(PREFIX)
@slow("checks")
def create(platform: PlatformDep, scope: ScopeDep, body: dict[str, object] = Body()) -> run_api.SubmittedRun:
    run = submit.submit(platform, scope.workspace, scope, submit.parse(body, "eval"), kind="eval")
    return views.build_accepted(platform.settings, run, sandbox=workers.describe_sandboxes(platform, run))


@router.get("/api/cli/schedules")
def list_schedules(session: Reading, scope: ScopeDep) -> run_api.ScheduleList:
    rows = schedules.list_schedules(session, scope.workspace.id)
    return run_api.ScheduleList(schedules=[run_api.ScheduleRow.from_row(row) for row in rows])


@router.delete("/api/cli/schedules/{name:path}", status_code=204)
def stop_schedule(name: str, session: Writing, scope: ScopeDep) -> None:
    schedules.stop(session, scope, scope.workspace, name)


@router.get("/api/cli/decisions")
def list_decisions(platform: PlatformDep, scope: ScopeDep, name: str = "") -> run_api.DecisionList:
    with platform.db.read() as session:
        rows = DatabaseLibrary(session, platform, scope, scope.workspace).decisions(name)
        return run_api.DecisionList(decisions=rows)


@router.post("/api/cli/decisions")
@slow("checks")
def begin_decision(platform: PlatformDep, scope: ScopeDep, body: run_api.NewDecision) -> run_api.DecisionList:
    decisions.begin(platform, scope.workspace, scope, body)
    return list_decisions(platform, scope, body.study.name)


@router.post("/api/cli/decisions/{name}/stop")
def stop_decision(name: str, platform: PlatformDep, scope: ScopeDep) -> run_api.DecisionList:
    with platform.db.write() as session:
        decisions.stop(session, scope, decisions.find(session, scope.workspace, name))
    return list_decisions(platform, scope, name)


@router.get(f"{PREFIX}/{{name}}/metrics")
def metrics(name: str, session: Reading, scope: ScopeDep) -> run_api.EvalMetrics:
    return views.build_metrics(session, routes.find(session, scope, name))


@router.post(f"{PREFIX}/{{name}}/retry")
def retry(
    name: str, platform: PlatformDep, session: Writing, scope: ScopeDep, body: run_api.RetryRun | None = None
) -> run_api.RetriedRun:
    run = routes.find(session, scope, name)
    count = retry_run(session, platform.vault, run, scope.user, body or run_api.RetryRun())
    audit.note(session, scope, "run.retry", run.name, workspace=scope.workspace)
    url = platform.settings.run_url(run.id)
    return run_api.RetriedRun.from_row(run, workflow_id=run.id, retryable_samples=count, platform_url=url)


@router.get(f"{PREFIX}/{{name}}/rollouts")
def list_rollouts(
    name: str, session: Reading, scope: ScopeDep, page: LongPageDep, status: str | None = None
) -> run_api.RolloutPage:
    run = routes.find(session, scope, name)
    rows, total = page.fetch(session, rollouts.select_rollouts(run.id, status))
    listed = [run_api.RolloutRow.from_row(row) for row in rows]
    return run_api.RolloutPage(rollouts=listed, **page.place(len(rows), total))


@router.get(f"{PREFIX}/{{name}}/outcomes", response_model=run_api.OutcomePage)
def list_outcomes(name: str, session: Reading, scope: ScopeDep, page: LongPageDep, whole: bool = False) -> Raw:
    """Rollouts without their conversations, for comparing runs; `whole`: with them, in the order of their arrival."""
    run = routes.find(session, scope, name)
    total = count_of(session, rollouts.select_rollouts(run.id))
    list_records = rollouts.list_arrived if whole else rollouts.list_outcomes
    records = list_records(session, run.id, limit=page.limit, offset=page.offset)
    position = orjson.dumps(page.place(len(records), total))
    return Raw(b'{"outcomes":[' + b",".join(records) + b"]," + position[1:], media_type="application/json")


@router.get(f"{PREFIX}/{{name}}/rollouts/{{row}}/{{attempt}}", response_model=Rollout)
def get_rollout(name: str, row: int, attempt: int, session: Reading, scope: ScopeDep) -> Raw:
    text = rollouts.get_text(session, routes.find(session, scope, name).id, row, attempt)
    return Raw(text, media_type="application/json")


@router.get(f"{PREFIX}/{{name}}/samples/manifest")
@slow("objects")
def manifest(
    name: str, platform: PlatformDep, scope: ScopeDep, types: str | None = None, rows: str | None = None
) -> run_api.RunFiles:
    with platform.db.read() as session:
        run = routes.find(session, scope, name)
    stored = downloads.list_stored(platform.objects, run.id)
    with platform.db.read() as session:
        run = session.get_one(tables.Run, run.id)
        return downloads.build_manifest(session, platform.settings, run, stored, types, rows)


@router.post(f"{PREFIX}/{{name}}/samples/download-urls")
@slow("objects")
def download_urls(
    name: str, body: run_api.WantedFiles, platform: PlatformDep, scope: Annotated[Scope, may("read")]
) -> run_api.FileAddresses:
    downloads.check_paths([item.path for item in body.items])
    with platform.db.read() as session:
        run = routes.find(session, scope, name)
    stored = downloads.list_stored(platform.objects, run.id)
    with platform.db.read() as session:
        keys = [downloads.find_key(session, run, stored, item.path) for item in body.items]
    answer = []
    for item, key in zip(body.items, keys, strict=True):
        path = f"runs/{run.id}/{item.path}"
        url = object_url(platform, key, path, method="GET") if key else sign_url(platform, path, method="GET")
        answer.append(run_api.FileAddress(path=item.path, url=url, token=item.token))
    return run_api.FileAddresses(items=answer, expires_in=platform.settings.url_lifetime_s)


@router.get("/api/objects/runs/{run_id}/{path:path}", dependencies=SIGNED)
@slow("objects")
def get_object(run_id: str, path: str, platform: PlatformDep) -> Raw:
    stored = downloads.list_stored(platform.objects, run_id)
    with platform.db.read() as session:
        run = session.get(tables.Run, run_id)
        if run is None:
            raise NotFound("this run was deleted")
        artifact = downloads.open_artifact(session, platform.settings, run, stored, path)
        if artifact is None:
            content = downloads.build_content(session, platform.settings, run, path)
            return Raw(content, media_type="application/octet-stream")
    left = platform.objects.open(artifact) if isinstance(artifact, str) else artifact
    pieces = stream_apart("objects", left.pieces) if isinstance(left, Content) else left.pieces()
    headers = {"Content-Length": str(left.size)}
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)


@router.get("/api/cli/history")
def show_history(
    platform: PlatformDep, session: Reading, scope: ScopeDep, query: Annotated[HistoryQuery, Depends()]
) -> History:
    return build_history(DatabaseLibrary(session, platform, scope, scope.workspace), query)


BENCHMARK_RUNS = "/api/cli/benchmark-runs"


@router.get("/api/cli/benchmarks")
@slow("files")
def list_benchmarks(platform: PlatformDep, scope: ScopeDep, page: PageDep) -> run_api.BenchmarkPage:
    with platform.db.read() as session:
        datasets = benchmarks.list_benchmarks(session, scope.workspace)
    rows = [benchmarks.build_benchmark(platform, d) for d in datasets[page.offset : page.offset + page.limit]]
    return run_api.BenchmarkPage(benchmarks=rows, **page.place(len(rows), len(datasets)))


@router.get("/api/cli/benchmarks/{key}")
@slow("files")
def get_benchmark(key: str, platform: PlatformDep, scope: ScopeDep) -> run_api.BenchmarkDetail:
    with platform.db.read() as session:
        dataset = benchmarks.find(session, scope.workspace, key)
        leaderboard = benchmarks.build_leaderboard(session, dataset)
    row = benchmarks.build_benchmark(platform, dataset, is_detail=True)
    return run_api.BenchmarkDetail(benchmark=row, leaderboard=leaderboard)


@router.post(BENCHMARK_RUNS)
@slow("checks")
def create_benchmark_run(
    platform: PlatformDep, scope: ScopeDep, body: dict[str, object] = Body()
) -> run_api.SubmittedRun:
    run, count = benchmarks.submit_run(platform, scope.workspace, scope, body)
    url = platform.settings.run_url(run.run_ids[0])
    return run_api.SubmittedRun.from_row(run, status="pending", platform_url=url, workflow_id=run.id, task_count=count)


@router.get(BENCHMARK_RUNS)
def list_benchmark_runs(
    platform: PlatformDep, session: Reading, scope: ScopeDep, page: PageDep, benchmark: str | None = None
) -> run_api.BenchmarkRunPage:
    conditions = []
    if benchmark:
        name = benchmarks.find(session, scope.workspace, benchmark).name
        conditions.append(tables.BenchmarkRun.benchmark == name)
    query = benchmarks.select_runs(scope.workspace.id, *conditions)
    members = benchmarks.list_members(session, query.limit(page.limit).offset(page.offset))
    rows = [benchmarks.build_row(session, platform.settings, run) for run in members]
    return run_api.BenchmarkRunPage(benchmark_runs=rows, **page.place(len(rows), count_of(session, query)))


@router.get(f"{BENCHMARK_RUNS}/{{name}}")
def get_benchmark_run(
    name: str, platform: PlatformDep, session: Reading, scope: ScopeDep
) -> run_api.BenchmarkRunDetail:
    members = benchmarks.get_members(session, scope.workspace.id, name)
    return benchmarks.build_detail(session, platform.settings, members)


@router.get(f"{BENCHMARK_RUNS}/{{name}}/logs")
def benchmark_logs(name: str, session: Reading, scope: ScopeDep, page: LogSliceDep) -> LogPage:
    run, _ = benchmarks.get_members(session, scope.workspace.id, name)
    return page.fetch(session, tables.RunLog, tables.RunLog.run_id.in_(run.run_ids))


@router.post(f"{BENCHMARK_RUNS}/{{name}}/stop")
def stop_benchmark_run(name: str, platform: PlatformDep, session: Writing, scope: ScopeDep) -> run_api.BenchmarkRunRow:
    members = benchmarks.get_members(session, scope.workspace.id, name)
    for run in members[1]:
        lifecycle.request_stop(session, run)
        audit.note(session, scope, "run.stop", run.name, workspace=scope.workspace)
    return benchmarks.build_row(session, platform.settings, members)


@router.get(f"{BENCHMARK_RUNS}/{{name}}/outputs/manifest")
@slow("objects")
def benchmark_manifest(
    name: str, platform: PlatformDep, scope: ScopeDep, types: str = "summary,results"
) -> run_api.RunFiles:
    selected = [part.strip() for part in types.split(",") if part.strip()]
    if unknown := sorted(set(selected) - {*benchmarks.FILES, "artifacts"}):
        hint = f"use {', '.join(benchmarks.FILES)}, artifacts"
        raise ValidationError(f"types: unknown {', '.join(unknown)}", hint=hint)
    with platform.db.read() as session:
        members = benchmarks.get_members(session, scope.workspace.id, name)
        paths = [file for kind, file in benchmarks.FILES.items() if kind in selected]
        contents = {path: benchmarks.build_file(session, platform.settings, members, path) for path in paths}
    files = [run_api.RunFile(path=path, size=len(content)) for path, content in contents.items()]
    for run in members[1] if "artifacts" in selected else ():
        stored, kinds = downloads.list_stored(platform.objects, run.id), "artifacts,trajectories"
        with platform.db.read() as session:
            outputs = downloads.build_manifest(session, platform.settings, run, stored, kinds, None).files
        files += [run_api.RunFile(path=f"artifacts/{run.name}/{file.path}", size=file.size) for file in outputs]
    totals = run_api.FileTotals(files=len(files), bytes=sum(file.size or 0 for file in files))
    return run_api.RunFiles(files=files, totals=totals)


@router.post(f"{BENCHMARK_RUNS}/{{name}}/outputs/download-urls")
def benchmark_download_urls(
    name: str, body: run_api.WantedFiles, platform: PlatformDep, scope: Annotated[Scope, may("read")]
) -> run_api.FileAddresses:
    downloads.check_paths([item.path for item in body.items])
    with platform.db.read() as session:
        run, evaluations = benchmarks.get_members(session, scope.workspace.id, name)
    folders, addresses = {evaluation.name: evaluation.id for evaluation in evaluations}, []
    for item in body.items:
        parts = item.path.split("/", 2)
        is_artifact = len(parts) == 3 and parts[0] == "artifacts" and parts[1] in folders
        path = f"runs/{folders[parts[1]]}/{parts[2]}" if is_artifact else f"benchmark-runs/{run.id}/{item.path}"
        addresses.append(run_api.FileAddress(path=item.path, url=sign_url(platform, path, method="GET")))
    return run_api.FileAddresses(items=addresses, expires_in=platform.settings.url_lifetime_s)


@router.get("/api/objects/benchmark-runs/{run_id}/{path:path}", dependencies=SIGNED)
@slow("objects")
def get_benchmark_object(run_id: str, path: str, platform: PlatformDep) -> Response:
    with platform.db.read() as session:
        run = session.get(tables.BenchmarkRun, run_id)
        if run is None:
            raise NotFound("this benchmark run was deleted")
        members = benchmarks.get_members(session, run.workspace_id, run_id)
        content = benchmarks.build_file(session, platform.settings, members, path)
    return Response(content, media_type="application/octet-stream")
