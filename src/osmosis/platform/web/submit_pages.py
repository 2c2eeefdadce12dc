"""Submit a run in the browser: a config of the synced repository with some fields changed. The config comes from the
commit that would run, and is checked like every submit."""

import pydantic
from fastapi import Request, Response
from sqlalchemy.orm import Session

from osmosis.base.files import tomllib
from osmosis.base.git import GitError
from osmosis.base.jsonable import JsonObject
from osmosis.errors import NotFound, OsmosisError, ValidationError
from osmosis.platform import tables
from osmosis.platform.background import slow
from osmosis.platform.git import repositories, sync
from osmosis.platform.git.discovery import Tree
from osmosis.platform.git.mirror import RepositoryFolder
from osmosis.platform.runs import submit
from osmosis.platform.web.session import FormDep, Viewer, ViewerDep, platform_of
from osmosis.platform.web.templating import page, page_router, redirect
from osmosis.platform.workspaces import service as workspaces
from osmosis.records.config.check import CONFIGS, list_issues
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.plan import choose_endpoint, split_model
from osmosis.records.run.status import RunKind

router = page_router()
KINDS: dict[str, RunKind] = {"configs/eval/": "eval", "configs/training/": "training"}


@router.get("/{workspace}/submit")
@slow("checks")
def submit_form(request: Request, viewer: ViewerDep, workspace: str, config: str = "", branch: str = "") -> Response:
    return _form(request, viewer, workspace, {"config": config, "branch": branch})


@router.post("/{workspace}/submit")
@slow("checks")
def submit_config(request: Request, viewer: ViewerDep, workspace: str, form: FormDep) -> Response:
    try:
        with viewer.platform.db.read() as session:
            row, _ = workspaces.by_name(session, viewer.user, workspace, "run")
            text = _text(request, session, row, form)
        kind, body = _body(text, form)
        run = submit.submit(viewer.platform, row, viewer, submit.parse(body, kind), kind=kind)
    except OsmosisError as problem:
        return _form(request, viewer, workspace, form, problem)
    return redirect(f"/runs/{run.id}")


def _form(
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
        chosen = form.get("config", "")
        text = ""
        if chosen and problem is None:
            try:
                text = _text(request, session, row, form)
            except OsmosisError as error:
                problem = error
    return page(
        "submit.html", viewer, here="submit", workspace=workspace, configs=configs, branches=sorted(branches),
        branch=branch, commit=commit, chosen=chosen, text=text, form=form, problem=problem,
    )  # fmt: skip


def _text(request: Request, session: Session, workspace: tables.Workspace, form: dict[str, str]) -> str:
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


def _body(text: str, form: dict[str, str]) -> tuple[RunKind, JsonObject]:
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
