"""Checks the selected rows of a dataset before anything is spent, then streams the good ones.

`scan_dataset` looks at every selected row and reports all findings at once; `read_rows` streams. Neither reads further
than the selection needs. `check_upload` is the same scan over a whole file, with a platform's verdict.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

import orjson

from osmosis.base.checksum import file_sha256
from osmosis.base.light_dataclass import dataclass
from osmosis.errors import DatasetError
from osmosis.records.dataset import MIN_ROWS, Row
from osmosis.records.plan import Selection

from .keys import Repeats, RowKeys, SelectedRows, id_of
from .reader import DatasetFile, count_rows, open_source
from .rules import ID, ROW_DEPTH, ROWS, RULES, PlatformRules, RowFault, Rule, Severity, error_of, normalised

_SHOWN = 20
_KEPT = 1000
_BATCH = 1024
_KEPT_BYTES = 4 * 2**20
_KEPT_ROWS = 20_000
_TOO_DEEP = "nested too deep to be written as JSON"


KeptRow = tuple[int, "int | None", dict[str, Any], str]
"""Of a row: its index, its line, its columns, the hash of its content."""


@dataclass(slots=True)
class BrokenRule:
    """A rule that is broken, and where."""

    rule: Rule
    message: str
    index: int | None = None
    """Of the row, zero-based; None for the file as a whole."""
    line: int | None = None
    """One-based, in a format that has lines."""
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
    """What a scan found."""

    selected: int = 0
    """Good rows in the selection."""
    rows: int | None = None
    """Rows in the whole file; None when the scan did not need to reach its end."""
    sha256: str | None = None
    """Of the file; None when the scan did not reach its end."""
    rows_hash: str = ""
    """Of the selected rows, in order."""
    bad: list[BrokenRule] = field(default_factory=list)
    """Rows that no run can use; the first thousand."""
    strict: list[BrokenRule] = field(default_factory=list)
    """What only a platform refuses; the first thousand."""
    notes: list[BrokenRule] = field(default_factory=list)
    """What is only said."""
    counts: dict[str, int] = field(default_factory=dict)
    """All findings, by the code of their rule."""
    by_id: bool = False
    """Whether the selected rows are known by their column `id`, else by their content."""
    columns: list[str] = field(default_factory=list)
    """Of the first good row."""
    preview: list[dict[str, Any]] = field(default_factory=list)
    """The first rows, where they were asked for."""
    kept: list[KeptRow] | None = None
    """All good rows of the selection, where they were asked for and are few: a run need not read them again."""

    def kept_rows(self) -> Iterator[Row] | None:
        """The selected rows as `read_rows` gives them; None when they were not kept."""
        return None if self.kept is None else _rows_of(self.kept, RowKeys(by_id=self.by_id))

    @property
    def found(self) -> int:
        """What a platform refuses, kept or not."""
        return sum(count for code, count in self.counts.items() if RULES[code].severity is not Severity.NOTE)

    @property
    def bad_count(self) -> int:
        return sum(count for code, count in self.counts.items() if RULES[code].severity is Severity.ERROR)

    def add(self, fault: RowFault, index: int | None = None, line: int | None = None) -> None:
        kept = {Severity.ERROR: self.bad, Severity.PLATFORM: self.strict}.get(fault.rule.severity, self.notes)
        self.counts[fault.rule.code] = self.counts.get(fault.rule.code, 0) + 1
        if len(kept) < _KEPT or self.counts[fault.rule.code] == 1:
            kept.append(BrokenRule(fault.rule, fault.message, index, line, fault.key))

    def issues(self, most: int) -> list[dict[str, str]]:
        """The first findings in the order of the file, for an answer to a person."""
        ordered = sorted([*self.bad, *self.strict], key=lambda finding: -1 if finding.index is None else finding.index)
        return [finding.to_issue() for finding in ordered[:most]]

    def warnings(self) -> list[dict[str, Any]]:
        """What a local run says and goes on: one for each rule that stops nothing here, with how often."""
        first: dict[str, BrokenRule] = {}
        for finding in [*self.strict, *self.notes]:
            first.setdefault(finding.rule.code, finding)
        return [
            {"rule": code, "count": self.counts[code], "where": found.where, "message": self._warning(found)}
            for code, found in first.items()
        ]

    def _warning(self, finding: BrokenRule) -> str:
        if finding.rule.severity is Severity.NOTE:
            return f"{finding} [{finding.rule.code}]"
        count = self.counts[finding.rule.code]
        more = f" (and {count - 1} more like it)" if count > 1 else ""
        return f"a platform would refuse this dataset: {finding}{more} [{finding.rule.code}]"

    def refuse_bad(self, path: Path) -> None:
        """Raises `DatasetError` naming the bad rows, when there are any."""
        if not self.bad:
            return
        shown = "; ".join(str(bad) for bad in self.bad[:_SHOWN])
        more = f" and {self.bad_count - _SHOWN} more" if self.bad_count > _SHOWN else ""
        raise DatasetError(
            f"{path}: invalid rows ({self.bad_count}): {shown}{more}",
            hint="fix them, or skip them with --skip-bad-rows",
            issues=[{**bad.to_issue(), "key": f"row {bad.index}", "where": str(path)} for bad in self.bad],
        )


def scan_dataset(
    path: Path,
    selection: Selection | None = None,
    *,
    require_ground_truth: bool = False,
    rows: SelectedRows | None = None,
    keep: bool = False,
) -> DatasetFacts:
    """Checks every selected row. Reads to the end of the file only when the selection does.

    `rows` is filled with every good row, for whoever compares them; with `keep` the facts hold those of a small file.
    Raises `DatasetError` for a file that cannot be read to the end of the selection, and for a selected row beyond it.
    """
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
            raise DatasetError(
                f"{path} has {facts.rows} rows; there is no row {', '.join(map(str, beyond[:5]))}",
                hint="row indices start at 0",
            )
    return facts


def check_upload(path: Path, *, preview: int = 0) -> DatasetFacts:
    """Reads the whole file once, as a platform does before it takes it in. A finding of any severity refuses it.

    Never raises for what is in the file: a file that cannot be read is a finding, too.
    """
    return _Scan(open_source(path), Selection(), preview=preview).go()


def read_rows(
    path: Path,
    selection: Selection | None = None,
    *,
    skip_bad: bool = False,
    require_ground_truth: bool = False,
    by_id: bool = False,
) -> Iterator[Row]:
    """The selected rows in file order. A bad row raises `DatasetError`, or is left out with `skip_bad`.

    `by_id` is what a scan of the same selection found.
    """
    keys = RowKeys(by_id=by_id)
    for index, line, data, _ in _selected(open_source(path), selection or Selection(), _End()):
        fault = error_of(data, require_ground_truth)
        if fault is None:
            try:
                found = row_hash(data)
            except RecursionError:
                fault = RowFault(ROW_DEPTH, _TOO_DEEP)
            else:
                yield Row(index, data, line, found, keys.of(data, found))
                continue
        if fault.ends or not skip_bad:
            finding = BrokenRule(fault.rule, fault.message, index, line)
            hint = "to skip invalid rows: --skip-bad-rows"
            raise DatasetError(f"{path}: {finding}", hint=hint, rule=fault.rule.code, row=index)


def _rows_of(kept: list[KeptRow], keys: RowKeys) -> Iterator[Row]:
    for index, line, data, found in kept:
        yield Row(index, data, line, found, keys.of(data, found))


def row_hash(data: dict[str, Any]) -> str:
    """A short digest of a row's content; the order of its columns does not matter."""
    try:
        text = orjson.dumps(data, option=orjson.OPT_SORT_KEYS, default=str)
    except TypeError:  # whole numbers beyond 64 bits, or deeper than that library goes
        text = json.dumps(data, sort_keys=True, default=str).encode()
    return hashlib.sha256(text).hexdigest()[:16]


