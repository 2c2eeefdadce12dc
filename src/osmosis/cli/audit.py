"""`osmosis workspace audit` and `osmosis platform audit`: who changed what, when, from where."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from osmosis.base.files import write_text
from osmosis.records.contract.audit_log import AuditRow

from .context import current
from .results import Column, ListResult, OperationResult, when

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most N, newest first")]
Action = Annotated[
    str, typer.Option(help="Only these actions: a noun such as `run`, or one action such as `run.delete`")
]
Actor = Annotated[str, typer.Option("--by", help="Only actions of this person")]
Output = Annotated[
    str | None, typer.Option("--output", "-o", help="Write all entries to this file, one JSON object per line")
]


def of_workspace(
    limit: Limit = 50, action: Action = "", by: Actor = "", output: Output = None
) -> ListResult | OperationResult:
    """Show who changed what in the workspace, when and from where. For its owners and admins.

    Example:
        osmosis workspace audit --action secret
        osmosis workspace audit --output audit.jsonl
    """
    return _shown(limit, action, by, output, everywhere=False)


def of_platform(
    limit: Limit = 50, action: Action = "", by: Actor = "", output: Output = None
) -> ListResult | OperationResult:
    """Show who changed what on the whole platform. For operators only.

    Example:
        osmosis platform audit --by ada
        osmosis platform audit --action login --json
    """
    return _shown(limit, action, by, output, everywhere=True)


def _shown(limit: int, action: str, by: str, output: str | None, *, everywhere: bool) -> ListResult | OperationResult:
    ctx = current()
    count = None if output else limit
    with ctx.client(scoped=not everywhere) as client:
        found = client.workspaces.access.audit.entries(count=count, everywhere=everywhere, action=action, actor=by)
        rows: list[AuditRow] = list(found)
    items = [row.to_dict() for row in rows]
    if output:
        write_text(ctx.path(output), "".join(f"{json.dumps(item)}\n" for item in items), mode=0o600)
        resource = {"file": output, "entries": len(items)}
        return OperationResult("audit.export", f"{len(items)} entries are in {output}", resource)
    columns = [
        Column("timestamp", "When", show=when),
        Column("actor", "Who"),
        Column("action", "What"),
        Column("target", "To"),
        Column("address", "From", wide=True),
        Column("token", "With", wide=True),
    ]
    return ListResult(items, columns, empty="nothing was changed yet")
