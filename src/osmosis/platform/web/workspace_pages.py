from typing import Annotated

import pydantic
from fastapi import BackgroundTasks, Form, Request, Response
from sqlalchemy.orm import Session

from osmosis.base.files import tomllib
from osmosis.base.git import GitError
from osmosis.base.jsonable import JsonObject
from osmosis.errors import NotFound, OsmosisError, ValidationError
from osmosis.platform import tables
from osmosis.platform.background import run_in_turn, slow
from osmosis.platform.git import repositories, sync
from osmosis.platform.git.discovery import Tree
from osmosis.platform.git.mirror import RepositoryFolder
from osmosis.platform.runs import schedules, submit
from osmosis.platform.scheduling import workers as worker_service
from osmosis.platform.web.session import FormDep, PosterDep, Viewer, ViewerDep, platform_of
from osmosis.platform.web.templating import page, page_router, redirect, render_framed, stream_page
from osmosis.platform.workspaces import audit, rollout_servers, secrets, service as workspaces
from osmosis.records.api.accounts import may
from osmosis.records.api.workers import WorkerList
from osmosis.records.config.check import CONFIGS, list_issues
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.plan import choose_endpoint, split_model
from osmosis.records.run.status import RunKind
from osmosis.viewer.page import SECURITY, Page

router = page_router()


@router.get("/workers")
def workers(viewer: ViewerDep) -> Response:
    return _workers(viewer)


def _workers(viewer: Viewer, problem: OsmosisError | None = None) -> Response:
    with viewer.platform.db.read() as session:
        rows = worker_service.list_rows(session, viewer.user)
        records = worker_service.list_visible(session, viewer.user)
        directed = {worker.id for worker in records if worker_service.may_manage(session, viewer.user, worker)}
    return page("workers.html", viewer, here="workers", found=rows, directed=directed, problem=problem)


@router.get("/workers.json")
def as_json(viewer: ViewerDep) -> Response:
    with viewer.platform.db.read() as session:
        body = WorkerList(workers=worker_service.list_rows(session, viewer.user))
    return Response(body.model_dump_json(), media_type="application/json", headers=SECURITY)


@router.post("/workers/{worker_id}/drain")
def drain(viewer: PosterDep, worker_id: str) -> Response:
    try:
        with viewer.platform.db.write() as session:
            worker_service.drain(session, viewer, worker_service.require_managed(session, viewer.user, worker_id))
    except OsmosisError as problem:
        return _workers(viewer, problem)
    return redirect("/workers")


@router.post("/workers/{worker_id}/remove")
def remove(viewer: PosterDep, worker_id: str) -> Response:
    try:
        with viewer.platform.db.write() as session:
            worker = worker_service.require_managed(session, viewer.user, worker_id)
            worker_service.remove(viewer.platform, session, viewer, worker)
    except OsmosisError as problem:
        return _workers(viewer, problem)
    return redirect("/workers")


Text = Annotated[str, Form(max_length=200)]


@router.get("/{workspace}/secrets")
def secret_list(viewer: ViewerDep, workspace: str) -> Response:
    return _secrets(viewer, workspace)


def _secrets(viewer: Viewer, workspace: str, problem: OsmosisError | None = None) -> Response:
    with viewer.platform.db.read() as session:
        row, role = workspaces.by_name(session, viewer.user, workspace, "secrets.own")
        rows = list(session.scalars(secrets.select_secrets(row, viewer.user, "all")))
        personal = {secret.name for secret in rows if secret.scope == "user"}
        shared = {secret.name for secret in rows if secret.scope == "workspace"}
        return page(
            "secrets.html", viewer, here="secrets", workspace=workspace, found=rows,
            shadowed=personal & shared, shared_too=may(role, "secrets.shared"), problem=problem,
        )  # fmt: skip


@router.post("/{workspace}/secrets")
def set_secret(
    viewer: PosterDep, workspace: str, name: Text, value: Annotated[str, Form()], scope: Text = "user"
) -> Response:
    try:
        with viewer.platform.db.write() as session:
            row, role = workspaces.by_name(session, viewer.user, workspace, "secrets.own")
            slot = secrets.slot_for(row, viewer.user, role, scope=scope, name=name.strip())
            secrets.store(session, viewer.platform.vault, slot, value, viewer.user.id)
            audit.note(session, viewer, "secret.set", slot.name, workspace=row, scope=slot.scope)
    except OsmosisError as problem:
        return _secrets(viewer, workspace, problem)
    return redirect(f"/{workspace}/secrets")


