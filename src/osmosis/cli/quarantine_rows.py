"""`osmosis eval quarantine`: rows that are known to be flaky and decide nothing for a time, in `quarantine.toml`."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Annotated

import typer
from pydantic import ValidationError as PydanticError

from osmosis.errors import NotFound, UsageError
from osmosis.local.quarantine_file import file_around, put, read, take
from osmosis.records.base import utc_now
from osmosis.records.quarantine import NAME, QuarantinedRow

from .context import current
from .results import Column, ListResult, NextStep, OperationResult
from .row_name import row_named

app = typer.Typer(
    help="""Rows known to be flaky: shown like the others, but not counted until a given day.

    They are in quarantine.toml, at the top of the workspace: commit it. eval compare, eval set, --fail-under, the
    pytest plugin and the pages of osmosis view do without these rows, and say so; after its last day a row counts.

    Example:
        osmosis eval quarantine add nightly:7 --reason "two right answers, see issue 12"
        osmosis eval quarantine list
    """,
    no_args_is_help=True,
)

DAYS = 14
COLUMNS = (
    Column("key", "Row"),
    Column("dataset", "Dataset"),
    Column("until", "Until"),
    Column("state", "Now"),
    Column("reason", "Reason"),
)
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
    meant = row_named(row, ctx.cwd)
    given = {"key": meant.key, "reason": reason, "until": _day(until), "dataset": dataset or meant.dataset}
    try:
        entry = QuarantinedRow.model_validate(given)
    except PydanticError as error:
        first = error.errors()[0]
        raise UsageError(f"{first['loc'][0]}: {first['msg']}") from error
    path = file_around(ctx.cwd)
    put(path, entry)
    steps = [NextStep("for everyone", command=f"git add {NAME} && git commit -m 'quarantine {entry.key}'")]
    return OperationResult("eval.quarantine.add", entry.line, _shown(entry), next_steps=steps)


@app.command("list")
def list_rows() -> ListResult:
    """List the rows in quarantine, and those whose quarantine has ended.

    Example:
        osmosis eval quarantine list
        osmosis eval quarantine list --json
    """
    path = file_around(current().cwd)
    rows = sorted(read(path).row, key=lambda one: (one.until, one.key))
    return ListResult([_shown(one) for one in rows], COLUMNS, title=str(path), empty="no row is in quarantine")


@app.command()
def remove(row: Row) -> OperationResult:
    """Take a row out of quarantine: it counts again.

    Example:
        osmosis eval quarantine remove question-17
    """
    ctx = current()
    key = row_named(row, ctx.cwd).key
    taken = take(file_around(ctx.cwd), key)
    if not taken:
        raise NotFound(f"row {key} is not in quarantine", hint="osmosis eval quarantine list")
    message = f"row {key} decides again"
    return OperationResult("eval.quarantine.remove", message, {"rows": [_shown(one) for one in taken]})


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


def _shown(entry: QuarantinedRow) -> dict[str, object]:
    return {**entry.to_dict(), "state": "expired: it counts" if entry.expired() else "decides nothing"}
