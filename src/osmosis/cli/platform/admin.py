import json
import re
from typing import Annotated

from pydantic import ValidationError as PydanticError
from typer import Argument, Option

from osmosis.base.files import write_text
from osmosis.cli.core import completion, prompts
from osmosis.cli.core.app import new_app
from osmosis.cli.core.context import current
from osmosis.cli.core.results import Column, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.errors import UsageError, ValidationError
from osmosis.metrics.formats import number
from osmosis.records.api.accounts import AuditRow, NewPerson, Quota, QuotaUse
from osmosis.records.config.worker import check_size, megabytes

app = new_app(
    help="""The people of the platform: add, list, delete, link. For operators only.

    Example:
        osmosis platform user add ada --email ada@example.com
        osmosis platform user link ada
    """
)
Handle = Annotated[str, Argument(help="Small letters, digits and -")]
Hours = Annotated[int, Option(min=1, max=168, help="How long the link works")]
_HANDLE = re.compile(r"^[a-z0-9][a-z0-9-]{0,62}\Z")


@app.command()
def add(
    handle: Handle,
    email: Annotated[str, Option(help="Their e-mail address, which invitations are matched by")] = "",
    name: Annotated[str, Option(help="Display name [default: the handle]")] = "",
    operator: Annotated[bool, Option(help="Make them an operator of the platform")] = False,
    hours: Hours = 24,
) -> OperationResult:
    """Add a person, and print the link that logs them in once.

    Example:
        osmosis platform user add ada --email ada@example.com
    """
    ctx = current()
    if not _HANDLE.fullmatch(handle):
        better = re.sub(r"[^a-z0-9-]+", "-", handle.lower()).strip("-")[:63] or "ada"
        message = f"{handle!r} is not a handle: use small letters, digits and -, a letter or digit first"
        raise ValidationError(message, hint=f"osmosis platform user add {better}")
    wish = NewPerson(handle=handle, email=email, name=name, operator=operator)
    client = ctx.client(scoped=False)
    row = client.people.add(wish)
    link = client.people.link(handle, hours)
    joined = "".join(f", {role} of {workspace}" for workspace, role in row.workspaces.items())
    message = f"{handle} is added{joined}; this link logs them in once, within {hours} h:\n{link.url}"
    steps = [NextStep("invite them to a workspace", command=f"osmosis workspace members {handle}")]
    return OperationResult("platform.user.add", message, {**row.to_dict(), "link": link.url}, next_steps=steps)


@app.command("list")
def list_people() -> ListResult:
    """List everyone on the platform.

    Example:
        osmosis platform user list
    """
    rows = current().client(scoped=False).people.list()
    columns = [
        *build_columns("handle=Handle", "name=Name"),
        Column("email", "E-mail", wide=True),
        Column("operator", "Operator", show=lambda v: "yes" if v else ""),
        Column("workspaces", "Workspaces", show=lambda v: ", ".join(f"{name} ({role})" for name, role in v.items())),
        Column("last_used_at", "Last seen", show=when),
    ]
    return ListResult([row.to_dict() for row in rows], columns)


@app.command("delete")
def delete(
    handle: Handle,
    heir: Annotated[str | None, Option("--give-to", help="New owner of the workspaces that only they own")] = None,
) -> OperationResult:
    """Remove a person. Their tokens stop working at once and their secrets are deleted; their runs and datasets stay.

    Example:
        osmosis platform user delete ada --give-to grace
    """
    ctx = current()
    prompts.agree(ctx, f"Remove {handle} from the platform?", "platform.user.remove")
    ctx.client(scoped=False).people.remove(handle, heir)
    return OperationResult("platform.user.remove", f"{handle} is removed", {"handle": handle, "heir": heir})


@app.command()
def link(
    handle: Handle,
    hours: Hours = 24,
    undo: Annotated[bool, Option(help="Instead, forget which account at the sign-in provider is theirs")] = False,
) -> OperationResult:
    """Print a one-time link that logs a person's browser in.

    Send it to nobody else: whoever opens it is logged in as them. After --undo, the next account at the sign-in
    provider with their e-mail address is theirs.

    Example:
        osmosis platform user link ada --hours 2
        osmosis platform user link ada --undo
    """
    ctx = current()
    if undo:
        prompts.agree(ctx, f"Forget which account at the provider is {handle}'s?", "platform.user.unlink")
    client = ctx.client(scoped=False)
    if undo:
        client.people.unlink(handle)
        message = f"{handle} is linked again by whoever signs in with their verified address; sessions go on"
        return OperationResult("platform.user.unlink", message, {"handle": handle})
    issued = client.people.link(handle, hours)
    message = f"this link logs {handle} in once, within {hours} h:\n{issued.url}"
    return OperationResult("platform.user.link", message, {"handle": handle, "url": issued.url, "hours": hours})


