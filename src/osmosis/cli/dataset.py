"""`osmosis dataset`: upload, list, look into, download, validate and delete the datasets of a workspace.

A file is checked here before a byte is sent, by the same reader that evaluations use.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer

from ..errors import Conflict, DatasetError, NotFound, ValidationError
from ..records.dataset import FORMATS, MAX_BYTES
from . import prompts
from .context import current
from .output import Column, DetailResult, ListResult, NextStep, OperationResult
from .render_text import size, when
from .runs import page_flags, scope_of

app = typer.Typer(
    help="""Datasets of the workspace: the rows that rollouts work on.

    Example:
        osmosis dataset upload data/multiply.jsonl
        osmosis dataset list
    """
)
NAME = typer.Argument(..., help="Name or id of the dataset")
YES = typer.Option(False, "--yes", "-y", help="Do not ask")
COLUMNS = (
    Column("file_name", "Name"),
    Column("status", "Status"),
    Column("row_count", "Rows", justify="right"),
    Column("file_size", "Size", justify="right", show=size),
    Column("file_format", "Format"),
    Column("created_at", "Created", show=when, wide=True),
)
READY_TIMEOUT_S = 300.0
MAX_LISTED = 5


@app.command()
def upload(
    file: str = typer.Argument(..., help="A .jsonl, .json, .csv or .parquet file; its stem becomes the name"),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the dataset of that name"),
    yes: bool = YES,
) -> OperationResult:
    """Check a file and upload it. Uploading the same file again is fine and sends nothing.

    Example:
        osmosis dataset upload data/multiply.jsonl
        osmosis dataset upload data/multiply.jsonl --overwrite --yes
    """
    ctx = current()
    path = ctx.path(file)
    checked = _check(path)
    with ctx.client() as client:
        present = _present(client, path.stem)
        if present and present.get("sha256") and present["sha256"] == checked["sha256"]:
            resource = {**_brief(present), "uploaded": False}
            message = f"dataset {path.stem} is on the platform already, with the same content"
            return OperationResult("dataset.upload", message, resource, extra=scope_of(client.scope))
        if present and not overwrite:
            raise Conflict(
                f"a dataset named {path.stem} exists, with other content",
                hint=f"osmosis dataset upload {file} --overwrite, or rename the file",
                existing_dataset_id=present.get("id"),
            )
        if present and not prompts.confirm(ctx, f"Replace dataset {path.stem}?", yes=yes):
            return OperationResult("dataset.upload", "Cancelled.", status="cancelled")
        from .download import byte_progress

        with byte_progress(ctx, path.stat().st_size, path.name) as moved:
            made = client.datasets.upload(path, overwrite_id=str(present["id"]) if present else None, progress=moved)
        made = _until_ready(client, made)
        scope = scope_of(client.scope)
    rows = made.get("row_count")
    count = f", {rows} rows" if rows is not None else ""
    message = f"dataset {made.get('file_name') or path.stem} is {made.get('status')}{count}"
    steps = [NextStep("look at it", command=f"osmosis dataset preview {path.stem}")]
    return OperationResult("dataset.upload", message, {**_brief(made), "uploaded": True}, next_steps=steps, extra=scope)


def _brief(row: dict[str, Any]) -> dict[str, Any]:
    """A dataset without its rows."""
    return {key: value for key, value in row.items() if key not in ("data_preview", "is_internal_user")}


def _present(client: Any, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = client.datasets.get(name)
    except NotFound:
        return None
    return found if found.get("status") == "uploaded" else None


def _until_ready(client: Any, made: dict[str, Any]) -> dict[str, Any]:
    """Wait for the platform's own check of the file."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while made.get("status") in ("pending", "uploading", "processing") and time.monotonic() < deadline:
        time.sleep(0.5)
        made = client.datasets.get(str(made["id"]))
    if made.get("status") in ("error", "cancelled"):
        why = made.get("error") or "no reason given"
        raise ValidationError(f"the platform refused the dataset: {why}", hint="osmosis dataset validate FILE")
    return made


def _check(path: Path) -> dict[str, Any]:
    """The facts of a file that can be uploaded, by a platform's rules. Raises with the first problems."""
    from ..datasets.scan import check_upload, file_hash

    if not path.is_file():
        raise NotFound(f"there is no file {path}", hint="osmosis dataset upload data/NAME.jsonl")
    if path.suffix.lstrip(".").lower() not in FORMATS:
        raise ValidationError(f"{path.name}: a dataset is {', '.join(FORMATS)}", hint="convert it, then upload")
    if path.stat().st_size > MAX_BYTES:
        raise ValidationError(f"{path.name} has {size(path.stat().st_size)}; the most is {size(MAX_BYTES)}")
    facts = check_upload(path)
    if facts.found:
        issues = [{**issue, "where": "", "key": ""} for issue in facts.issues(MAX_LISTED)]
        count = "1 problem" if facts.found == 1 else f"{facts.found} problems"
        listed = "" if facts.found == len(issues) else f", the first {len(issues)} of them"
        message = f"{path.name} has {count}{listed}"
        raise DatasetError(message, hint="correct them, then: osmosis dataset validate FILE", issues=issues)
    return {"path": str(path), "rows": facts.rows, "sha256": file_hash(path), "bytes": path.stat().st_size}


