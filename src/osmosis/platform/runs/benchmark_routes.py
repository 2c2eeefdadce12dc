from typing import Annotated

from fastapi import APIRouter, Body, Response

from osmosis.errors import NotFound, ValidationError
from osmosis.platform import tables, urls
from osmosis.platform.auth.dependencies import PlatformDep, Scope, ScopeDep, may
from osmosis.platform.background import slow
from osmosis.platform.db import count_of
from osmosis.platform.http.json_route import JsonRoute
from osmosis.platform.objects.parts import SIGNED, sign_url
from osmosis.platform.paging import LogSliceDep, PageDep
from osmosis.platform.runs import benchmarks, downloads, lifecycle
from osmosis.platform.workspaces import audit
from osmosis.records.api import runs as benchmark_api, runs as run_api
from osmosis.records.api.body import LogPage

router = APIRouter(route_class=JsonRoute)
RUNS = "/api/cli/benchmark-runs"


@router.get("/api/cli/benchmarks")
@slow("files")
def list_benchmarks(platform: PlatformDep, scope: ScopeDep, page: PageDep) -> benchmark_api.BenchmarkPage:
    with platform.db.read() as session:
        datasets = benchmarks.list_benchmarks(session, scope.workspace)
    rows = [benchmarks.build_benchmark(platform, d) for d in datasets[page.offset : page.offset + page.limit]]
    return benchmark_api.BenchmarkPage(benchmarks=rows, **page.place(len(rows), len(datasets)))


@router.get("/api/cli/benchmarks/{key}")
@slow("files")
def get_benchmark(key: str, platform: PlatformDep, scope: ScopeDep) -> benchmark_api.BenchmarkDetail:
    with platform.db.read() as session:
        dataset = benchmarks.find(session, scope.workspace, key)
        leaderboard = benchmarks.build_leaderboard(session, dataset)
    row = benchmarks.build_benchmark(platform, dataset, is_detail=True)
    return benchmark_api.BenchmarkDetail(benchmark=row, leaderboard=leaderboard)


@router.post(RUNS)
@slow("checks")
def create(platform: PlatformDep, scope: ScopeDep, body: dict[str, object] = Body()) -> run_api.SubmittedRun:
    run, count = benchmarks.submit_run(platform, scope.workspace, scope, body)
    url = urls.run(platform.settings, run.run_ids[0])
    return run_api.SubmittedRun.from_row(run, status="pending", platform_url=url, workflow_id=run.id, task_count=count)


@router.get(RUNS)
def list_runs(
    platform: PlatformDep, scope: ScopeDep, page: PageDep, benchmark: str | None = None
) -> benchmark_api.BenchmarkRunPage:
    conditions = []
    with platform.db.read() as session:
        if benchmark:
            name = benchmarks.find(session, scope.workspace, benchmark).name
            conditions.append(tables.BenchmarkRun.benchmark == name)
        query = benchmarks.select_runs(scope.workspace.id, *conditions)
        members = benchmarks.list_members(session, query.limit(page.limit).offset(page.offset))
        rows = [benchmarks.build_row(session, platform.settings, run) for run in members]
        return benchmark_api.BenchmarkRunPage(benchmark_runs=rows, **page.place(len(rows), count_of(session, query)))


@router.get(f"{RUNS}/{{name}}")
def get_run(name: str, platform: PlatformDep, scope: ScopeDep) -> benchmark_api.BenchmarkRunDetail:
    with platform.db.read() as session:
        members = benchmarks.get_members(session, scope.workspace.id, name)
        return benchmarks.build_detail(session, platform.settings, members)


@router.get(f"{RUNS}/{{name}}/logs")
def logs(name: str, platform: PlatformDep, scope: ScopeDep, page: LogSliceDep) -> LogPage:
    with platform.db.read() as session:
        run, _ = benchmarks.get_members(session, scope.workspace.id, name)
        return page.fetch(session, tables.RunLog, tables.RunLog.run_id.in_(run.run_ids))


@router.post(f"{RUNS}/{{name}}/stop")
def stop(name: str, platform: PlatformDep, scope: ScopeDep) -> benchmark_api.BenchmarkRunRow:
    with platform.db.write() as session:
        members = benchmarks.get_members(session, scope.workspace.id, name)
        for run in members[1]:
            lifecycle.request_stop(session, run)
            audit.note(session, scope, "run.stop", run.name, workspace=scope.workspace)
        return benchmarks.build_row(session, platform.settings, members)


@router.get(f"{RUNS}/{{name}}/outputs/manifest")
@slow("objects")
def manifest(name: str, platform: PlatformDep, scope: ScopeDep, types: str = "summary,results") -> run_api.RunFiles:
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
    return run_api.RunFiles(
        files=files, totals=run_api.FileTotals(files=len(files), bytes=sum(file.size or 0 for file in files))
    )


@router.post(f"{RUNS}/{{name}}/outputs/download-urls")
def download_urls(
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
def get_object(run_id: str, path: str, platform: PlatformDep) -> Response:
    with platform.db.read() as session:
        run = session.get(tables.BenchmarkRun, run_id)
        if run is None:
            raise NotFound("this benchmark run was deleted")
        members = benchmarks.get_members(session, run.workspace_id, run_id)
        content = benchmarks.build_file(session, platform.settings, members, path)
    return Response(content, media_type="application/octet-stream")
