import hashlib
import json
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import orjson

from osmosis.base.files import file_sha256
from osmosis.base.jsonable import JsonObject, to_valid_text
from osmosis.base.processes import reader_main
from osmosis.datasets.keys import Repeats, RowKeys, SelectedRows, read_id
from osmosis.datasets.reader import DatasetFile, count_rows, open_source
from osmosis.datasets.rules import (
    ID,
    ROW_DEPTH,
    ROWS,
    RULES,
    PlatformRules,
    RowFault,
    Rule,
    Severity,
    find_error,
    normalize_row,
)
from osmosis.errors import DatasetError, ValidationError
from osmosis.records.run.plan import Selection
from osmosis.records.run.rows import MIN_ROWS, Row

_MAX_EXAMPLES = 20
_MAX_FAULTS = 1000
_BATCH = 1024
_KEPT_BYTES = 4 * 2**20
_KEPT_ROWS = 20_000
_TOO_DEEP = "nested too deep to be written as JSON"

KeptRow = tuple[int, "int | None", dict[str, Any], str]  # A row's index, line, columns, and hash of its content


@dataclass(slots=True)
class BrokenRule:
    rule: Rule
    message: str
    index: int | None = None  # Zero-based row index; None for the file as a whole
    line: int | None = None  # one-based, in formats with lines
    key: str = ""

    @property
    def where(self) -> str:
        if self.line:
            return f"line {self.line}"
        return "" if self.index is None else f"row {self.index}"

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def to_issue(self) -> dict[str, str]:
        return {"rule": self.rule.code, "key": self.key, "where": self.where, "message": str(self)}


@dataclass(slots=True)
class DatasetFacts:
    selected: int = 0
    rows: int | None = None  # rows in the whole file; None when the scan did not reach its end
    sha256: str | None = None  # hash of the file; None when the scan did not reach its end
    rows_hash: str = ""
    bad: list[BrokenRule] = field(default_factory=list)  # The first thousand rows that no run can use
    strict: list[BrokenRule] = field(default_factory=list)  # The first thousand faults that only a platform refuses
    notes: list[BrokenRule] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    by_id: bool = False  # True when rows are keyed by their column `id`, False by their content
    columns: list[str] = field(default_factory=list)
    preview: list[dict[str, Any]] = field(default_factory=list)
    kept: list[KeptRow] | None = None
    """All good rows of the selection, if requested and few, so that a run need not read them again."""

    def kept_rows(self) -> Iterator[Row] | None:
        if self.kept is None:
            return None
        keys = RowKeys(by_id=self.by_id)
        return (Row(index, data, line, digest, keys.of(data, digest)) for index, line, data, digest in self.kept)

    @property
    def found(self) -> int:
        return sum(count for code, count in self.counts.items() if RULES[code].severity is not Severity.NOTE)

    @property
    def bad_count(self) -> int:
        return sum(count for code, count in self.counts.items() if RULES[code].severity is Severity.ERROR)

    def add(self, fault: RowFault, index: int | None = None, line: int | None = None) -> None:
        limited = {Severity.ERROR: self.bad, Severity.PLATFORM: self.strict}.get(fault.rule.severity, self.notes)
        self.counts[fault.rule.code] = self.counts.get(fault.rule.code, 0) + 1
        if len(limited) < _MAX_FAULTS or self.counts[fault.rule.code] == 1:
            limited.append(BrokenRule(fault.rule, fault.message, index, line, fault.key))

    def issues(self, most: int) -> list[dict[str, str]]:
        ordered = sorted([*self.bad, *self.strict], key=lambda finding: -1 if finding.index is None else finding.index)
        return [finding.to_issue() for finding in ordered[:most]]

    def warnings(self, *, of_platform: bool = True) -> list[dict[str, Any]]:
        first: dict[str, BrokenRule] = {}
        for finding in [*(self.strict if of_platform else ()), *self.notes]:
            first.setdefault(finding.rule.code, finding)
        return [
            {"rule": code, "count": self.counts[code], "where": message.where, "message": self._warning(message)}
            for code, message in first.items()
        ]

    def _warning(self, finding: BrokenRule) -> str:
        if finding.rule.severity is Severity.NOTE:
            return f"{finding} [{finding.rule.code}]"
        count = self.counts[finding.rule.code]
        more = f" (and {count - 1} more like it)" if count > 1 else ""
        return f"a platform would refuse this dataset: {finding}{more} [{finding.rule.code}]"

    def refuse_bad(self, path: Path) -> None:
        if not self.bad:
            return
        examples = "; ".join(str(bad) for bad in self.bad[:_MAX_EXAMPLES])
        more = f" and {self.bad_count - _MAX_EXAMPLES} more" if self.bad_count > _MAX_EXAMPLES else ""
        message = f"{path}: invalid rows ({self.bad_count}): {examples}{more}"
        issues = [{**bad.to_issue(), "key": f"row {bad.index}", "where": str(path)} for bad in self.bad]
        raise DatasetError(message, hint="fix them, or skip them with --skip-bad-rows", issues=issues)