class _Scan:
    """One pass over the selected rows."""

    def __init__(
        self,
        source: DatasetFile,
        selection: Selection,
        require_ground_truth: bool = False,
        rows: SelectedRows | None = None,
        *,
        preview: int = 0,
    ) -> None:
        self.source = source
        self.selection = selection
        self.require_ground_truth = require_ground_truth
        self.rows = rows
        self.preview = preview
        self.facts = DatasetFacts()
        self.ended: BrokenRule | None = None
        """What ended the reading before its time."""
        self._ids: dict[str, int] | None = {}
        """The index of each id, while the rows so far can be known by them."""

    def go(self) -> DatasetFacts:
        facts, end, digest, required = self.facts, _End(), hashlib.sha256(), self.require_ground_truth
        repeats, places = Repeats(), None if self.rows is None else self.rows.places
        selected, hashes = 0, list[str]()
        rules: PlatformRules | None = None
        for index, line, data, raw in _selected(self.source, self.selection, end):
            fault = error_of(data, required)
            if fault is None:
                try:
                    found = row_hash(data)
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
            if self._ids is not None:
                self._see_id(data, index, line)
            hashes.append(found)
            if len(hashes) == _BATCH:
                digest.update("".join(hashes).encode())
                hashes.clear()
            selected += 1
            if facts.kept is not None:
                facts.kept.append((index, line, data, found))
                if selected > _KEPT_ROWS:
                    facts.kept = None
            if places is not None:
                places[repeats.next(found) if found in places else found] = index
            if selected <= self.preview:
                facts.preview.append(data)
        digest.update("".join(hashes).encode())
        facts.selected, facts.rows, facts.rows_hash = selected, end.rows, digest.hexdigest()
        self._finish()
        return facts

    def _finish(self) -> None:
        facts, rows = self.facts, self.rows
        facts.by_id = bool(self._ids)
        if rows is not None and self._ids:
            known = rows.by_id(self._ids)
            rows.places, rows.hashes = known.places, known.hashes
            del rows.at
        if facts.rows is not None and facts.rows < MIN_ROWS:
            facts.add(RowFault(ROWS, f"the file has {facts.rows} rows; a platform needs at least {MIN_ROWS}", "rows"))

    def _see_id(self, data: dict[str, Any], index: int, line: int | None) -> None:
        assert self._ids is not None
        found = id_of(data)
        if found is not None and found not in self._ids:
            self._ids[found] = index
            return
        why = f"id {found!r} is also that of row {self._ids[found]}" if found else "no valid id"
        self.facts.add(RowFault(ID, f"{why}; rows are identified by their content instead", "id"), index, line)
        self._ids = None

    def _begin(self, data: dict[str, Any]) -> PlatformRules:
        self.facts.columns = list(data)
        if "id" not in data and "id" not in self.source.header:
            self._ids = None
        columns = [name.strip() for name in self.source.header] or list(data)
        rules = PlatformRules(_known(columns), same_columns=not self.source.header)
        for fault in rules.faults:
            self.facts.add(fault)
        return rules


