"""The values by which figures are grouped: columns of a row, as short text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from osmosis.errors import ValidationError
from osmosis.records.plan import Selection

from .scan import read_rows

MISSING = "(none)"
_LONGEST = 80


def groups_of(data: Mapping[str, object], columns: Sequence[str]) -> dict[str, str]:
    """The row's value in each column; one that is missing or null is `(none)`."""
    return {column: _text(data.get(column)) for column in columns}


def _text(value: object) -> str:
    if value is None:
        return MISSING
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"


def check_columns(path: Path, known: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises ValidationError for a column to group by that the first row does not have."""
    missing = [column for column in wanted if column not in known]
    if missing:
        raise ValidationError(f"{path} has no column {missing[0]!r} to group by", hint=f"one of: {', '.join(known)}")


def groups_by_content(path: Path, selection: Selection, columns: Sequence[str]) -> dict[str, dict[str, str]]:
    """The groups of every row of a selection, by the hash of its content. Raises as `check_columns` and `read_rows`."""
    found: dict[str, dict[str, str]] = {}
    for row in read_rows(path, selection, skip_bad=True):
        if not found:
            check_columns(path, list(row.data), columns)
        found[row.content_hash or ""] = groups_of(row.data, columns)
    return found