def scan_dataset(
    path: Path,
    selection: Selection | None = None,
    *,
    require_ground_truth: bool = False,
    rows: SelectedRows | None = None,
    keep: bool = False,
) -> DatasetFacts:
    """Check every selected row, and fill `rows` with the good ones; with `keep` the facts hold those of a small file.
    Raise DatasetError for a file that cannot be read to the end of the selection, and for a selected row beyond it."""
    selection = selection or Selection()
    scan = _Scan(open_source(path), selection, require_ground_truth, rows)
    if keep and scan.source.format == "jsonl" and path.stat().st_size <= _KEPT_BYTES:  # others unpack to any size
        scan.facts.kept = []
    facts = scan.go()
    if scan.ended is not None:
        raise DatasetError(f"{path}: {scan.ended}")
    if facts.rows is not None:
        facts.sha256 = file_sha256(path)
        beyond = [i for i in selection.rows or () if i >= facts.rows]
        if beyond:
            message = f"{path} has {facts.rows} rows; there is no row {', '.join(map(str, beyond[:5]))}"
            raise DatasetError(message, hint="row indices start at 0")
    return facts


def check_upload(path: Path, *, preview: int = 0) -> DatasetFacts:
    """Check the whole file as a platform does; a finding of any severity refuses it. Never raises for content."""
    return _Scan(open_source(path), Selection(), preview=preview).go()


def read_rows(
    path: Path,
    selection: Selection | None = None,
    *,
    skip_bad: bool = False,
    require_ground_truth: bool = False,
    by_id: bool = False,
) -> Iterator[Row]:
    """Yield the selected rows in file order; raise DatasetError for a bad row, or leave it out with `skip_bad`."""
    keys = RowKeys(by_id=by_id)
    for index, line, data, _ in _selected(open_source(path), selection or Selection(), _End()):
        fault = find_error(data, require_ground_truth)
        if fault is None:
            try:
                content_hash = row_hash(data)
            except RecursionError:
                fault = RowFault(ROW_DEPTH, _TOO_DEEP)
            else:
                yield Row(index, data, line, content_hash, keys.of(data, content_hash))
                continue
        if fault.ends or not skip_bad:
            finding = BrokenRule(fault.rule, fault.message, index, line)
            hint = "to skip invalid rows: --skip-bad-rows"
            raise DatasetError(f"{path}: {finding}", hint=hint, rule=fault.rule.code, row=index, reason=fault.message)


def row_hash(data: dict[str, Any]) -> str:
    try:
        text = orjson.dumps(data, option=orjson.OPT_SORT_KEYS, default=str)
    except TypeError:  # whole numbers beyond 64 bits, or deeper than that library goes
        text = json.dumps(data, sort_keys=True, default=str).encode()
    return hashlib.sha256(text).hexdigest()[:16]


@dataclass(slots=True)
class _Scan:
    source: DatasetFile
    selection: Selection
    require_ground_truth: bool = False
    rows: SelectedRows | None = None
    preview: int = 0
    facts: DatasetFacts = field(default_factory=DatasetFacts)
    ended: BrokenRule | None = None
    ids: dict[str, int] | None = field(default_factory=dict)

    def go(self) -> DatasetFacts:
        facts, end, digest, required = self.facts, _End(), hashlib.sha256(), self.require_ground_truth
        repeats, places = Repeats(), None if self.rows is None else self.rows.places
        selected, hashes = 0, list[str]()
        rules: PlatformRules | None = None
        for index, line, data, raw in _selected(self.source, self.selection, end):
            fault = find_error(data, required)
            if fault is None:
                try:
                    content_hash = row_hash(data)
                    rules = rules or self._begin(data)
                    for broken in rules.faults_of(data, raw):
                        facts.add(broken, index, line)
                except RecursionError:
                    fault = RowFault(ROW_DEPTH, _TOO_DEEP)
            if fault is not None:
                facts.add(fault, None if fault.ends and index == 0 else index, line)
                if fault.ends:
                    self.ended = facts.bad[-1]
                    break
                continue
            if self.ids is not None:
                self._see_id(data, index, line)
            hashes.append(content_hash)
            if len(hashes) == _BATCH:
                digest.update("".join(hashes).encode())
                hashes.clear()
            selected += 1
            if facts.kept is not None:
                facts.kept.append((index, line, data, content_hash))
                if selected > _KEPT_ROWS:
                    facts.kept = None
            if places is not None:
                places[repeats.next(content_hash) if content_hash in places else content_hash] = index
            if selected <= self.preview:
                facts.preview.append(data)
        digest.update("".join(hashes).encode())
        facts.selected, facts.rows, facts.rows_hash = selected, end.rows, digest.hexdigest()
        self._finish()
        return facts

    def _finish(self) -> None:
        facts, rows = self.facts, self.rows
        facts.by_id = bool(self.ids)
        if rows is not None and self.ids:
            columns = rows.by_id(self.ids)
            rows.places, rows.hashes = columns.places, columns.hashes
            del rows.at
        if facts.rows is not None and facts.rows < MIN_ROWS:
            facts.add(RowFault(ROWS, f"the file has {facts.rows} rows; a platform needs at least {MIN_ROWS}", "rows"))

    def _see_id(self, data: dict[str, Any], index: int, line: int | None) -> None:
        assert self.ids is not None
        identifier = read_id(data)
        if identifier is not None and identifier not in self.ids:
            self.ids[identifier] = index
            return
        reason = f"id {identifier!r} is also that of row {self.ids[identifier]}" if identifier else "no valid id"
        self.facts.add(RowFault(ID, f"{reason}; rows are identified by their content instead", "id"), index, line)
        self.ids = None

    def _begin(self, data: dict[str, Any]) -> PlatformRules:
        self.facts.columns = list(data)
        if "id" not in data and "id" not in self.source.header:
            self.ids = None
        columns = [name.strip() for name in self.source.header] or list(data)
        named = normalize_row(dict.fromkeys(columns), {})
        rules = PlatformRules(list(named) if isinstance(named, dict) else columns, same_columns=not self.source.header)
        for fault in rules.faults:
            self.facts.add(fault)
        return rules


