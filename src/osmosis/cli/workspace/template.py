from typing import Annotated

from typer import Argument, Option

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core import completion
from osmosis.cli.core.app import new_app
from osmosis.cli.core.context import current
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult, build_columns
from osmosis.errors import ValidationError
from osmosis.workspace import template_update, templates
from osmosis.workspace.layout import find_workspace

app = new_app(
    help="""Rollout and workspace templates.

    Example:
        osmosis template show
        osmosis template update multiply
    """
)


@app.command("show")
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


@app.command("update")
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
    instances = template_update.list_instances(workspace)
    if name is None and not instances:
        hint = "only folders with a .template.toml can be updated"
        raise ValidationError("nothing here was created from a template", hint=hint)
    merged = template_update.update_all(workspace, [name] if name else [i.label for i in instances if i.outdated])
    done = [m for m in merged if m.old != m.new]
    conflicts = sorted(path for m in done for path in m.conflicts)
    message = _build_message(done, conflicts)
    steps = [NextStep("review the changes", command="git diff")] if done else []
    if conflicts:
        steps.append(NextStep("resolve the conflicts, then", command="git commit -am 'Update templates'"))
    resource: dict[str, object] = {"updates": [_body(m) for m in done], "conflicts": conflicts}
    return OperationResult("template.update", message, resource, next_steps=steps, exit_code=1 if conflicts else 0)


def _build_message(done: list[template_update.Merged], conflicts: list[str]) -> str:
    if not done:
        return "everything is up to date"
    touched = sum(len(m.updated) + len(m.added) + len(m.removed) for m in done)
    message = f"{', '.join(m.label for m in done)}: {touched} files updated to {done[0].new}"
    if conflicts:
        message += f"; {len(conflicts)} with conflicts to resolve: {', '.join(conflicts)}"
    return message


def _body(merged: template_update.Merged) -> dict[str, object]:
    keys = ("label", "old", "new", "updated", "added", "removed", "conflicts", "kept")
    return {key: getattr(merged, key) for key in keys}


def check() -> ListResult:
    items = [
        {
            "name": i.label,
            "template": i.record.template,
            "version": i.record.version,
            "latest": i.latest,
            "outdated": i.outdated,
        }
        for i in template_update.list_instances(find_workspace(current().cwd))
    ]
    columns = build_columns("name=Name", "template=Template", "version=Version", "latest=Newest", "outdated=Outdated")
    outdated = any(row["outdated"] for row in items)
    empty = "nothing here was created from a template"
    steps = [NextStep("update them", command="osmosis template update")] if outdated else []
    return ListResult(items, columns, title="Templates in use", empty=empty, next_steps=steps, exit_code=int(outdated))