@router.post("/{workspace}/secrets/delete")
def delete_secret(viewer: PosterDep, workspace: str, name: Text, scope: Text = "user") -> Response:
    try:
        with viewer.platform.db.write() as session:
            row, role = workspaces.by_name(session, viewer.user, workspace, "secrets.own")
            slot = secrets.slot_for(row, viewer.user, role, scope=scope, name=name)
            secrets.delete(session, slot)
            audit.note(session, viewer, "secret.delete", name, workspace=row, scope=slot.scope)
    except OsmosisError as problem:
        return _secrets(viewer, workspace, problem)
    return redirect(f"/{workspace}/secrets")


EVENTS = 30
SERVERS = 50


@router.get("/{workspace}/repository")
def repository_page(viewer: ViewerDep, workspace: str, branch: str = "") -> Response:
    view = _repository_page(viewer, workspace, branch)
    return render_framed(view, viewer, here="repository", workspace=workspace)


@router.get("/{workspace}/repository/events")
def repository_events(request: Request, viewer: ViewerDep, workspace: str, branch: str = "") -> Response:
    return stream_page(request, viewer, lambda: _repository_page(viewer, workspace, branch))


def _repository_page(viewer: Viewer, workspace: str, branch: str) -> Page:
    with viewer.platform.db.read() as session:
        row, role = workspaces.by_name(session, viewer.user, workspace)
        repository = repositories.find_for_workspace(session, row.id)
        rows = list(session.scalars(rollout_servers.select_servers(viewer.user, row).limit(SERVERS)))
        servers = [(server, rollout_servers.status_of(server), server.owner) for server in rows]
        repeated, may_stop = schedules.list_schedules(session, row.id), may(role, "run")
        values = {"csrf": viewer.csrf, "workspace": workspace, "schedules": repeated, "may_stop": may_stop}
        values |= {"repository": repository, "servers": servers}
        if repository is None:
            return Page("repository.html", values)
        branches = sync.known_branches(session, repository.id)
        branch_shown = branch if branch in branches else repository.default_branch
        commit = branches.get(branch_shown)
        contents = sync.list_contents(session, repository.id, commit) if commit else []
        events, total = sync.list_events(session, repository.id, limit=EVENTS)
    working = any(event.status in ("Pending", "Syncing") for event in events)
    more = {
        "address": repositories.clone_url(viewer.platform.settings, repository),
        "branches": sorted(branches),
        "shown": branch_shown,
        "branch": branch,
        "commit": commit,
        "held": contents,
        "events": events,
        "total": total,
        "working": working,
    }
    return Page("repository.html", {**values, **more}, live="_repository.html", final=not working)


@router.post("/{workspace}/schedules/stop")
def stop_schedule(viewer: PosterDep, workspace: str, name: Text) -> Response:
    with viewer.platform.db.write() as session:
        row, _ = workspaces.by_name(session, viewer.user, workspace, "run")
        schedules.stop(session, viewer, row, name)
    return redirect(f"/{workspace}/repository")


@router.post("/{workspace}/repository/sync")
def start_sync(viewer: PosterDep, workspace: str, background: BackgroundTasks) -> Response:
    platform = viewer.platform
    with platform.db.write() as session:
        row, _ = workspaces.by_name(session, viewer.user, workspace, "push")
        repository = repositories.get_for_workspace(session, row.id)
        event_id = sync.add_event(session, repository).id
    background.add_task(run_in_turn, "sync", repository.id, sync.run, platform.db, platform.settings, event_id)
    return redirect(f"/{workspace}/repository")


KINDS: dict[str, RunKind] = {"configs/eval/": "eval", "configs/training/": "training"}


@router.get("/{workspace}/submit")
@slow("checks")
def submit_form(request: Request, viewer: ViewerDep, workspace: str, config: str = "", branch: str = "") -> Response:
    return _submit_page(request, viewer, workspace, {"config": config, "branch": branch})