@dataclass(slots=True)
class _End:
    rows: int | None = None


def _selected(
    source: DatasetFile, selection: Selection, end: _End
) -> Iterator[tuple[int, int | None, Any, bytes | None]]:
    chosen: set[int] | None = None
    first, last = selection.offset, None
    if selection.rows is not None:
        chosen = set(selection.rows)
        first, last = 0, max(chosen, default=-1)
    elif selection.limit is not None:
        last = first + selection.limit - 1
    if selection.sample is not None and selection.rows is None:
        total = count_rows(source.path)
        population = range(first, total if last is None else min(total, last + 1))
        size = min(len(population), max(1, round(len(population) * (selection.sample or 0.0))))
        chosen = set(random.Random(selection.seed).sample(population, size))
        last = max(chosen, default=-1)
    index = -1
    usual: dict[tuple[str, ...], bool] = {}
    everything = first == 0 and last is None and chosen is None
    for index, (line, data, raw) in enumerate(source.rows()):
        if not everything:
            if last is not None and index > last:
                return
            skipped = index < first or (chosen is not None and index not in chosen)
            if skipped and not (isinstance(data, RowFault) and data.ends):
                continue
        yield index, line, normalize_row(data, usual), raw
    end.rows = index + 1


MISSING = "(none)"
_LONGEST = 80


def read_groups(data: Mapping[str, object], columns: Sequence[str]) -> dict[str, str]:
    return {column: _text(data.get(column)) for column in columns}


def _text(value: object) -> str:
    if value is None:
        return MISSING
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"


def check_columns(path: Path, columns: Sequence[str], required: Sequence[str]) -> None:
    missing = [column for column in required if column not in columns]
    if missing:
        raise ValidationError(f"{path} has no column {missing[0]!r} to group by", hint=f"one of: {', '.join(columns)}")


def read_groups_by_content(path: Path, selection: Selection, columns: Sequence[str]) -> dict[str, dict[str, str]]:
    groups: dict[str, dict[str, str]] = {}
    for row in read_rows(path, selection, skip_bad=True):
        if not groups:
            check_columns(path, list(row.data), columns)
        groups[row.content_hash or ""] = read_groups(row.data, columns)
    return groups


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


def read_upload(request: JsonObject) -> UploadFacts:
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
    return {_cut_text(str(key)): _shorten(value, 1) for key, value in list(row.items())[:MAX_ITEMS]}


def _shorten(value: object, depth: int) -> object:
    if isinstance(value, str):
        return _cut_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (dict, list)):
        if depth >= MAX_DEPTH:
            return "..."
        if isinstance(value, dict):
            return {_cut_text(str(key)): _shorten(item, depth + 1) for key, item in list(value.items())[:MAX_ITEMS]}
        return [_shorten(item, depth + 1) for item in value[:MAX_ITEMS]]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return _cut_text(str(value)) if value.bit_length() < 10_000 else "a very large number"
    return value if value is None or isinstance(value, int) else _cut_text(str(value))


def _cut_text(value: str) -> str:
    full = to_valid_text(value[: MAX_CELL + 1])
    return full if len(value) <= MAX_CELL else f"{full[:MAX_CELL]} ... ({len(value)} characters)"


if __name__ == "__main__":
    sys.exit(reader_main(read_upload))
