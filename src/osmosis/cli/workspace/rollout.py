from typing import Annotated

from typer import Argument, Option

from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_http
from osmosis.cli.core import completion
from osmosis.cli.core.app import new_app
from osmosis.cli.core.connect import Everything, Limit, Paging
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.prompts import choose
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult, build_columns
from osmosis.cli.eval.replay import branch_rollout, replay_rollout
from osmosis.errors import AuthRequired, Forbidden, NetworkError, NotFound, ValidationError
from osmosis.records.api.workspaces import SyncedRollout
from osmosis.workspace import templates
from osmosis.workspace.layout import Workspace, check_rollout_name, find_workspace
from osmosis.workspace.templates import find_template, list_templates, render_rollout

app = new_app(
    help="""Create and list rollouts.

    Example:
        osmosis rollout new multiply --template multiply
        osmosis rollout list
    """
)
DEFAULT_TEMPLATE = "empty"
app.command("branch")(branch_rollout)
app.command("replay")(replay_rollout)


@app.command("new")
def new(
    name: Annotated[str, Argument(help="Name of the rollout: small letters, digits and -.")],
    template: Annotated[
        str | None,
        Option(
            "--template",
            "-t",
            help="Template to start from; see: osmosis template show.",
            autocompletion=completion.templates,
        ),
    ] = None,
    model: Annotated[str | None, Option(help="Model for the eval config, such as openai/gpt-5-mini.")] = None,
    base_url: Annotated[str | None, Option(help="OpenAI-compatible endpoint that serves the model.")] = None,
    api_key_env: Annotated[str | None, Option(help="Secret with the endpoint's API key.")] = None,
    force: Annotated[bool, Option("--force", "-f", help="Replace existing files.")] = False,
) -> OperationResult:
    """Create a rollout with its configs and data.

    Example:
        osmosis rollout new multiply --template multiply
        osmosis rollout new helper -t empty --model openai/gpt-5-mini
    """
    ctx = current()
    workspace = find_workspace(ctx.cwd)
    check_rollout_name(name)
    if not template and ctx.interactive:
        choices = [(t.name, f"{t.name}: {t.summary}") for t in list_templates()]
        template = choose(ctx, "Template", choices, flag="--template", default="multiply")
    template = template or DEFAULT_TEMPLATE
    info = find_template(template)
    if api_key_env and not base_url:
        raise ValidationError("--api-key-env needs an endpoint", hint="also give --base-url URL")
    if base_url and not is_http(base_url):
        raise ValidationError(f"--base-url {base_url} is not an http URL", hint="for example http://127.0.0.1:8000/v1")
    answers = {"model": model or info.model, "base_url": base_url, "api_key_env": api_key_env}
    files = render_rollout(name, template, workspace.root, answers, force)
    folder = workspace.rollout_folder(name)
    dataset = workspace.local_dataset(name)
    resource = {
        "name": name,
        "template": template,
        "path": f"rollouts/{name}",
        "model": answers["model"],
        "files": files,
        "workspace_directory": str(workspace.root),
    }
    steps = [NextStep("try it here", command=info.try_command.format(name=name))]
    if dataset:
        steps.append(NextStep("upload its dataset", command=f"osmosis dataset upload {workspace.relative(dataset)}"))
    steps.append(NextStep("push its code", command=f"git add -A && git commit -m 'Add {name}' && git push"))
    if folder.eval_config:
        steps.append(NextStep("evaluate it", command=f"osmosis eval submit configs/eval/{name}.toml --wait"))
    return OperationResult(
        "rollout.new", f"rollout {name} created in rollouts/{name} (template {template})", resource, next_steps=steps
    )


@app.command("list")
def list_rollouts(
    branch: Annotated[str | None, Option(help="Rollouts of this branch [default: the default branch]")] = None,
    local: Annotated[bool, Option(help="List this folder only, without asking the platform.")] = False,
    limit: Limit = None,
    everything: Everything = False,
) -> ListResult:
    """List the rollouts in this folder and those the platform has synced.

    Example:
        osmosis rollout list
        osmosis rollout list --local --json
    """
    ctx, paging = current(), Paging(limit, everything)
    workspace = find_workspace(ctx.cwd) if not ctx.options.workspace else None
    rows = {row["name"]: row for row in _list_local(workspace)} if workspace else {}
    for synced in [] if local else _synced(ctx, branch, required=workspace is None):
        row = rows.setdefault(synced.name, {"name": synced.name, "here": False})
        row.update({**synced.to_dict(), "synced": True})
    items = sorted(rows.values(), key=lambda row: str(row["name"]))
    columns = [
        *build_columns("name=Name", "here=Here", "entrypoint=Entrypoint", "synced=Synced"),
        Column("last_synced_commit_sha", "Commit", show=lambda v: str(v or "")[:10]),
        Column("eval_config", "Eval config", wide=True),
    ]
    page = items if limit is None or paging.everything else items[:limit]
    return ListResult(
        page,
        columns,
        title="Rollouts",
        empty="no rollouts yet: osmosis rollout new NAME",
        total_count=len(items),
        has_more=len(page) < len(items),
        extra={"workspace_directory": str(workspace.root)} if workspace else {},
    )


