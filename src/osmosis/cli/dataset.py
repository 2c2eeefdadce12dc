import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from typer import Argument, Option

from osmosis.base.files import file_sha256
from osmosis.base.jsonable import JsonObject
from osmosis.bridges.mapped import parse_mapping
from osmosis.cli.core import completion, prompts
from osmosis.cli.core.app import new_app
from osmosis.cli.core.connect import Cursor, Everything, Limit, Lines, Offset, Paging, list_result, scope_of
from osmosis.cli.core.context import current
from osmosis.cli.core.render import draw_list, pairs, print_text
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.datasets.row_file import write_rows
from osmosis.errors import Conflict, DatasetError, NotFound, ValidationError
from osmosis.local.run_options import run_folder
from osmosis.metrics.formats import size
from osmosis.records.api.datasets import DatasetEntry
from osmosis.records.run.rows import FORMATS, MAX_BYTES

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

app = new_app(
    help="""Datasets of the workspace: the rows that rollouts run on.

    Example:
        osmosis dataset upload data/multiply.jsonl
        osmosis dataset list
    """
)
Name = Annotated[str, Argument(help="Name or id of the dataset", autocompletion=completion.datasets)]
COLUMNS = (
    *build_columns("file_name=Name", "status=Status", ">row_count=Rows"),
    Column("file_size", "Size", justify="right", show=size),
    Column("file_format", "Format"),
    Column("created_at", "Created", show=when, wide=True),
)
READY_TIMEOUT_S = 300.0
MAX_LISTED = 5


@app.command("from")
def make_from(
    source: Annotated[
        str,
        Argument(
            help="An environment as in eval -m (reasoning-gym:NAME, harbor:FOLDER ...), hf:FOLDER[:SPLIT], "
            "hf:ORG/NAME[:SPLIT], journal:RUN, otlp:FILE, langfuse:FILE, promptfoo:FILE, or a log of another tool"
        ),
    ],
    output: Annotated[Path, Option("--output", "-o", help="JSONL file to write")],
    rows: Annotated[int, Option("--size", min=1, help="How many tasks of reasoning-gym to make")] = 100,
    seed: Annotated[int, Option(help="Seed of reasoning-gym's tasks")] = 0,
    mapping: Annotated[
        list[str] | None,
        Option("--map", metavar="NAME=COLUMN", help="Column for prompt, target, id or messages. Repeatable"),
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="Write at most this many rows")] = None,
    overwrite: Annotated[bool, Option(help="Replace the file")] = False,
) -> OperationResult:
    """Make a dataset of an environment's tasks, a hub's dataset, traces, a run, tests, or the log of another tool.

    The columns that become prompt, target and id are shown first; on a terminal they are asked for, unless --yes.

    Example:
        osmosis dataset from reasoning-gym:countdown -o data/countdown.jsonl --size 500 --seed 1
        osmosis dataset from hf:data/gsm8k:test -o data/gsm8k.jsonl --map prompt=question --map target=answer
        osmosis dataset from logs/gsm8k.eval -o data/gsm8k.jsonl
        osmosis dataset from journal:nightly -o data/nightly.jsonl
    """
    from osmosis.bridges.rows import read_source  # with pyarrow, which only this needs

    ctx = current()
    path = ctx.path(output)
    if path.exists() and not overwrite:
        raise Conflict(f"{path} exists", hint="--overwrite, or another --output")
    columns = parse_mapping(mapping or ())

    result: JsonObject = {"path": str(path)}

    def approve(mapped: Mapping[str, str]) -> None:
        result["columns"] = dict(mapped)
        text = ", ".join(f"{name} = {column}" for name, column in mapped.items())
        ctx.output.say(f"columns: {text}; the others are metadata")
        if ctx.interactive:
            prompts.agree(ctx, "Map them so?", "dataset.from", source=source)

    if source.startswith("journal:"):
        source = f"journal:{run_folder(source.partition(':')[2], ctx.cwd)}"
    if source.startswith("reasoning-gym:"):
        ctx.output.say("reasoning-gym runs in an environment of its own, which is installed the first time")
    lines = read_source(source, ctx.cwd, size=rows, seed=seed, mapping=columns, environ=ctx.environ, approve=approve)
    count = write_rows(lines, path, limit=limit)
    steps = [NextStep("check it", command=f"osmosis check {output}")]
    message = f"{count} rows written to {path}"
    return OperationResult("dataset.from", message, {**result, "rows": count}, next_steps=steps)


