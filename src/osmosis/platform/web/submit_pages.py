"""Start a run in the browser: a config of the synced repository, with what a submit may say over it.

The config is read from the commit that would run, and goes the way of every submit: nothing is checked here.
"""

from __future__ import annotations

import sys
from typing import Annotated

import pydantic
from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy.orm import Session

from osmosis.base.git import GitError
from osmosis.base.json_types import JsonObject
from osmosis.errors import NotFound, OsmosisError, ValidationError
from osmosis.platform import tables
from osmosis.platform.gitsync import repositories, synced, syncing
from osmosis.platform.gitsync.discovery import Tree
from osmosis.platform.gitsync.mirror import MirrorPlace
from osmosis.platform.services import submit, workspaces
from osmosis.platform.slow_work import apart
from osmosis.records.config import CONFIGS
from osmosis.records.config_check import issues_of
from osmosis.records.run_kind import RunKind

from .session import Viewer, form_of, platform_of, viewer
from .templating import PageRoute, page, redirect

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same parser under its older name
    import tomli as tomllib

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]
KINDS: dict[str, RunKind] = {"configs/eval/": "eval", "configs/training/": "training"}


@router.get("/{workspace}/submit")
async def submit_form(request: Request, who: ViewerDep, workspace: str, config: str = "", branch: str = "") -> Response:
    return await apart("checks", _form, request, who, workspace, {"config": config, "branch": branch})


@router.post("/{workspace}/submit")
async def submit_config(request: Request, who: ViewerDep, workspace: str) -> Response:
    form = await form_of(request, who)
    return await apart("checks", _submit, request, who, workspace, form)


def _submit(request: Request, who: Viewer, workspace: str, form: dict[str, str]) -> Response:
    platform = platform_of(request)
    try:
        with platform.db.read() as session:
            row, role = workspaces.by_name(session, who.user, workspace)
            workspaces.require(role, "run")
            text = _text(request, session, row, form)
        kind, body = _body(text, form)
        run = submit.submit(platform, row, who, submit.parse(body, kind), kind=kind)
    except OsmosisError as problem:
        return _form(request, who, workspace, form, problem)
    return redirect(f"/runs/{run.id}")


def _form(
    request: Request, who: Viewer, workspace: str, form: dict[str, str], problem: OsmosisError | None = None
) -> Response:
    with platform_of(request).db.read() as session:
        row, role = workspaces.by_name(session, who.user, workspace)
        workspaces.require(role, "run")
        repository = repositories.of_workspace(session, row.id)
        known = syncing.known_branches(session, repository.id) if repository else {}
        branch = form.get("branch") or (repository.default_branch if repository else "")
        commit = known.get(branch)
        held = synced.found_in(session, repository.id, commit, kinds=("config",)) if repository and commit else []
        configs = [one.path for one in held if one.path.startswith(tuple(KINDS))]
        chosen = form.get("config", "")
        text = ""
        if chosen and problem is None:
            try:
                text = _text(request, session, row, form)
            except OsmosisError as error:
                problem = error
    return page(
        request, "submit.html", who, here="submit", workspace=workspace, configs=configs, branches=sorted(known),
        branch=branch, commit=commit, chosen=chosen, text=text, form=form, problem=problem,
        status=problem.http_status if problem else 200,
    )  # fmt: skip


def _text(request: Request, session: Session, workspace: tables.Workspace, form: dict[str, str]) -> str:
    """The config as the commit has it. NotFound when it is none of those that were synced."""
    platform = platform_of(request)
    repository = repositories.require(session, workspace.id)
    branch, path = form.get("branch") or repository.default_branch, form.get("config", "")
    commit = syncing.known_branches(session, repository.id).get(branch)
    held = synced.found_in(session, repository.id, commit, kinds=("config",)) if commit else []
    if commit is None or path not in {one.path for one in held if one.path.startswith(tuple(KINDS))}:
        raise NotFound(f"branch {branch!r} has no synced config {path!r}", hint="choose one of the list")
    tree = Tree(MirrorPlace.of(repository, platform.settings).git(platform.settings.environ), commit)
    try:
        return tree.read(tree.list([path]))[path]
    except (GitError, KeyError) as error:
        raise NotFound(f"{path} cannot be read at commit {commit[:12]}", hint="sync the repository again") from error


def _body(text: str, form: dict[str, str]) -> tuple[RunKind, JsonObject]:
    """The request of a submit. ValidationError names every problem of the config."""
    path = form["config"]
    kind = next(kind for folder, kind in KINDS.items() if path.startswith(folder))
    try:
        config = CONFIGS[kind].model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValidationError(f"{path}: {error}", hint="fix it, commit, push and sync") from error
    except pydantic.ValidationError as error:
        said = "; ".join(f"{issue.key}: {issue.what}" for issue in issues_of(CONFIGS[kind], error)[:5])
        raise ValidationError(f"{path}: {said}", hint="fix it, commit, push and sync") from error
    body: JsonObject = config.to_request()
    experiment = body["experiment_config"]
    if form.get("branch") and not experiment.get("commit_sha"):
        experiment["branch"] = form["branch"]
    if model := form.get("model", "").strip():
        experiment["model_path"] = model
        for key in ("base_url", "api_key_env"):  # those are of the config's own model
            body.get("advanced_config", {}).pop(key, None)
    for key in ("n", "limit") if kind == "eval" else ():
        if given := form.get(key, "").strip():
            body.setdefault("evaluation_config", {})[key] = int(given) if given.isdigit() else given
    if name := form.get("name", "").strip():
        body["name"] = name
    if tags := form.get("tags", "").replace(",", " ").split():
        body["tags"] = tags
    return kind, body