Limit = Annotated[int, Option("--limit", "-n", min=1, help="Show at most N, newest first")]
Everywhere = Annotated[bool, Option(help="Of the whole platform; for operators")]
Action = Annotated[str, Option(help="Only these actions: a noun such as `run`, or one action such as `run.delete`")]
Actor = Annotated[str, Option(help="Only actions of this person")]
Output = Annotated[str | None, Option("--output", "-o", help="Write all entries to this file, as JSON Lines")]


def audit_workspace(
    limit: Limit = 50, action: Action = "", by: Actor = "", output: Output = None, everywhere: Everywhere = False
) -> ListResult | OperationResult:
    """Show who changed what in the workspace, when and from where. For its owners and admins.

    Example:
        osmosis workspace audit --action secret
        osmosis workspace audit --output audit.jsonl
        osmosis workspace audit --everywhere --by ada
    """
    ctx = current()
    count = None if output else limit
    entries = ctx.client(scoped=not everywhere).audit.entries(
        count=count, everywhere=everywhere, action=action, actor=by
    )
    rows: list[AuditRow] = list(entries)
    items = [row.to_dict() for row in rows]
    if output:
        write_text(ctx.path(output), "".join(f"{json.dumps(item)}\n" for item in items), mode=0o600)
        resource = {"file": output, "entries": len(items)}
        return OperationResult("audit.export", f"{len(items)} entries are in {output}", resource)
    columns = [
        Column("timestamp", "When", show=when),
        *build_columns("actor=Who", "action=What", "target=To"),
        Column("address", "From", wide=True),
        Column("token", "With", wide=True),
    ]
    return ListResult(items, columns, empty="nothing was changed yet")


def show_quota(
    name: Annotated[
        str | None,
        Argument(help="Another workspace; for operators [default: this one]", autocompletion=completion.workspaces),
    ] = None,
    limits: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=LIMIT",
            help="Set a limit, 0 for none: runs, rollouts, cpus, memory, gpus, datasets, storage. "
            "For operators. Repeatable",
        ),
    ] = None,
) -> ListResult:
    """Show how much of its quota the workspace uses, or set it.

    A run over the quota waits in the queue. The workspace that was served longest ago comes first.

    Example:
        osmosis workspace quota
        osmosis workspace quota demo --set runs=4 --set storage=50GB --set memory=128GB
    """
    ctx = current()
    if name is None:
        if limits:
            raise UsageError("--set needs the name of a workspace", hint="osmosis workspace quota demo --set runs=4")
        return _shown_quota(ctx.client().workspaces.quota())
    values = dict(text.partition("=")[::2] for text in limits or [])
    keys = ("runs", "rollouts", "cpus", "memory", "gpus", "datasets", "storage")
    if unknown := sorted(set(values) - set(keys)):
        raise UsageError(f"--set {unknown[0]}: there is no such limit", hint=f"one of: {', '.join(keys)}")
    texts = {key: values.pop(key, None) for key in ("memory", "storage")}
    try:
        sizes = {"memory_mb": _memory(texts["memory"]), "bytes": _bytes(texts["storage"])}
        wish = Quota.model_validate({**values, **sizes})
    except PydanticError as error:
        first = error.errors()[0]
        raise UsageError(f"--set {first['loc'][0]}: {first['msg']}", hint="--set runs=4") from error
    return _shown_quota(ctx.client(scoped=False).workspaces.set_quota(name, wish))


def _shown_quota(use: QuotaUse) -> ListResult:
    about = {
        "runs": "runs in flight",
        "rollouts": "rollouts in flight",
        "cpus": "cpus in use",
        "memory_mb": "memory in use, MB",
        "gpus": "gpus in use",
        "datasets": "datasets",
        "bytes": "storage, bytes",
    }
    items = [
        {"name": key, "about": text, "used": getattr(use.used, key), "limit": getattr(use.limits, key)}
        for key, text in about.items()
    ]
    columns = [
        *build_columns("about=What"),
        Column("used", "Used", justify="right", show=number),
        Column("limit", "Limit", justify="right", show=lambda v: "none" if v is None else number(v)),
    ]
    return ListResult(items, columns)


def _memory(text: str | None) -> int | None:
    if text is None or text.strip() == "0":
        return None if text is None else 0
    try:
        return megabytes(check_size(text.strip().upper()))
    except ValueError as error:
        raise ValidationError(f"memory={text} {error}", hint="for example --set memory=64GB") from error


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,15})\s*([KMGT]B)?", text.strip().upper())
    if match is None:
        raise ValidationError(f"storage={text} is not a size", hint="for example --set storage=50GB")
    return int(match[1]) * {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}[match[2] or ""]
