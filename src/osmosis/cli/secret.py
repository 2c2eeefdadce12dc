"""`osmosis secret`: values are never read from the command line, where the shell's history would keep them."""

import sys
from typing import Annotated, Literal

from typer import Argument, Option

from osmosis.cli.core import completion, prompts
from osmosis.cli.core.app import guess_hint, new_app
from osmosis.cli.core.connect import Everything, Limit, Paging, scope_of
from osmosis.cli.core.context import AppContext, current, read_secrets_file
from osmosis.cli.core.results import Column, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.errors import NotFound, UsageError, ValidationError
from osmosis.records.api.workspaces import SecretPage, SecretRow
from osmosis.records.config.run_config import SECRET_NAME
from osmosis.records.run.status import RunKind
from osmosis.workspace.config_file import load_config
from osmosis.workspace.layout import find_workspace, pick_config

app = new_app(
    help="""Secrets, which runs get as environment variables: set, list, delete, import.

    Example:
        osmosis secret set OPENAI_API_KEY
        osmosis secret import .env
    """
)
Name = Annotated[str, Argument(help="Environment variable: capitals, digits, _", autocompletion=completion.secrets)]
Scope = Annotated[Literal["personal", "workspace"], Option(help="Whose secret")]
MAX_NAME = 255


@app.command("set")
def set_secret(
    name: Name,
    scope: Scope = "personal",
    env: Annotated[str | None, Option(help="Read the value from this environment variable")] = None,
    from_file: Annotated[str | None, Option(help="Read the value from this file; - is stdin")] = None,
) -> OperationResult:
    """Register a secret, or change its value.

    Without --env or --from-file, the value is read from a hidden prompt or a pipe.

    Example:
        osmosis secret set OPENAI_API_KEY
        osmosis secret set OPENAI_API_KEY --env OPENAI_API_KEY --scope workspace
        pass show openai | osmosis secret set OPENAI_API_KEY
    """
    ctx = current()
    _check_name(name)
    value = _value(ctx, name, env, from_file)
    client = ctx.client()
    row = client.secrets.set(name, value, scope=scope)
    extra = scope_of(client)
    return OperationResult("secret.set", f"secret {name} is set ({scope})", _describe_secret(row), extra=extra)


@app.command("list")
def list_secrets(
    scope: Annotated[Literal["all", "personal", "workspace"], Option(help="Which secrets")] = "all",
    limit: Limit = None,
    everything: Everything = False,
) -> ListResult:
    """List secrets: names, scopes and ages, never values.

    Example:
        osmosis secret list --scope workspace
    """
    ctx = current()
    paging = Paging(limit, everything)
    client = ctx.client()
    extra = scope_of(client)
    if paging.everything:
        page = SecretPage(environment_secrets=client.secrets.all(scope=scope))
    else:
        page = client.secrets.page(scope=scope, limit=paging.size)
    rows = page.environment_secrets
    columns = [
        *build_columns("name=Name", "scope=Scope"),
        Column("shadows", "Shadows", show=lambda v: "the workspace's" if v else ""),
        Column("updated_at", "Set", show=when),
        Column("updater_name", "By", wide=True),
    ]
    if any(row.last_used_by for row in rows):
        columns += [Column("last_used_by", "Last used by"), Column("last_used_at", "Used", show=when)]
    shared = {row.name for row in rows if row.scope == "workspace"}
    return ListResult(
        [{**_describe_secret(row), "shadows": row.scope == "personal" and row.name in shared} for row in rows],
        columns,
        empty="no secrets yet: osmosis secret set NAME",
        total_count=page.total_count,
        has_more=page.has_more,
        next_offset=page.next_offset,
        extra=extra,
    )


@app.command()
def delete(name: Name, scope: Scope = "personal") -> OperationResult:
    """Delete a secret.

    Example:
        osmosis secret delete OPENAI_API_KEY --yes
    """
    ctx = current()
    client = ctx.client()
    names = {row.name for row in client.secrets.all(scope=scope)}
    if name not in names:
        hint = guess_hint(name, names, "osmosis secret list")
        raise NotFound(f"there is no {scope} secret {name}", hint=hint)
    prompts.agree(ctx, f"Delete {scope} secret {name}?", "secret.delete")
    client.secrets.delete(name, scope=scope)
    return OperationResult("secret.delete", f"secret {name} is deleted ({scope})", {"name": name, "scope": scope})


