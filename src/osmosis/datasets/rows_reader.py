"""`python -m osmosis.datasets.rows_reader`: writes the selected rows of a dataset to a file, as a process of its own.

Given `{"path", "rows", "draft"}`, it writes `[index, content hash, data]` of each row, a line each, and says how many.
"""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from osmosis.base.json_types import JsonObject
from osmosis.base.reader import reader_main
from osmosis.records.plan import Selection

from .scan import read_rows


def read(given: JsonObject) -> int:
    written = 0
    rows = read_rows(Path(str(given["path"])), Selection(rows=given["rows"]), skip_bad=True)
    with Path(str(given["draft"])).open("wb") as out:
        for row in rows:
            out.write(orjson.dumps([row.index, row.content_hash, row.data], default=str) + b"\n")
            written += 1
    return written


if __name__ == "__main__":
    sys.exit(reader_main(read))
