from collections.abc import Mapping
from datetime import datetime
from itertools import takewhile
from typing import Annotated, Any
from urllib.parse import quote

import sqlalchemy as sa
from fastapi import Depends, Form, Request, Response

from osmosis.errors import NotFound
from osmosis.platform import tables
from osmosis.platform.background import slow
from osmosis.platform.datasets import ingest
from osmosis.platform.paging import fetch_numbered
from osmosis.platform.run_source import DatabaseLibrary, SharedRun, build_state, find_run
from osmosis.platform.runs import (
    lifecycle,
    retry as run_retry,
    rollouts as run_annotations,
    routes as run_routes,
    share_links,
    views,
)
from osmosis.platform.training.service import list_latest_rewards
from osmosis.platform.web.session import FormDep, PosterDep, Viewer, ViewerDep, platform_of
from osmosis.platform.web.templating import html, page, page_router, redirect, render_framed, stream_events, stream_page
from osmosis.platform.workspaces import audit, service as workspaces
from osmosis.records.api.runs import MAX_SHARE_DAYS, RetryRun
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.status import RunStatus
from osmosis.viewer import routes
from osmosis.viewer.compare_page import code_page, parse_run_pair
from osmosis.viewer.page import Document, Page, QueryParams
from osmosis.viewer.routes import next_url, parse_annotation, parse_marks

router = page_router()

PER_PAGE = 25


CHOICES = ("workspace", "kind", "status", "tag", "q")


async def read_params(request: Request) -> QueryParams:
    return QueryParams(request.query_params.multi_items())


ParamsDep = Annotated[QueryParams, Depends(read_params)]


@router.get("/")
def overview(viewer: ViewerDep, params: ParamsDep, at: int = 1) -> Response:
    return render_framed(_overview(viewer, params, at), viewer, here="runs", workspace=params.text("workspace") or None)


@router.get("/status/runs")
def overview_events(request: Request, viewer: ViewerDep, params: ParamsDep, at: int = 1) -> Response:
    return stream_page(request, viewer, lambda: _overview(viewer, params, at))


def _overview(viewer: Viewer, params: QueryParams, at: int) -> Page:
    workspace, kind, status, tag, q = (params.text(name) for name in CHOICES)
    with viewer.platform.db.read() as session:
        names = {row.id: row.name for row, _, _ in workspaces.list_workspaces(session, viewer.user)}
        conditions = [
            tables.Run.workspace_id.in_([id_ for id_, name in names.items() if workspace in ("", name)]),
            tables.Run.kind.in_(lifecycle.SUBMITTED),
            *(column == value for column, value in ((tables.Run.kind, kind), (tables.Run.status, status)) if value),
        ]
        if tag := tag[:100]:
            conditions.append(run_annotations.has_tag(tag))
        if text := q[:200]:
            columns = (tables.Run.name, tables.Run.rollout, tables.Run.model_path, tables.Run.dataset)
            conditions.append(sa.or_(*(column.icontains(text, autoescape=True) for column in columns)))
        newest = (tables.Run.pinned.desc(), tables.Run.created_at.desc(), tables.Run.id)
        # Ids are sorted, not whole rows: those carry their reports.
        ids = sa.select(tables.Run.id).where(*conditions).order_by(*newest)
        chosen, position = fetch_numbered(session, ids, at, PER_PAGE)
        query = sa.select(tables.Run, tables.User.name).outerjoin(tables.Run.creator)
        query = query.where(tables.Run.id.in_(chosen)).order_by(*newest)
        lines = session.execute(query).all()
        rewards = list_latest_rewards(session, [run.id for run, _ in lines if run.kind == "training"])
        rows = [_run_line(run, names[run.workspace_id], creator, rewards.get(run.id, {})) for run, creator in lines]
    going = any(not entry["state"].over for entry in rows)
    values = {
        "found": rows,
        **position,
        "chosen": {"workspace": workspace, "kind": kind, "status": status, "tag": tag, "q": q},
        "statuses": [state.value for state in RunStatus],
        "params": params,
        "going": going,
    }
    return Page("overview.html", values, live="_overview.html", final=not going)


def _run_line(run: tables.Run, workspace: str, creator: str | None, rewards: Mapping[str, float]) -> dict[str, Any]:
    report = views.report_of(run)
    primary = report.primary if report else None
    return {"run": run, "state": build_state(run, report), "primary": primary,
            "reward": primary.mean if primary else rewards.get("validation_reward", rewards.get("reward")),
            "workspace": workspace, "creator": creator, "marks": run_annotations.get_marks(run)}  # fmt: skip