@app.command("import")
def import_file(
    file: Annotated[str, Argument(help="A file of NAME=value lines; - is stdin")],
    scope: Scope = "personal",
    only: Annotated[list[str] | None, Option(help="Import only this name. Repeatable")] = None,
) -> OperationResult:
    """Register the secrets in a .env file. Nothing is registered when a name is invalid.

    Example:
        osmosis secret import .env --only OPENAI_API_KEY
    """
    ctx = current()
    values = read_secrets_file(ctx, file)
    if absent := [name for name in only or [] if name not in values]:
        raise NotFound(f"{file} has no {', '.join(absent)}")
    values = {name: value for name, value in values.items() if not only or name in only}
    if not values:
        raise ValidationError(f"{file} has no NAME=value line")
    for name, value in values.items():
        _check_name(name)
        if not value:
            raise ValidationError(f"{name} is empty in {file}", hint="give it a value, or choose names with --only")
    prompts.agree(ctx, f"Set {', '.join(values)} ({scope})?", "secret.import")
    client = ctx.client()
    for name, value in values.items():
        client.secrets.set(name, value, scope=scope)
    resource = {"names": list(values), "scope": scope}
    return OperationResult("secret.import", f"{len(values)} secrets are set ({scope})", resource)


@app.command(hidden=True)
def check(config: Annotated[str, Argument(help="A config", autocompletion=completion.configs)]) -> ListResult:
    """Check that every secret a config requires is registered. Exits with 1 when one is missing.

    Example:
        osmosis secret check configs/eval/multiply.toml
    """
    ctx = current()
    workspace = find_workspace(ctx.cwd)
    path = ctx.path(config)
    kind: RunKind = "training" if "training" in path.parts else "eval"
    if not path.is_file():
        path = ctx.path(pick_config(workspace, kind, config))
    required = load_config(path, workspace.root, kind)[0].secret_names()
    rows = ctx.client().secrets.all()
    by_name: dict[str, list[str]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row.scope or "")
    scopes = {name: "personal" if "personal" in names else names[0] for name, names in by_name.items()}
    items = [{"name": name, "registered": name in scopes, "scope": scopes.get(name)} for name in required]
    missing = [item["name"] for item in items if not item["registered"]]
    columns = [Column("name", "Name"), Column("registered", "Registered"), Column("scope", "From")]
    steps = [NextStep("register it", command=f"osmosis secret set {name}") for name in missing]
    empty = f"{config} requires no secrets"
    return ListResult(items, columns, empty=empty, exit_code=1 if missing else 0, next_steps=steps)


def _describe_secret(row: SecretRow) -> dict[str, object]:
    return {key: value for key, value in row.to_dict().items() if key != "value"}


def _check_name(name: str) -> None:
    if not SECRET_NAME.match(name) or len(name) > MAX_NAME:
        better = "".join(c if c.isalnum() else "_" for c in name.upper()).lstrip("0123456789_")
        hint = f"osmosis secret set {better}" if SECRET_NAME.match(better) else "for example OPENAI_API_KEY"
        message = f"{name!r} is not a secret name: use capitals, digits and _, starting with a letter"
        raise ValidationError(message, hint=hint)


def _value(ctx: AppContext, name: str, env: str | None, from_file: str | None) -> str:
    if env and from_file:
        raise UsageError("--env and --from-file cannot be used together")
    if env:
        value = ctx.environ.get(env)
        if value is None:
            raise ValidationError(f"the variable {env} is not set", hint=f"export {env}=..., or remove --env")
    elif from_file and from_file != "-":
        try:
            value = ctx.path(from_file).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ValidationError(f"cannot read {from_file}: {reason}", hint="--from-file FILE") from None
    else:
        piped = from_file == "-" or (ctx.stdin is sys.stdin and not ctx.stdin.closed and not ctx.stdin.isatty())
        value = ctx.stdin.read().rstrip("\r\n") if piped else ""
        if not value and from_file != "-":
            value = prompts.hidden(ctx, f"Value of {name}", flags=["--env", "--from-file"])
    if not value:
        raise ValidationError(f"the value of {name} is empty", hint="to remove a secret: osmosis secret delete")
    return value
