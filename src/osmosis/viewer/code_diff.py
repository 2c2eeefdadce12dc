"""A diff as git writes it, line by line: which file a line belongs to, what was added and what taken away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["added", "removed", "place", "same"]
MOST = 4_000
"""Lines that are shown."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class FileDiff:
    name: str
    lines: Sequence[DiffLine]

    @property
    def added(self) -> int:
        return sum(line.kind == "added" for line in self.lines)

    @property
    def removed(self) -> int:
        return sum(line.kind == "removed" for line in self.lines)


def by_file(diff: str) -> list[FileDiff]:
    """The files of a diff with their lines; what stands before the first file is left out."""
    found: list[tuple[str, list[DiffLine]]] = []
    for line in _lines(diff):
        if line.startswith("diff --git "):
            found.append((line.rpartition(" b/")[2] or line.removeprefix("diff --git "), []))
        elif found:
            found[-1][1].append(DiffLine(_kind(line, body=any(one.kind == "place" for one in found[-1][1])), line))
    return [FileDiff(name.strip('"'), lines) for name, lines in found]


def _lines(diff: str) -> Iterator[str]:
    lines = diff.split("\n")
    yield from lines[:MOST]
    if len(lines) > MOST:
        yield f"... {len(lines) - MOST:,} more lines"


def _kind(line: str, *, body: bool) -> Kind:
    """`body`: behind the first `@@`; before it, `---` and `+++` name the files."""
    if line.startswith("@@"):
        return "place"
    if body and line.startswith(("+", "-")):
        return "added" if line[0] == "+" else "removed"
    return "same"