@router.get("/{workspace}/evals/{name}")
def evaluation_by_name(viewer: ViewerDep, workspace: str, name: str) -> Response:
    return _redirect_to_run(viewer, workspace, "eval", name)


@router.get("/{workspace}/trainings/{name}")
def training_by_name(viewer: ViewerDep, workspace: str, name: str) -> Response:
    return _redirect_to_run(viewer, workspace, "training", name)


def _redirect_to_run(viewer: Viewer, workspace: str, kind: str, name: str) -> Response:
    with viewer.platform.db.read() as session:
        row, _ = workspaces.by_name(session, viewer.user, workspace)
        return redirect(f"/runs/{lifecycle.find(session, row, kind, name).id}")


@router.get("/runs/{run_id}/events")
def events(request: Request, viewer: ViewerDep, params: ParamsDep, run_id: str) -> Response:
    def build() -> tuple[str, bool]:
        with viewer.platform.db.read() as session:
            view, final = routes.build_run_changes(find_run(session, viewer.platform, viewer, run_id), params)
            return html(view), final

    return stream_events(request, viewer, build)


@router.post("/runs/{run_id}/stop")
def stop(viewer: PosterDep, run_id: str) -> Response:
    with viewer.platform.db.write() as session:
        source = find_run(session, viewer.platform, viewer, run_id, "run")
        lifecycle.request_stop(session, source.run)
        audit.note(session, viewer, "run.stop", source.run.name, workspace=source.workspace)
    return redirect(f"/runs/{run_id}")


@router.post("/runs/{run_id}/retry")
def retry_run(viewer: PosterDep, run_id: str) -> Response:
    with viewer.platform.db.write() as session:
        source = find_run(session, viewer.platform, viewer, run_id, "run")
        run_retry.retry(session, viewer.platform.vault, source.run, viewer.user, RetryRun())
        audit.note(session, viewer, "run.retry", source.run.name, workspace=source.workspace)
    return redirect(f"/runs/{run_id}")


@router.post("/runs/{run_id}/delete")
@slow("objects")
def delete(viewer: PosterDep, run_id: str) -> Response:
    with viewer.platform.db.write() as session:
        source = find_run(session, viewer.platform, viewer, run_id, "delete")
        run_routes.remove(session, source.run)
        audit.note(session, viewer, "run.delete", source.run.name, workspace=source.workspace, kind=source.run.kind)
        back = f"/?workspace={quote(source.workspace.name, safe='')}"
    run_routes.clean(viewer.platform, source.run)
    return redirect(back)


@router.post("/runs/{run_id}/marks")
def mark(viewer: ViewerDep, form: FormDep, run_id: str) -> Response:
    with viewer.platform.db.write() as session:
        source = find_run(session, viewer.platform, viewer, run_id, "run")
        name, change = source.run.name, parse_marks(form)
        lifecycle.mark(session, source.run, change)
        renamed = change.name if change.name != name else None
        audit.note(session, viewer, "run.mark", name, workspace=source.workspace, renamed=renamed)
    return redirect(f"/runs/{run_id}")


@router.get("/compare")
@router.get("/compare.json")
@router.get("/history")
@router.get("/history.json")
@router.get("/decisions")
@router.get("/decisions.json")
@router.get("/decisions/{decision}")
def several_runs_page(request: Request, viewer: ViewerDep, params: ParamsDep) -> Response:
    with viewer.platform.db.read() as session:
        answer = routes.build_page(DatabaseLibrary(session, viewer.platform, viewer), request.url.path, params)
    return render_framed(answer, viewer, here="runs")


@router.get("/compare/code")
@router.get("/compare/code.json")
@slow("checks")
def code_difference(request: Request, viewer: ViewerDep, params: ParamsDep) -> Response:
    with viewer.platform.db.read() as session:
        pair = DatabaseLibrary(session, viewer.platform, viewer).code(*parse_run_pair(params))
    answer = routes.select_format(code_page(pair, params), request.url.path)
    return render_framed(answer, viewer, here="runs")


@router.get("/runs/{run_id}")
def run_page(viewer: ViewerDep, params: ParamsDep, run_id: str) -> Response:
    return run_subpage(viewer, params, run_id, "")


@router.get("/runs/{run_id}/share")
def share_page(viewer: ViewerDep, run_id: str) -> Response:
    return _share_page(viewer, run_id)


def _share_page(viewer: Viewer, run_id: str, url: str = "") -> Response:
    with viewer.platform.db.read() as session:
        source = find_run(session, viewer.platform, viewer, run_id, "run")
        links = share_links.list_valid(session, source.run)
        return page(
            "share.html", viewer, here="runs", workspace=source.workspace.name, run=source.run, links=links,
            most=MAX_SHARE_DAYS, url=url,
        )  # fmt: skip


