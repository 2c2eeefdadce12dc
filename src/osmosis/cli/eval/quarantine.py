from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

from pydantic import ValidationError as PydanticError
from typer import Argument, Option

from osmosis.cli.core import completion
from osmosis.cli.core.context import current
from osmosis.cli.core.results import ListResult, NextStep, OperationResult, build_columns
from osmosis.cli.targets import row_named
from osmosis.errors import NotFound, UsageError
from osmosis.local.quarantine_file import add_entry, check_row, file_around, read, remove_entries
from osmosis.records.base import utc_now
from osmosis.records.run.quarantine import NAME, QuarantinedRow

DAYS = 14
DATA_SUFFIXES = (".jsonl", ".csv", ".parquet")
COLUMNS = build_columns("key=Row", "dataset=Dataset", "until=Until", "state=Counts", "reason=Reason")


def quarantine(
    row: Annotated[
        str | None,
        Argument(
            metavar="[ROW]",
            help="Its id or key, or RUN:INDEX, its place in a local run [default: list all]",
            autocompletion=completion.quarantined,
        ),
    ] = None,
    reason: Annotated[str | None, Option(help="Why the row does not count, for whoever reads this in a month")] = None,
    until: Annotated[str | None, Option(metavar="DATE", help=f"UTC day YYYY-MM-DD [default: in {DAYS} days]")] = None,
    dataset: Annotated[
        str | None, Option(help="Only of this dataset [default: the run's for RUN:INDEX, or any]")
    ] = None,
    delete: Annotated[bool, Option(help="Take the row out: it counts again")] = False,
) -> OperationResult | ListResult:
    """List rows known to be flaky, or put one in quarantine: shown like the others, not counted until a given day.

    They are in quarantine.toml, at the top of the workspace: commit it. eval compare, eval run SET, --fail-under, the
    pytest plugin and the pages of osmosis view do without these rows, and say so; after its last day a row counts.

    Example:
        osmosis eval quarantine
        osmosis eval quarantine nightly:7 --reason "two right answers, see issue 12"
        osmosis eval quarantine question-17 --reason "the judge wavers" --until 2027-01-31 --dataset multiply
        osmosis eval quarantine question-17 --delete
    """
    ctx = current()
    path = file_around(ctx.cwd)
    if row is None:
        if reason or until or dataset or delete:
            raise UsageError("name the row", hint='osmosis eval quarantine ROW --reason "..."')
        entries = [_describe_entry(entry) for entry in sorted(read(path).row, key=lambda each: (each.until, each.key))]
        return ListResult(entries, COLUMNS, title=str(path), empty="no row is in quarantine")
    row_name = row_named(row, ctx.cwd)
    if delete:
        removed = [_describe_entry(entry) for entry in remove_entries(path, row_name.key)]
        if not removed:
            raise NotFound(f"row {row_name.key} is not in quarantine", hint="osmosis eval quarantine")
        return OperationResult("eval.quarantine.remove", f"row {row_name.key} counts again", {"rows": removed})
    if reason is None:
        raise UsageError("missing option --reason", hint=f'osmosis eval quarantine {row} --reason "..."')
    named = Path(dataset).stem if dataset and Path(dataset).suffix in DATA_SUFFIXES else dataset
    values = {"key": row_name.key, "reason": reason, "until": _day(until), "dataset": named or row_name.dataset}
    try:
        entry = QuarantinedRow.model_validate(values)
    except PydanticError as error:
        first = error.errors()[0]
        raise UsageError(f"{first['loc'][0]}: {first['msg']}") from error
    check_row(ctx.cwd, entry.key, entry.dataset)
    add_entry(path, entry)
    steps = [NextStep("for everyone", command=f"git add {NAME} && git commit -m 'quarantine {entry.key}'")]
    return OperationResult("eval.quarantine.add", entry.line, _describe_entry(entry), next_steps=steps)


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