@router.post("/{workspace}/submit")
@slow("checks")
def submit_config(request: Request, viewer: ViewerDep, workspace: str, form: FormDep) -> Response:
    try:
        with viewer.platform.db.read() as session:
            row, _ = workspaces.by_name(session, viewer.user, workspace, "run")
            text = _read_config(request, session, row, form)
        kind, body = _build_request(text, form)
        run = submit.submit(viewer.platform, row, viewer, submit.parse(body, kind), kind=kind)
    except OsmosisError as problem:
        return _submit_page(request, viewer, workspace, form, problem)
    return redirect(f"/runs/{run.id}")


def _submit_page(
    request: Request, viewer: Viewer, workspace: str, form: dict[str, str], problem: OsmosisError | None = None
) -> Response:
    with viewer.platform.db.read() as session:
        row, _ = workspaces.by_name(session, viewer.user, workspace, "run")
        repository = repositories.find_for_workspace(session, row.id)
        branches = sync.known_branches(session, repository.id) if repository else {}
        branch = form.get("branch") or (repository.default_branch if repository else "")
        commit = branches.get(branch)
        rows = sync.list_contents(session, repository.id, commit, kinds=("config",)) if repository and commit else []
        configs = [config.path for config in rows if config.path.startswith(tuple(KINDS))]
        chosen = form.get("config") or min(configs, key=lambda path: path.endswith("/default.toml"), default="")
        text = ""
        if chosen and problem is None:
            try:
                text = _read_config(request, session, row, {**form, "config": chosen})
            except OsmosisError as error:
                problem = error
    return page(
        "submit.html", viewer, here="submit", workspace=workspace, configs=configs, branches=sorted(branches),
        branch=branch, commit=commit, chosen=chosen, text=text, form=form, problem=problem,
    )  # fmt: skip


def _read_config(request: Request, session: Session, workspace: tables.Workspace, form: dict[str, str]) -> str:
    platform = platform_of(request)
    repository = repositories.get_for_workspace(session, workspace.id)
    branch, path = form.get("branch") or repository.default_branch, form.get("config", "")
    commit = sync.known_branches(session, repository.id).get(branch)
    rows = sync.list_contents(session, repository.id, commit, kinds=("config",)) if commit else []
    if commit is None or path not in {row.path for row in rows if row.path.startswith(tuple(KINDS))}:
        raise NotFound(f"branch {branch!r} has no synced config {path!r}", hint="choose one of the list")
    tree = Tree(RepositoryFolder.of(repository, platform.settings).git(platform.settings.environ), commit)
    try:
        return tree.read(tree.list([path]))[path]
    except (GitError, KeyError) as error:
        raise NotFound(f"{path} cannot be read at commit {commit[:12]}", hint="sync the repository again") from error


def _build_request(text: str, form: dict[str, str]) -> tuple[RunKind, JsonObject]:
    path = form["config"]
    kind = next(kind for folder, kind in KINDS.items() if path.startswith(folder))
    try:
        config = CONFIGS[kind].model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValidationError(f"{path}: {error}", hint="fix it, commit, push and sync") from error
    except pydantic.ValidationError as error:
        problems = "; ".join(f"{issue.key}: {issue.what}" for issue in list_issues(CONFIGS[kind], error)[:5])
        raise ValidationError(f"{path}: {problems}", hint="fix it, commit, push and sync") from error
    body: JsonObject = config.to_request()
    experiment = body["experiment_config"]
    if form.get("branch") and not experiment.get("commit_sha"):
        experiment["branch"] = form["branch"]
    if model := form.get("model", "").strip():
        experiment["model_path"], url = split_model(model)
        if isinstance(config, EvalConfig):
            base_url, key_name = choose_endpoint(config, model, url)
            advanced = {**body.get("advanced_config", {}), "base_url": base_url, "api_key_env": key_name}
            body["advanced_config"] = {key: value for key, value in advanced.items() if value is not None}
    for key in ("n", "limit") if kind == "eval" else ():
        if value := form.get(key, "").strip():
            body.setdefault("evaluation_config", {})[key] = int(value) if value.isdigit() else value
    if name := form.get("name", "").strip():
        body["name"] = name
    if tags := form.get("tags", "").replace(",", " ").split():
        body["tags"] = tags
    return kind, body