@app.command()
def upload(
    file: Annotated[str, Argument(help="A .jsonl, .json, .csv or .parquet file; its stem is the dataset's name")],
    overwrite: Annotated[bool, Option(help="Replace the dataset with that name")] = False,
) -> OperationResult:
    """Check a file and upload it. A file the platform already has is not sent again.

    Example:
        osmosis dataset upload data/multiply.jsonl
        osmosis dataset upload data/multiply.jsonl --overwrite --yes
    """
    ctx = current()
    path = ctx.path(file)
    checked = _check(path)
    client = ctx.client()
    present = _present(client, path.stem)
    if present and present.sha256 and present.sha256 == checked["sha256"]:
        resource = {**present.brief(), "uploaded": False}
        message = f"dataset {path.stem} is already on the platform, with the same content"
        return OperationResult("dataset.upload", message, resource, extra=scope_of(client))
    if present and not overwrite:
        message = f"a dataset named {path.stem} already exists, with different content"
        hint = f"osmosis dataset upload {file} --overwrite, or rename the file"
        raise Conflict(message, hint=hint, existing_dataset_id=present.id)
    if present:
        prompts.agree(ctx, f"Replace dataset {path.stem}?", "dataset.upload")
    with ctx.output.bar(path.name, path.stat().st_size, in_bytes=True) as moved:
        row = client.datasets.upload(path, overwrite_id=present.id if present else None, progress=moved)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while row.in_progress and time.monotonic() < deadline:
        time.sleep(0.5)
        row = client.datasets.get(row.id)
    if row.status in ("error", "cancelled"):
        reason = row.error or "no reason given"
        raise ValidationError(f"the platform refused the dataset: {reason}", hint="osmosis check FILE")
    scope = scope_of(client)
    count = f", {row.row_count} rows" if row.row_count is not None else ""
    message = f"dataset {row.file_name or path.stem} is {row.status}{count}"
    steps = [NextStep("show it", command=f"osmosis dataset show {path.stem}")]
    return OperationResult("dataset.upload", message, {**row.brief(), "uploaded": True}, next_steps=steps, extra=scope)


def _present(client: "PlatformClient", name: str) -> DatasetEntry | None:
    try:
        row = client.datasets.get(name)
    except NotFound:
        return None
    return row if row.ready else None


def _check(path: Path) -> JsonObject:
    from osmosis.datasets.scan import check_upload  # with pyarrow, which only a check needs

    if not path.is_file():
        raise NotFound(f"there is no file {path}", hint="osmosis dataset upload data/NAME.jsonl")
    if path.suffix.lstrip(".").lower() not in FORMATS:
        hint = "convert the file, then upload it"
        raise ValidationError(f"{path.name}: unsupported format, use {', '.join(FORMATS)}", hint=hint)
    if path.stat().st_size > MAX_BYTES:
        raise ValidationError(f"{path.name} has {size(path.stat().st_size)}; the limit is {size(MAX_BYTES)}")
    facts = check_upload(path)
    if facts.found:
        issues = [{**issue, "where": "", "key": ""} for issue in facts.issues(MAX_LISTED)]
        count = "1 problem" if facts.found == 1 else f"{facts.found} problems"
        listed = "" if facts.found == len(issues) else f", the first {len(issues)} of them"
        message = f"{path.name} has {count}{listed}"
        raise DatasetError(message, hint="fix them, then check again: osmosis check FILE", issues=issues)
    return {
        "path": str(path),
        "rows": facts.rows,
        "sha256": file_sha256(path),
        "bytes": path.stat().st_size,
        "warnings": facts.warnings(),
    }


@app.command("list")
def list_datasets(limit: Limit = None, offset: Offset = 0, everything: Everything = False) -> ListResult:
    """List the datasets of this workspace.

    Example:
        osmosis dataset list
    """
    paging = Paging(limit, everything, offset)
    empty = "no datasets yet: osmosis dataset upload FILE"
    result = list_result(current(), lambda client: client.datasets, COLUMNS, paging, empty=empty)
    for item in result.items:
        item.pop("data_preview", None)  # rows of each file: `dataset show` has them
    return result


@app.command()
def show(name: Name, rows: Annotated[int, Option(min=0, max=100, help="Show the first N rows")] = 5) -> DetailResult:
    """Show one dataset, its first rows and, when something went wrong, the log of how the platform read it.

    Example:
        osmosis dataset show multiply --rows 3
    """
    client = current().client()
    row = client.datasets.get(name)
    lines = [] if row.ready else client.datasets.logs(name, limit=50, cursor=None).logs
    listed = _first_rows(row, rows)
    data = {**row.to_dict(), "data_preview": listed.items, "logs": [line.to_dict() for line in lines]}

    def draw(console: Console) -> None:
        facts = {**row.brief(), "file_size": size(row.file_size), "original_file_size": size(row.original_file_size)}
        repeated = {f"original_{key}" for key in facts if facts[key] == facts.get(f"original_{key}")}
        console.print(pairs({key: facts[key] for key in facts if key not in repeated}))
        if listed.items:
            console.print()
            draw_list(console, listed)
        for line in lines:
            print_text(console, f"{line.level}: {line.message}")

    return DetailResult(data, human=draw)


@app.command(hidden=True)
def info(name: Name) -> DetailResult:
    """Show one dataset."""
    row = current().client().datasets.get(name)
    return DetailResult(row.to_dict(), brief=row.brief())