@router.post("/runs/{run_id}/share")
def share(viewer: PosterDep, run_id: str, days: Annotated[int, Form(ge=1, le=MAX_SHARE_DAYS)] = 7) -> Response:
    with viewer.platform.db.write() as session:
        source = find_run(session, viewer.platform, viewer, run_id, "run")
        owner = viewer, source.workspace, source.run
        _, url = share_links.create(session, viewer.platform.settings, *owner, days * 86400)
    return _share_page(viewer, run_id, url)


@router.post("/runs/{run_id}/share/{link_id}/revoke")
def revoke_link(viewer: PosterDep, run_id: str, link_id: str) -> Response:
    with viewer.platform.db.write() as session:
        source = find_run(session, viewer.platform, viewer, run_id, "run")
        share_links.revoke(session, viewer, source.workspace, source.run, link_id)
    return redirect(f"/runs/{run_id}/share")


@router.get("/shared/{token}")
def shared_page(request: Request, params: ParamsDep, token: str) -> Response:
    return shared_subpage(request, params, token, "")


@router.get("/shared/{token}/{path:path}")
def shared_subpage(request: Request, params: ParamsDep, token: str, path: str) -> Response:
    platform = platform_of(request)
    content = params.text("of") if path == "events" else path
    if content and content.split("/")[0] != "rollouts":
        raise NotFound("there is no such page", hint="a link shows a run's report and rollouts")

    def build(*, changes: bool) -> tuple[Page | Document, bool, datetime]:
        with platform.db.read() as session:
            link = share_links.find(session, token)
            run = session.get_one(tables.Run, link.run_id)
            workspace = session.get_one(tables.Workspace, run.workspace_id)
            source = SharedRun(session, platform, run, workspace, url=f"/shared/{token}")
            if changes:
                return (*routes.build_run_changes(source, params), link.expires_at)
            return routes.build_run_page(source, path, params), True, link.expires_at

    def build_changes() -> tuple[str, bool]:
        view, final, _ = build(changes=True)
        return html(view) if isinstance(view, Page) else "", final

    if path == "events":
        return stream_events(request, None, build_changes)
    answer, _, until = build(changes=False)
    response = render_framed(answer, None, here="runs", shared_until=until)
    response.headers.update({"Referrer-Policy": "no-referrer", "X-Robots-Tag": "noindex"})
    return response


@router.post("/runs/{run_id}/rollouts/{row}/{attempt}/annotate")
def annotate(viewer: ViewerDep, params: ParamsDep, form: FormDep, run_id: str, row: int, attempt: int) -> Response:
    with viewer.platform.db.write() as session:
        source = find_run(session, viewer.platform, viewer, run_id, "run")
        record = Rollout.model_validate_json(source.rollout(row, attempt, params.integer("step") or 0))
        onward = next_url(source, record, params)  # where the next one is, before this one leaves the filter
        run_annotations.add_annotation(
            session, run_id, parse_annotation(form, record, viewer.user.name), viewer.user.id
        )
    return redirect(onward)


@router.post("/runs/{run_id}/rollouts/{row}/{attempt}/row")
@slow("objects")
def add_row(
    viewer: PosterDep,
    run_id: str,
    row: int,
    attempt: int,
    dataset: Annotated[str, Form(max_length=200)] = "production",
    step: int = 0,
) -> Response:
    with viewer.platform.db.read() as session:
        source = find_run(session, viewer.platform, viewer, run_id, "data")
        record = Rollout.model_validate_json(source.rollout(row, attempt, step))
        data = source.table().search.dataset_row(row, record.hashes.get("row"))
    opening = list(takewhile(lambda message: message.get("role") != "assistant", record.messages))
    new_row = data or {"id": record.row_key, "messages": opening, "ground_truth": None}
    return redirect(f"/datasets/{ingest.append_row(viewer.platform, source.workspace, viewer, dataset, new_row)}")


@router.get("/runs/{run_id}/{path:path}")
def run_subpage(viewer: ViewerDep, params: ParamsDep, run_id: str, path: str) -> Response:
    with viewer.platform.db.read() as session:
        if not path and run_id.endswith(".json"):
            run_id, path = run_id.removesuffix(".json"), "index.json"
        source = find_run(session, viewer.platform, viewer, run_id)
        answer = routes.build_run_page(source, path, params)
    return render_framed(answer, viewer, here="runs", workspace=source.workspace.name)
