from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError as PydanticError

from osmosis.cli.core import completion
from osmosis.cli.core.app import new_app
from osmosis.cli.core.context import current
from osmosis.cli.core.results import ListResult, NextStep, OperationResult, build_columns
from osmosis.cli.targets import row_named
from osmosis.errors import NotFound, UsageError
from osmosis.local.quarantine_file import add_entry, check_row, file_around, read, remove_entries
from osmosis.records.base import utc_now
from osmosis.records.run.quarantine import NAME, QuarantinedRow

app = new_app(
    help="""Rows known to be flaky: shown like the others, but not counted until a given day.

    They are in quarantine.toml, at the top of the workspace: commit it. eval compare, eval run SET, --fail-under, the
    pytest plugin and the pages of osmosis view do without these rows, and say so; after its last day a row counts.

    Example:
        osmosis eval quarantine add nightly:7 --reason "two right answers, see issue 12"
        osmosis eval quarantine list
    """
)

DAYS = 14
DATA_SUFFIXES = (".jsonl", ".csv", ".parquet")
COLUMNS = build_columns("key=Row", "dataset=Dataset", "until=Until", "state=Counts", "reason=Reason")
Row = Annotated[str, typer.Argument(metavar="ROW", help="Its id or key, or RUN:INDEX, its place in a local run")]


@app.command()
def add(
    row: Row,
    reason: Annotated[str, typer.Option(help="Why the row does not count, for whoever reads this in a month")],
    until: Annotated[
        str | None, typer.Option(metavar="DATE", help=f"Last day, YYYY-MM-DD, in UTC [default: in {DAYS} days]")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Only the row of this dataset [default: the run's with RUN:INDEX, else any]")
    ] = None,
) -> OperationResult:
    """Put a row in quarantine, or change its reason and last day.

    Example:
        osmosis eval quarantine add nightly:7 --reason "two right answers, see issue 12"
        osmosis eval quarantine add question-17 --reason "the judge wavers" --until 2027-01-31 --dataset multiply
    """
    ctx = current()
    row_name = row_named(row, ctx.cwd)
    named = Path(dataset).stem if dataset and Path(dataset).suffix in DATA_SUFFIXES else dataset
    values = {"key": row_name.key, "reason": reason, "until": _day(until), "dataset": named or row_name.dataset}
    try:
        entry = QuarantinedRow.model_validate(values)
    except PydanticError as error:
        first = error.errors()[0]
        raise UsageError(f"{first['loc'][0]}: {first['msg']}") from error
    path = file_around(ctx.cwd)
    check_row(ctx.cwd, entry.key, entry.dataset)
    add_entry(path, entry)
    steps = [NextStep("for everyone", command=f"git add {NAME} && git commit -m 'quarantine {entry.key}'")]
    return OperationResult("eval.quarantine.add", entry.line, _describe_entry(entry), next_steps=steps)


@app.command("list")
def list_rows() -> ListResult:
    """List the rows in quarantine, and those whose quarantine has ended.

    Example:
        osmosis eval quarantine list
        osmosis eval quarantine list --json
    """
    path = file_around(current().cwd)
    rows = sorted(read(path).row, key=lambda entry: (entry.until, entry.key))
    return ListResult(
        [_describe_entry(entry) for entry in rows], COLUMNS, title=str(path), empty="no row is in quarantine"
    )


@app.command("delete")
def remove(
    row: Annotated[
        str,
        typer.Argument(
            metavar="ROW",
            help="Its id or key, or RUN:INDEX, its place in a local run",
            autocompletion=completion.quarantined,
        ),
    ],
) -> OperationResult:
    """Take a row out of quarantine: it counts again.

    Example:
        osmosis eval quarantine delete question-17
    """
    ctx = current()
    key = row_named(row, ctx.cwd).key
    removed = remove_entries(file_around(ctx.cwd), key)
    if not removed:
        raise NotFound(f"row {key} is not in quarantine", hint="osmosis eval quarantine list")
    message = f"row {key} counts again"
    return OperationResult("eval.quarantine.remove", message, {"rows": [_describe_entry(entry) for entry in removed]})


def _day(text: str | None) -> date:
    today = utc_now().date()
    if text is None:
        return today + timedelta(days=DAYS)
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--until {text!r} is not a date", hint=f"--until {today + timedelta(days=DAYS)}") from None
    if day < today:
        raise UsageError(f"--until {day} is over: the row would count", hint=f"--until {today + timedelta(days=DAYS)}")
    return day


def _describe_entry(entry: QuarantinedRow) -> dict[str, object]:
    return {**entry.to_dict(), "state": "yes, its time is over" if entry.expired() else "no"}
