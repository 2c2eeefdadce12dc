"""`osmosis dataset`: upload, list, look into, download, validate and delete the datasets of a workspace.

A file is checked here before a byte is sent, by the same reader that evaluations use.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis.base.checksum import file_sha256
from osmosis.base.json_types import JsonObject
from osmosis.errors import Conflict, DatasetError, NotFound, ValidationError
from osmosis.metrics.formats import size
from osmosis.records.contract.uploads import DatasetEntry
from osmosis.records.dataset import FORMATS, MAX_BYTES

from . import prompts
from .context import current, scope_of
from .download import byte_progress
from .paging import Cursor, Everything, Limit, Lines, Offset, Paging, list_result
from .results import Column, DetailResult, ListResult, NextStep, OperationResult, when

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

app = typer.Typer(
    help="""Datasets of the workspace: the rows that rollouts run on.

    Example:
        osmosis dataset upload data/multiply.jsonl
        osmosis dataset list
    """
)
Name = Annotated[str, typer.Argument(help="Name or id of the dataset")]
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
    file: Annotated[
        str,
        typer.Argument(help="A .jsonl, .json, .csv or .parquet file; its name without the extension names the dataset"),
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the dataset with that name")] = False,
    yes: prompts.Yes = False,
) -> OperationResult:
    """Check a file and upload it. A file the platform already has is not sent again.

    Example:
        osmosis dataset upload data/multiply.jsonl
        osmosis dataset upload data/multiply.jsonl --overwrite --yes
    """
    ctx = current()
    path = ctx.path(file)
    checked = _check(path)
    with ctx.client() as client:
        present = _present(client, path.stem)
        if present and present.sha256 and present.sha256 == checked["sha256"]:
            resource = {**present.brief(), "uploaded": False}
            message = f"dataset {path.stem} is already on the platform, with the same content"
            return OperationResult("dataset.upload", message, resource, extra=scope_of(client))
        if present and not overwrite:
            raise Conflict(
                f"a dataset named {path.stem} already exists, with different content",
                hint=f"osmosis dataset upload {file} --overwrite, or rename the file",
                existing_dataset_id=present.id,
            )
        if present and not prompts.confirm(ctx, f"Replace dataset {path.stem}?", yes=yes):
            return OperationResult("dataset.upload", "Cancelled.", status="cancelled")
        with byte_progress(ctx, path.stat().st_size, path.name) as moved:
            made = client.datasets.upload(path, overwrite_id=present.id if present else None, progress=moved)
        made = _until_ready(client, made)
        scope = scope_of(client)
    count = f", {made.row_count} rows" if made.row_count is not None else ""
    message = f"dataset {made.file_name or path.stem} is {made.status}{count}"
    steps = [NextStep("show it", command=f"osmosis dataset preview {path.stem}")]
    return OperationResult("dataset.upload", message, {**made.brief(), "uploaded": True}, next_steps=steps, extra=scope)


def _present(client: PlatformClient, name: str) -> DatasetEntry | None:
    try:
        found = client.datasets.get(name)
    except NotFound:
        return None
    return found if found.ready else None


def _until_ready(client: PlatformClient, made: DatasetEntry) -> DatasetEntry:
    """Wait for the platform's own check of the file."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while made.in_progress and time.monotonic() < deadline:
        time.sleep(0.5)
        made = client.datasets.get(made.id)
    if made.status in ("error", "cancelled"):
        why = made.error or "no reason given"
        raise ValidationError(f"the platform refused the dataset: {why}", hint="osmosis dataset validate FILE")
    return made


def _check(path: Path) -> JsonObject:
    """The facts of a file that can be uploaded, by a platform's rules. Raises with the first problems."""
    from osmosis.datasets.scan import check_upload  # with pyarrow, which only a check needs

    if not path.is_file():
        raise NotFound(f"there is no file {path}", hint="osmosis dataset upload data/NAME.jsonl")
    if path.suffix.lstrip(".").lower() not in FORMATS:
        raise ValidationError(
            f"{path.name}: unsupported format, use {', '.join(FORMATS)}", hint="convert the file, then upload it"
        )
    if path.stat().st_size > MAX_BYTES:
        raise ValidationError(f"{path.name} has {size(path.stat().st_size)}; the limit is {size(MAX_BYTES)}")
    facts = check_upload(path)
    if facts.found:
        issues = [{**issue, "where": "", "key": ""} for issue in facts.issues(MAX_LISTED)]
        count = "1 problem" if facts.found == 1 else f"{facts.found} problems"
        listed = "" if facts.found == len(issues) else f", the first {len(issues)} of them"
        message = f"{path.name} has {count}{listed}"
        raise DatasetError(message, hint="fix them, then check again: osmosis dataset validate FILE", issues=issues)
    size_bytes, warnings = path.stat().st_size, facts.warnings()
    return {
        "path": str(path),
        "rows": facts.rows,
        "sha256": file_sha256(path),
        "bytes": size_bytes,
        "warnings": warnings,
    }


