"""A diff as git writes it, line by line: which file a line belongs to, what was added and what taken away; and what
changed in the code between two runs, by a repository that has the commits of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from osmosis.base.git import Git, GitError
from osmosis.base.git_diff import commit_diff, has_commit

from .source import CodeAt, RunSource

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


CONFIGS = "configs"
"""The folder of a workspace with its configs: they change with the code."""
LONGEST = 500
"""Characters of a line."""


@dataclass(frozen=True, slots=True)
class CodePair:
    """Two runs whose code is to be compared, and where to look for their commits. Nothing was asked of git yet."""

    names: tuple[str, str]
    code: tuple[CodeAt | None, CodeAt | None]
    places: Sequence[Git] = ()
    lacking: str = ""
    """Why there is no place."""
    repository: str = ""
    """What the answer may be kept by: with both commits it is always the same."""

    @property
    def folders(self) -> list[str]:
        """What is looked at; everything where an agent is no rollout of a workspace."""
        found = [one.folder for one in self.code if one is not None]
        return [*dict.fromkeys(found), CONFIGS] if all(found) else []


@dataclass(frozen=True, slots=True)
class CodeChange:
    """What changed in the code between two runs."""

    files: Sequence[FileDiff] = ()
    left_out: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    problem: str = ""
    """Why nothing can be said."""
    notes: Sequence[str] = ()


def code_pair(
    a: RunSource, b: RunSource, places: Sequence[Git], *, lacking: str = "", repository: str = ""
) -> CodePair:
    names, code = (a.state().name, b.state().name), (a.origin().code, b.origin().code)
    return CodePair(names, code, places, lacking, repository)


def code_change(pair: CodePair) -> CodeChange:
    """Asks git, so it takes its time."""
    before, after = pair.code
    without = [name for name, code in zip(pair.names, pair.code, strict=True) if code is None]
    if before is None or after is None:
        return CodeChange(problem=f"{' and '.join(without)}: not made of a commit that is known")
    dirty = [name for name, code in zip(pair.names, pair.code, strict=True) if code is not None and code.dirty]
    notes = [f"{name} was made with uncommitted changes, which are not in this" for name in dirty]
    if before.commit == after.commit:
        return CodeChange(notes=["Both are of the same commit.", *notes])
    git = next((git for git in pair.places if has_commit(git, before.commit) and has_commit(git, after.commit)), None)
    if git is None:
        both = f"{before.commit[:12]} and {after.commit[:12]}"
        return CodeChange(problem=pair.lacking or f"no repository here has both commits, {both}")
    try:
        found = commit_diff(git, before.commit, after.commit, pair.folders)
    except GitError as error:
        return CodeChange(problem=error.message)
    return CodeChange(by_file(found.text), found.left_out, found.elsewhere, notes=notes)


class CodeChanges:
    """Answers that were given, by repository and commits, the newest ones: both commits never change."""

    KEPT = 50

    def __init__(self) -> None:
        self._known: dict[CodePair, CodeChange] = {}

    def of(self, pair: CodePair) -> CodeChange:
        key = replace(pair, places=())
        if key not in self._known:
            found = code_change(pair)
            if found.problem or not pair.repository:
                return found  # a commit that is not there may come
            while len(self._known) >= self.KEPT:
                self._known.pop(next(iter(self._known)), None)
            self._known[key] = found
        return self._known.get(key) or code_change(pair)


def by_file(diff: str) -> list[FileDiff]:
    """The files of a diff with their lines; what stands before the first file is left out."""
    found: list[tuple[str, list[DiffLine]]] = []
    for line in _lines(diff):
        if line.startswith("diff --git "):
            found.append((line.rpartition(" b/")[2] or line.removeprefix("diff --git "), []))
        elif found:
            kind = _kind(line, body=any(one.kind == "place" for one in found[-1][1][:8]))
            found[-1][1].append(DiffLine(kind, line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."))
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