def _known(columns: list[str]) -> list[str]:
    """A header as its rows have it."""
    named = normalised(dict.fromkeys(columns), {})
    return list(named) if isinstance(named, dict) else columns


@dataclass(slots=True)
class _End:
    """How many rows the file has, once its end was reached."""

    rows: int | None = None


def _selected(
    source: DatasetFile, selection: Selection, end: _End
) -> Iterator[tuple[int, int | None, Any, bytes | None]]:
    wanted: set[int] | None = None
    first, last = selection.offset, None
    if selection.rows is not None:
        wanted = set(selection.rows)
        first, last = 0, max(wanted, default=-1)
    elif selection.limit is not None:
        last = first + selection.limit - 1
    if selection.sample is not None and selection.rows is None:
        wanted = _draw(source.path, selection, first, last)
        last = max(wanted, default=-1)
    index = -1
    usual: dict[tuple[str, ...], bool] = {}
    everything = first == 0 and last is None and wanted is None
    for index, (line, data, raw) in enumerate(source.rows()):
        if not everything:
            if last is not None and index > last:
                return
            skipped = index < first or (wanted is not None and index not in wanted)
            if skipped and not (isinstance(data, RowFault) and data.ends):
                continue
        yield index, line, normalised(data, usual), raw
    end.rows = index + 1


def _draw(path: Path, selection: Selection, first: int, last: int | None) -> set[int]:
    total = count_rows(path)
    population = range(first, total if last is None else min(total, last + 1))
    size = min(len(population), max(1, round(len(population) * (selection.sample or 0.0))))
    return set(random.Random(selection.seed).sample(population, size))