@app.command("list")
def list_datasets(
    limit: Limit = None,
    offset: Offset = 0,
    everything: Everything = False,
) -> ListResult:
    """List the datasets of this workspace.

    Example:
        osmosis dataset list
    """
    paging = Paging(limit, everything, offset)
    empty = "no datasets yet: osmosis dataset upload FILE"
    return list_result(current(), lambda client: client.datasets, COLUMNS, paging, empty=empty)


@app.command()
def info(name: Name) -> DetailResult:
    """Show one dataset.

    Example:
        osmosis dataset info multiply
    """
    with current().client() as client:
        found = client.datasets.get(name)
    return DetailResult(found.to_dict(), brief=found.brief())


@app.command()
def preview(
    name: Name, rows: Annotated[int, typer.Option("--rows", min=1, max=100, help="Show the first N rows")] = 5
) -> ListResult:
    """Show the first rows of a dataset on the platform.

    Example:
        osmosis dataset preview multiply --rows 3
    """
    with current().client() as client:
        found = client.datasets.get(name)
    shown = found.data_preview
    items = [row if isinstance(row, dict) else {"row": row} for row in shown] if isinstance(shown, list) else []
    keys = list(dict.fromkeys(key for row in items for key in row))
    columns = [Column(key, key) for key in keys]
    return ListResult(items[:rows], columns, empty="no preview", extra={"dataset": found.file_name})


@app.command()
def validate(file: Annotated[str, typer.Argument(help="The file to check")]) -> OperationResult:
    """Check a file the way upload does, without a platform.

    Example:
        osmosis dataset validate data/multiply.jsonl
    """
    path = current().path(file)
    facts = _check(path)
    for warning in facts["warnings"]:
        current().output.warn("DATASET", warning["message"])
    steps = [NextStep("upload it", command=f"osmosis dataset upload {file}")]
    return OperationResult(
        "dataset.validate", f"{file} is a valid dataset: {facts['rows']} rows", facts, next_steps=steps
    )


@app.command()
def download(
    name: Name,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File or folder [default: this folder]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file")] = False,
) -> OperationResult:
    """Download a dataset's file.

    Example:
        osmosis dataset download multiply -o data
    """
    ctx = current()
    with ctx.client() as client:
        found = client.datasets.get(name)
        file_name = f"{found.file_name}.{found.file_format or 'jsonl'}"
        target = ctx.path(output) if output else ctx.cwd
        target = target / file_name if target.is_dir() else target
        if target.exists() and not overwrite:
            raise Conflict(f"{target} exists", hint=f"osmosis dataset download {name} --overwrite")
        with byte_progress(ctx, found.file_size or 0, file_name) as moved:
            client.datasets.download(name, target, moved)
    resource = {"name": found.file_name, "path": str(target), "bytes": target.stat().st_size}
    return OperationResult("dataset.download", f"dataset {name} is in {target}", resource)


@app.command()
def logs(
    name: Name,
    limit: Lines = 50,
    cursor: Cursor = None,
) -> ListResult:
    """Show the log of how the platform read a dataset.

    Example:
        osmosis dataset logs multiply
    """
    with current().client() as client:
        page = client.datasets.logs(name, limit=limit, cursor=cursor)
    columns = [Column("timestamp", "Time", show=when), Column("level", "Level"), Column("message", "Message")]
    return ListResult([line.to_dict() for line in page.logs], columns, extra={"next_cursor": page.next_cursor})


@app.command()
def delete(name: Name, yes: prompts.Yes = False) -> OperationResult:
    """Delete a dataset from the platform; runs that used it keep their results.

    Example:
        osmosis dataset delete multiply --yes
    """
    ctx = current()
    with ctx.client() as client:
        found = client.datasets.get(name)
        shown = found.file_name
        if not prompts.confirm(ctx, f"Delete dataset {shown}?", yes=yes):
            return OperationResult("dataset.delete", "Cancelled.", status="cancelled")
        client.datasets.delete(found.id)
    return OperationResult("dataset.delete", f"dataset {shown} is deleted", {"id": found.id, "name": shown})
