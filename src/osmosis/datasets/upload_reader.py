"""`python -m osmosis.datasets.upload_reader`: checks one uploaded file, as a process of its own.

Given `{"path", "preview"}`, it says `UploadFacts`. Its answer is bounded whatever the file holds.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TypedDict

from osmosis.base.json_types import JsonObject
from osmosis.base.plain_json import whole_text
from osmosis.base.reader import reader_main

from .scan import check_upload

MAX_LISTED = 5
MAX_CELL = 2_000
MAX_ITEMS = 100
MAX_DEPTH = 8


class UploadFacts(TypedDict):
    """What is known of an uploaded file."""

    rows: int
    found: int
    """Findings for which it is refused."""
    issues: list[dict[str, str]]
    """The first of them."""
    warnings: list[dict[str, object]]
    preview: list[dict[str, object]]
    """The first rows, cut to what can be shown."""


def read(given: JsonObject) -> UploadFacts:
    facts = check_upload(Path(str(given["path"])), preview=int(given["preview"]))
    return UploadFacts(
        rows=facts.rows or 0,
        found=facts.found,
        issues=[{key: whole_text(text)[:MAX_CELL] for key, text in one.items()} for one in facts.issues(MAX_LISTED)],
        warnings=[_shown_row(warning) for warning in facts.warnings()],
        preview=[_shown_row(row) for row in facts.preview],
    )


def _shown_row(row: dict[str, object]) -> dict[str, object]:
    """A row as a preview shows it: JSON values, long text cut and saying so."""
    return {_text(str(key)): _shown(value, 1) for key, value in list(row.items())[:MAX_ITEMS]}


def _shown(value: object, depth: int) -> object:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (dict, list)):
        if depth >= MAX_DEPTH:
            return "..."
        if isinstance(value, dict):
            return {_text(str(key)): _shown(one, depth + 1) for key, one in list(value.items())[:MAX_ITEMS]}
        return [_shown(one, depth + 1) for one in value[:MAX_ITEMS]]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return _text(str(value)) if value.bit_length() < 10_000 else "a very large number"
    return value if value is None or isinstance(value, int) else _text(str(value))


def _text(value: str) -> str:
    whole = whole_text(value[: MAX_CELL + 1])
    return whole if len(value) <= MAX_CELL else f"{whole[:MAX_CELL]} ... ({len(value)} characters)"


if __name__ == "__main__":
    sys.exit(reader_main(read))