@app.command("list")
def list_datasets(
    limit: int = typer.Option(None, min=1, max=50, help="How many [default: 50]"),
    offset: int = typer.Option(0, min=0, help="How many to leave out"),
    everything: bool = typer.Option(False, "--all", help="All of them"),
) -> ListResult:
    """List the datasets of this workspace.

    Example:
        osmosis dataset list
    """
    ctx = current()
    count = page_flags(limit, everything)
    empty = "no dataset yet: osmosis dataset upload FILE"
    with ctx.client() as client:
        scope = scope_of(client.scope)
        if everything:
            return ListResult(client.datasets.all(), COLUMNS, empty=empty, extra=scope)
        page = client.datasets.page(limit=count, offset=offset)
    return ListResult(
        list(page.get("datasets") or []),
        COLUMNS,
        empty=empty,
        total_count=page.get("total_count"),
        has_more=bool(page.get("has_more")),
        next_offset=page.get("next_offset"),
        extra=scope,
    )


@app.command()
def info(name: str = NAME) -> DetailResult:
    """Show one dataset.

    Example:
        osmosis dataset info multiply
    """
    with current().client() as client:
        found = client.datasets.get(name)
    return DetailResult(found, human=_pairs(_brief(found)))


@app.command()
def preview(
    name: str = NAME, rows: int = typer.Option(5, "--rows", min=1, max=100, help="How many rows")
) -> ListResult:
    """Show the first rows of a dataset on the platform.

    Example:
        osmosis dataset preview multiply --rows 3
    """
    with current().client() as client:
        found = client.datasets.get(name)
    shown = found.get("data_preview")
    items = [row if isinstance(row, dict) else {"row": row} for row in shown] if isinstance(shown, list) else []
    keys = list(dict.fromkeys(key for row in items for key in row))
    columns = [Column(key, key) for key in keys]
    return ListResult(items[:rows], columns, empty="no preview", extra={"dataset": found.get("file_name")})


@app.command()
def validate(file: str = typer.Argument(..., help="The file to check")) -> OperationResult:
    """Check a file as upload would, without a platform.

    Example:
        osmosis dataset validate data/multiply.jsonl
    """
    path = current().path(file)
    facts = _check(path)
    steps = [NextStep("upload it", command=f"osmosis dataset upload {file}")]
    return OperationResult("dataset.validate", f"{file} is a dataset: {facts['rows']} rows", facts, next_steps=steps)


@app.command()
def download(
    name: str = NAME,
    output: str = typer.Option(None, "-o", "--output", help="File or folder [default: this folder]"),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a file that is there"),
) -> OperationResult:
    """Fetch a dataset's file.

    Example:
        osmosis dataset download multiply -o data
    """
    ctx = current()
    with ctx.client() as client:
        found = client.datasets.get(name)
        file_name = f"{found.get('file_name')}.{found.get('file_format') or 'jsonl'}"
        target = ctx.path(output) if output else ctx.cwd
        target = target / file_name if target.is_dir() else target
        if target.exists() and not overwrite:
            raise Conflict(f"{target} exists", hint=f"osmosis dataset download {name} --overwrite")
        from .download import byte_progress

        with byte_progress(ctx, int(found.get("file_size") or 0), file_name) as moved:
            client.datasets.download(name, target, moved)
    resource = {"name": found.get("file_name"), "path": str(target), "bytes": target.stat().st_size}
    return OperationResult("dataset.download", f"dataset {name} is in {target}", resource)


@app.command()
def logs(
    name: str = NAME,
    limit: int = typer.Option(50, min=1, max=200, help="How many lines of the end"),
    cursor: str = typer.Option(None, help="Go further back: next_cursor of the last answer"),
) -> ListResult:
    """Show what the platform said while it read a dataset.

    Example:
        osmosis dataset logs multiply
    """
    with current().client() as client:
        page = client.datasets.logs(name, limit=limit, cursor=cursor)
    columns = [Column("timestamp", "Time", show=when), Column("level", "Level"), Column("message", "Message")]
    return ListResult(list(page.get("logs") or []), columns, extra={"next_cursor": page.get("next_cursor")})


@app.command()
def delete(name: str = NAME, yes: bool = YES) -> OperationResult:
    """Delete a dataset from the platform; runs that used it keep their results.

    Example:
        osmosis dataset delete multiply --yes
    """
    ctx = current()
    with ctx.client() as client:
        found = client.datasets.get(name)
        shown = found.get("file_name")
        if not prompts.confirm(ctx, f"Delete dataset {shown}?", yes=yes):
            return OperationResult("dataset.delete", "Cancelled.", status="cancelled")
        client.datasets.delete(str(found["id"]))
    return OperationResult("dataset.delete", f"dataset {shown} is deleted", {"id": found["id"], "name": shown})


def _pairs(shown: dict[str, Any]) -> Any:
    def draw(console: Any) -> None:
        from .render import pairs

        console.print(pairs(shown))

    return draw