@app.command(hidden=True)
def preview(name: Name, rows: Annotated[int, Option(min=1, max=100, help="Show the first N rows")] = 5) -> ListResult:
    """Show the first rows of a dataset on the platform."""
    row = current().client().datasets.get(name)
    return _first_rows(row, rows)


def _first_rows(row: DatasetEntry, rows: int) -> ListResult:
    raw_rows = row.data_preview
    items = [row if isinstance(row, dict) else {"row": row} for row in raw_rows] if isinstance(raw_rows, list) else []
    columns = [Column(key, key) for key in dict.fromkeys(key for row in items for key in row)]
    return ListResult(items[:rows], columns, empty="no preview", extra={"dataset": row.file_name})


@app.command()
def check(
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Train, validation and other files")],
    prompts: Annotated[
        list[Path] | None,
        Option("--prompt", metavar="FILE", help="Text with few-shot examples, such as a prompt. Repeatable"),
    ] = None,
    limit: Annotated[int, Option(min=1, help="Show at most N")] = 50,
) -> ListResult:
    """Find rows that make figures misleading: twice, contradictory, empty, or in another file or prompt, too.

    Exits with 1 when there are any. A row overlaps when half of its 13-word sequences are in the other text.

    Example:
        osmosis dataset check data/multiply.jsonl
        osmosis dataset check data/train.jsonl data/validation.jsonl --prompt prompts/system.txt
    """
    from osmosis.datasets.quality import find_flaws  # with pyarrow, which only a check needs

    ctx = current()
    paths = [ctx.path(file) for file in (*files, *(prompts or ()))]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise NotFound(f"there is no file {missing}", hint="osmosis dataset check data/NAME.jsonl")
    examples = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in paths[len(files) :]}
    flaws = list(find_flaws(paths[: len(files)], examples))
    items: list[JsonObject] = [
        {
            **asdict(flaw),
            "at": f"{flaw.file}:{flaw.row}",
            "other": flaw.other_file
            and ":".join(str(part) for part in (flaw.other_file, flaw.other_row) if part is not None),
        }
        for flaw in flaws[:limit]
    ]
    return ListResult(
        items,
        build_columns("kind=What", "at=Row", "other=Same as", "text=Prompt"),
        empty="no row is empty, twice, contradictory, or in two files",
        total_count=len(flaws),
        has_more=len(items) < len(flaws),
        more="--limit",
        exit_code=1 if flaws else 0,
    )


@app.command(hidden=True)
def validate(file: Annotated[str, Argument(help="The file to check")]) -> OperationResult:
    """Check a file the way upload does, without a platform."""
    facts = _check(current().path(file))
    for warning in facts["warnings"]:
        current().output.warn("DATASET", warning["message"])
    steps = [NextStep("upload it", command=f"osmosis dataset upload {file}")]
    message = f"{file} is a valid dataset: {facts['rows']} rows"
    return OperationResult("dataset.validate", message, facts, next_steps=steps)


@app.command()
def download(
    name: Name,
    output: Annotated[Path | None, Option("--output", "-o", help="File or folder [default: this folder]")] = None,
    overwrite: Annotated[bool, Option(help="Replace an existing file")] = False,
) -> OperationResult:
    """Download a dataset's file.

    Example:
        osmosis dataset download multiply -o data
    """
    ctx = current()
    client = ctx.client()
    row = client.datasets.get(name)
    file_name = f"{row.file_name}.{row.file_format or 'jsonl'}"
    target = ctx.path(output) if output else ctx.cwd
    target = target / file_name if target.is_dir() else target
    if target.exists() and not overwrite:
        raise Conflict(f"{target} exists", hint=f"osmosis dataset download {name} --overwrite")
    with ctx.output.bar(file_name, row.file_size or 0, in_bytes=True) as moved:
        client.datasets.download(name, target, moved)
    resource = {"name": row.file_name, "path": str(target), "bytes": target.stat().st_size}
    return OperationResult("dataset.download", f"dataset {name} is in {target}", resource)


@app.command(hidden=True)
def logs(name: Name, limit: Lines = 50, cursor: Cursor = None) -> ListResult:
    """Show the log of how the platform read a dataset."""
    page = current().client().datasets.logs(name, limit=limit, cursor=cursor)
    columns = [Column("timestamp", "Time", show=when), Column("level", "Level"), Column("message", "Message")]
    return ListResult([line.to_dict() for line in page.logs], columns, extra={"next_cursor": page.next_cursor})


@app.command()
def delete(name: Name) -> OperationResult:
    """Delete a dataset from the platform; runs that used it keep their results.

    Example:
        osmosis dataset delete multiply --yes
    """
    ctx = current()
    client = ctx.client()
    row = client.datasets.get(name)
    label = row.file_name
    prompts.agree(ctx, f"Delete dataset {label}?", "dataset.delete")
    client.datasets.delete(row.id)
    return OperationResult("dataset.delete", f"dataset {label} is deleted", {"id": row.id, "name": label})
