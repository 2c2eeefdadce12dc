"""Process that writes the selected rows of a dataset to a file. Given `{"path", "rows", "draft"}`, it writes a line
`[index, content hash, data]` for each row and prints their number."""

import sys
from pathlib import Path

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import reader_main
from osmosis.datasets.scan import read_rows
from osmosis.records.run.plan import Selection


def read(request: JsonObject) -> int:
    written = 0
    rows = read_rows(Path(str(request["path"])), Selection(rows=request["rows"]), skip_bad=True)
    with Path(str(request["draft"])).open("wb") as out:
        for row in rows:
            out.write(orjson.dumps([row.index, row.content_hash, row.data], default=str) + b"\n")
            written += 1
    return written


if __name__ == "__main__":
    sys.exit(reader_main(read))
