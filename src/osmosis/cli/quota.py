"""`osmosis workspace quota` and `osmosis platform quota`: how much a workspace has, and may have."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from osmosis.errors import ValidationError
from osmosis.records.contract.quota import Quota, QuotaUse
from osmosis.records.worker import checked_size, megabytes

from .context import current
from .results import Column, ListResult

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
Most = Annotated[int | None, typer.Option(min=0, help="Maximum in flight; 0: no limit")]


def of_workspace() -> ListResult:
    """Show how much of its quota the workspace uses.

    Example:
        osmosis workspace quota
    """
    ctx = current()
    with ctx.client() as client:
        found = client.workspaces.access.quota()
    return _shown(found)


def of_platform(
    workspace: Annotated[str, typer.Argument(help="Name of the workspace")],
    runs: Most = None,
    rollouts: Most = None,
    cpus: Annotated[float | None, typer.Option(min=0, help="Maximum in use, as requested by jobs; 0: no limit")] = None,
    memory: Annotated[str | None, typer.Option(help="Maximum in use, such as 64GB; 0: no limit")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Maximum in use; 0: no limit")] = None,
    datasets: Annotated[int | None, typer.Option(min=0, help="Maximum number; 0: no limit")] = None,
    storage: Annotated[
        str | None, typer.Option(help="Maximum size of datasets and base models, such as 500MB or 50GB; 0: no limit")
    ] = None,
) -> ListResult:
    """Show or set a workspace's quota. For operators only.

    A run over the quota waits in the queue. The workspace that was served longest ago comes first.

    Example:
        osmosis platform quota demo
        osmosis platform quota demo --runs 4 --rollouts 64 --storage 50GB
        osmosis platform quota demo --gpus 2 --memory 128GB
    """
    ctx = current()
    wish = Quota(
        runs=runs,
        rollouts=rollouts,
        cpus=cpus,
        memory_mb=_memory(memory),
        gpus=gpus,
        datasets=datasets,
        bytes=_bytes(storage),
    )
    with ctx.client(scoped=False) as client:
        found = client.workspaces.access.set_quota(workspace, wish)
    return _shown(found)


def _shown(found: QuotaUse) -> ListResult:
    about = {
        "runs": "runs in flight",
        "rollouts": "rollouts in flight",
        "cpus": "cpus in use",
        "memory_mb": "MB of memory in use",
        "gpus": "gpus in use",
        "datasets": "datasets",
        "bytes": "bytes",
    }
    items = [
        {"name": key, "about": text, "used": getattr(found.used, key), "limit": getattr(found.limits, key)}
        for key, text in about.items()
    ]
    columns = [
        Column("about", "What"),
        Column("used", "Used", justify="right"),
        Column(
            "limit",
            "Limit",
            justify="right",
            show=lambda v: "none" if v is None else f"{v:g}" if isinstance(v, float) else str(v),
        ),
    ]
    return ListResult(items, columns)


def _memory(text: str | None) -> int | None:
    """In MB, as `[advanced.resources]` counts them."""
    if text is None or text.strip() == "0":
        return None if text is None else 0
    try:
        return megabytes(checked_size(text.strip().upper()))
    except ValueError as error:
        raise ValidationError(f"--memory {text!r} {error}", hint="for example --memory 64GB") from error


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,15})\s*([KMGT]B)?", text.strip().upper())
    if match is None:
        raise ValidationError(f"--storage {text!r} is not a size", hint="for example --storage 50GB")
    return int(match[1]) * _UNITS[match[2] or ""]
