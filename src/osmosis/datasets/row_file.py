"""The selected rows of a dataset as a file of their own, with the keys that the whole selection gives them: what a
platform sends to a job on another machine.

One JSON object a line: first `{"rows", "by_id"}`, then `{"index", "line", "hash", "key", "data"}` for each row. Run as
`python -m osmosis.datasets.row_file` it is a reader: given `{"path", "target", "rows", "stored"}`, it writes the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.files import replacing
from osmosis.base.json_types import JsonObject
from osmosis.base.reader import reader_main
from osmosis.errors import DatasetError
from osmosis.records.dataset import Row
from osmosis.records.plan import Selection

from .keys import SelectedRows
from .scan import read_rows, scan_dataset


@dataclass(frozen=True, slots=True)
class KnownRows:
    """The keys of a selection, and whether they are the rows' ids."""

    keys: SelectedRows
    by_id: bool

    @classmethod
    def of_dataset(cls, path: Path, rows: Sequence[int], stored: Sequence[str] = ()) -> KnownRows:
        """Scans the selection once. `stored` are row keys under which there is something already: a run whose rollouts
        were not stored by id goes on as it began. Raises `DatasetError` for a row that cannot be used."""
        keys = SelectedRows()
        facts = scan_dataset(path, Selection(rows=list(rows)), rows=keys)
        by_id = facts.by_id and (not stored or any(key in keys.places for key in stored))
        return cls(keys if by_id or not facts.by_id else keys.by_content(), by_id)

    def only(self, rows: Sequence[int]) -> KnownRows:
        """Those of a shard: the keys that the whole selection gives them."""
        chosen = set(rows)
        places = {key: index for key, index in self.keys.places.items() if index in chosen}
        if len(places) == len(self.keys):
            return self
        hashes = None if self.keys.hashes is None else {key: self.keys.hashes[key] for key in places}
        return KnownRows(SelectedRows(places, hashes), self.by_id)

    @classmethod
    def of_row_file(cls, path: Path) -> KnownRows:
        """Raises `DatasetError` for a file that is none."""
        places, hashes = dict[str, int](), dict[str, str]()
        by_id = bool(_head(path)["by_id"])
        for line in _lines(path):
            places[line["key"]], hashes[line["key"]] = line["index"], line["hash"]
        return cls(SelectedRows(places, hashes), by_id)


def write_row_file(path: Path, target: Path, rows: Sequence[int], stored: Sequence[str] = ()) -> int:
    """Writes these rows of the dataset to `target`, at once or not at all; how many they are."""
    known = KnownRows.of_dataset(path, rows, stored)
    count = 0
    with replacing(target) as out:
        out.write(_text({"rows": len(known.keys), "by_id": known.by_id}))
        for row in read_rows(path, Selection(rows=list(rows)), by_id=known.by_id):
            line = {"index": row.index, "line": row.line, "hash": row.content_hash, "key": row.key, "data": row.data}
            out.write(_text(line))
            count += 1
    return count


def cut_row_file(path: Path, target: Path, wanted: Sequence[int]) -> None:
    """Writes those of the rows that are `wanted`, as they are, at once or not at all."""
    chosen, head = set(wanted), _head(path)
    with replacing(target) as out, path.open("rb") as source:
        source.readline()
        out.write(_text({**head, "rows": len(chosen)}))
        out.writelines(raw for raw in source if json.loads(raw.decode(errors="surrogatepass"))["index"] in chosen)


def read_row_file(path: Path, wanted: Sequence[int] | None = None) -> Iterator[Row]:
    """The rows in order; of `wanted` only those."""
    chosen = None if wanted is None else set(wanted)
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


def read(given: JsonObject) -> int:
    return write_row_file(Path(str(given["path"])), Path(str(given["target"])), given["rows"], given["stored"])


if __name__ == "__main__":
    sys.exit(reader_main(read))
