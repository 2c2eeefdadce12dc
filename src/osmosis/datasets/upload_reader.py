"""Process that checks one uploaded file: given `{"path", "preview"}`, it prints `UploadFacts`, bounded whatever the
file holds."""

import math
import sys
from pathlib import Path
from typing import TypedDict

from osmosis.base.jsonable import JsonObject, to_valid_text
from osmosis.base.processes import reader_main
from osmosis.datasets.scan import check_upload

MAX_LISTED = 5
MAX_CELL = 2_000
MAX_ITEMS = 100
MAX_DEPTH = 8


class UploadFacts(TypedDict):
    rows: int
    found: int
    issues: list[dict[str, str]]
    warnings: list[dict[str, object]]
    preview: list[dict[str, object]]


def read(request: JsonObject) -> UploadFacts:
    facts = check_upload(Path(str(request["path"])), preview=int(request["preview"]))
    return UploadFacts(
        rows=facts.rows or 0,
        found=facts.found,
        issues=[
            {key: to_valid_text(text)[:MAX_CELL] for key, text in finding.items()}
            for finding in facts.issues(MAX_LISTED)
        ],
        warnings=[_shown_row(warning) for warning in facts.warnings()],
        preview=[_shown_row(row) for row in facts.preview],
    )


def _shown_row(row: dict[str, object]) -> dict[str, object]:
    return {_text(str(key)): _shorten(value, 1) for key, value in list(row.items())[:MAX_ITEMS]}


def _shorten(value: object, depth: int) -> object:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (dict, list)):
        if depth >= MAX_DEPTH:
            return "..."
        if isinstance(value, dict):
            return {_text(str(key)): _shorten(item, depth + 1) for key, item in list(value.items())[:MAX_ITEMS]}
        return [_shorten(item, depth + 1) for item in value[:MAX_ITEMS]]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return _text(str(value)) if value.bit_length() < 10_000 else "a very large number"
    return value if value is None or isinstance(value, int) else _text(str(value))


def _text(value: str) -> str:
    full = to_valid_text(value[: MAX_CELL + 1])
    return full if len(value) <= MAX_CELL else f"{full[:MAX_CELL]} ... ({len(value)} characters)"


if __name__ == "__main__":
    sys.exit(reader_main(read))