def _list_local(workspace: Workspace) -> list[dict[str, object]]:
    return [
        {
            "name": folder.name,
            "here": True,
            "path": workspace.relative(folder.path),
            "entrypoint": folder.entrypoint.name if folder.entrypoint else None,
            "eval_config": workspace.relative(folder.eval_config) if folder.eval_config else None,
            "training_config": workspace.relative(folder.training_config) if folder.training_config else None,
            "synced": False,
        }
        for folder in workspace.rollouts()
    ]


def _synced(ctx: AppContext, branch: str | None, *, required: bool) -> list[SyncedRollout]:
    try:
        return ctx.client().sync.rollouts(branch=branch)
    except (AuthRequired, NetworkError, NotFound, Forbidden, ValidationError) as error:
        if required or branch:
            raise
        ctx.output.say(f"showing local rollouts only: {error.message}", style="yellow")
        return []


template_app = new_app(
    help="""Rollout and workspace templates.

    Example:
        osmosis template show
        osmosis template update multiply
    """
)


@template_app.command("show")
def show(
    name: Annotated[str | None, Argument(help="A template [default: all]", autocompletion=completion.templates)] = None,
) -> DetailResult | ListResult:
    """List the rollout templates, or show one: its description, its model and the files it writes.

    Example:
        osmosis template show
        osmosis template show multiply
    """
    version = templates.current_version()
    chosen = [templates.find_template(name)] if name else templates.list_templates()
    items: list[JsonObject] = [
        {"name": t.name, "summary": t.summary, "model": t.model, "extra": t.extra or None, "version": version}
        for t in chosen
    ]
    command = f"osmosis rollout new NAME --template {name or 'TEMPLATE'}"
    if name:
        data = {**items[0], "files": templates.template_files(name)}
        return DetailResult(data, title=f"Template {name}", next_steps=[NextStep("start from it", command=command)])
    columns = [Column("name", "Name"), Column("summary", "Description"), Column("model", "Model", wide=True)]
    return ListResult(items, columns, title="Templates", next_steps=[NextStep("use one", command=command)])


@template_app.command("update")
def update(
    name: Annotated[
        str | None,
        Argument(
            help="A rollout, or `workspace` for the workspace's own files [default: all]",
            autocompletion=completion.rollouts,
        ),
    ] = None,
    only_check: Annotated[bool, Option("--check", help="Change nothing; exit with 1 if there is a newer one.")] = False,
) -> OperationResult | ListResult:
    """Merge in the newest version of the templates. Your changes are kept, and git can undo the update.

    Example:
        osmosis template update
        osmosis template update multiply
        osmosis template update --check
    """
    if only_check:
        return check()
    workspace = find_workspace(current().cwd)
    instances = templates.list_instances(workspace)
    if name is None and not instances:
        hint = "only folders with a .template.toml can be updated"
        raise ValidationError("nothing here was created from a template", hint=hint)
    merged = templates.update_all(workspace, [name] if name else [i.label for i in instances if i.outdated])
    done = [m for m in merged if m.old != m.new]
    conflicts = sorted(path for m in done for path in m.conflicts)
    message = _build_message(done, conflicts)
    steps = [NextStep("review the changes", command="git diff")] if done else []
    if conflicts:
        steps.append(NextStep("resolve the conflicts, then", command="git commit -am 'Update templates'"))
    keys = ("label", "old", "new", "updated", "added", "removed", "conflicts", "kept")
    updates = [{key: getattr(merged, key) for key in keys} for merged in done]
    resource: dict[str, object] = {"updates": updates, "conflicts": conflicts}
    return OperationResult("template.update", message, resource, next_steps=steps, exit_code=1 if conflicts else 0)


def _build_message(done: list[templates.Merged], conflicts: list[str]) -> str:
    if not done:
        return "everything is up to date"
    touched = sum(len(m.updated) + len(m.added) + len(m.removed) for m in done)
    message = f"{', '.join(m.label for m in done)}: {touched} files updated to {done[0].new}"
    if conflicts:
        message += f"; {len(conflicts)} with conflicts to resolve: {', '.join(conflicts)}"
    return message


def check() -> ListResult:
    items = [
        {
            "name": i.label,
            "template": i.record.template,
            "version": i.record.version,
            "latest": i.latest,
            "outdated": i.outdated,
        }
        for i in templates.list_instances(find_workspace(current().cwd))
    ]
    columns = build_columns("name=Name", "template=Template", "version=Version", "latest=Newest", "outdated=Outdated")
    outdated = any(row["outdated"] for row in items)
    empty = "nothing here was created from a template"
    steps = [NextStep("update them", command="osmosis template update")] if outdated else []
    return ListResult(items, columns, title="Templates in use", empty=empty, next_steps=steps, exit_code=int(outdated))
