"""The selected rows of a dataset as a file with their keys, for a job on another machine. One JSON object a line: first
`{"rows", "by_id"}`, then `{"index", "line", "hash", "key", "data"}` for each row. `python -m osmosis.datasets.row_file`
writes the file, given `{"parts", "target", "stored"}`."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import orjson

from osmosis.base.files import replacing
from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import reader_main
from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import read_rows, scan_dataset
from osmosis.errors import DatasetError, ValidationError
from osmosis.records.run.plan import Selection
from osmosis.records.run.rows import Row

RowPart = tuple[str, int, str, Sequence[int]]
"""A dataset, the index of its first row, what its keys begin with, and which of its rows."""


@dataclass(frozen=True, slots=True)
class KnownRows:
    keys: SelectedRows
    by_id: bool

    @classmethod
    def of_dataset(cls, path: Path, rows: Sequence[int], stored: Sequence[str] = ()) -> "KnownRows":
        """Scan the selection once; raise DatasetError for a bad row. `stored` row keys decide how rows are keyed."""
        keys = SelectedRows()
        facts = scan_dataset(path, Selection(rows=list(rows)), rows=keys)
        by_id = facts.by_id and (not stored or any(key in keys.places for key in stored))
        return cls(keys if by_id or not facts.by_id else keys.by_content(), by_id)

    def only(self, rows: Sequence[int]) -> "KnownRows":
        chosen = set(rows)
        places = {key: index for key, index in self.keys.places.items() if index in chosen}
        if len(places) == len(self.keys):
            return self
        hashes = None if self.keys.hashes is None else {key: self.keys.hashes[key] for key in places}
        return KnownRows(SelectedRows(places, hashes), self.by_id)

    @classmethod
    def of_row_file(cls, path: Path) -> "KnownRows":
        places, hashes = dict[str, int](), dict[str, str]()
        by_id = bool(_head(path)["by_id"])
        for line in _lines(path):
            places[line["key"]], hashes[line["key"]] = line["index"], line["hash"]
        return cls(SelectedRows(places, hashes), by_id)


def write_rows(rows: Iterable[JsonObject], output: Path, *, limit: int | None = None) -> int:
    """Write rows as JSONL, each id once; return their number. Nothing is written when there are none."""
    seen: set[str] = set()
    with replacing(output) as out:
        for row in rows if limit is None else islice(rows, limit):
            if str(row["id"]) not in seen:
                seen.add(str(row["id"]))
                out.write(orjson.dumps(row, default=str) + b"\n")
        if not seen:
            raise ValidationError("the source has no rows")
    return len(seen)


def write_row_file(parts: Sequence[RowPart], target: Path, stored: Sequence[str] = ()) -> int:
    scanned = []
    for path, _, prefix, rows in parts:
        own = [key.removeprefix(prefix) for key in stored if key.startswith(prefix)]
        scanned.append(KnownRows.of_dataset(Path(path), rows, own))
    count = sum(len(part.keys) for part in scanned)
    with replacing(target) as out:
        out.write(_text({"rows": count, "by_id": all(part.by_id for part in scanned)}))
        for (path, start, prefix, rows), keys in zip(parts, scanned, strict=True):
            for row in read_rows(Path(path), Selection(rows=list(rows)), by_id=keys.by_id):
                line = {"index": start + row.index, "line": row.line, "hash": row.content_hash}
                out.write(_text({**line, "key": f"{prefix}{row.key}", "data": row.data}))
    return count


def cut_row_file(path: Path, target: Path, indices: Sequence[int]) -> None:
    chosen, head = set(indices), _head(path)
    with replacing(target) as out, path.open("rb") as source:
        source.readline()
        out.write(_text({**head, "rows": len(chosen)}))
        out.writelines(raw for raw in source if json.loads(raw.decode(errors="surrogatepass"))["index"] in chosen)


def read_row_file(path: Path, indices: Sequence[int] | None = None) -> Iterator[Row]:
    chosen = None if indices is None else set(indices)
    for line in _lines(path):
        if chosen is None or line["index"] in chosen:
            yield Row(
                index=line["index"], line=line["line"], content_hash=line["hash"], key=line["key"], data=line["data"]
            )


def _text(value: object) -> bytes:
    # not orjson: whole numbers of a dataset may have more than 64 bits
    return json.dumps(value, default=str, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"


def _head(path: Path) -> JsonObject:
    with path.open("rb") as source:
        try:
            head: JsonObject = json.loads(source.readline())
            return {"rows": head["rows"], "by_id": head["by_id"]}
        except (ValueError, KeyError, TypeError):
            raise DatasetError(f"{path} is not a file of rows that the platform sent") from None


def _lines(path: Path) -> Iterator[JsonObject]:
    with path.open("rb") as source:
        source.readline()
        for raw in source:
            yield json.loads(raw.decode(errors="surrogatepass"))


def read(request: JsonObject) -> int:
    return write_row_file(request["parts"], Path(str(request["target"])), request["stored"])


if __name__ == "__main__":
    sys.exit(reader_main(read))
