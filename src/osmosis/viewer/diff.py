"""Differences of two commits as text of bounded size. Runs nothing that a repository configures."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from osmosis.base.git import Git, GitError, to_valid_text
from osmosis.viewer.run_source import CodePair

SHA = re.compile(r"[0-9a-f]{7,64}")
MOST_FILES = 100
MOST_LINES = 4_000  # Added and removed lines of all files together
MOST_CHARACTERS = 600_000
LARGEST_FILE = 256 * 1024  # Bytes; a larger file is only named
TIMEOUT_S = 20.0
_SETTINGS = ("core.quotePath=false", "diff.relative=false", f"core.bigFileThreshold={LARGEST_FILE}")
_PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")


@dataclass(frozen=True, slots=True)
class CommitDiff:
    text: str
    left_out: Sequence[str]  # Files of the folders that are too large, too many, or not text
    elsewhere: Sequence[str]  # Number of changed files outside of the folders


def has_commit(git: Git, commit: str) -> bool:
    if not SHA.fullmatch(commit):
        return False
    try:
        git.run("cat-file", "-e", f"{commit}^{{commit}}", timeout_s=TIMEOUT_S)
    except GitError:
        return False
    return True


def commit_diff(git: Git, before: str, after: str, folders: Sequence[str]) -> CommitDiff:
    changed = list(_changed(git, before, after))
    mine = [change for change in changed if not folders or any(f"/{f}/" in f"/{change[0]}" for f in folders)]
    room, chosen = MOST_LINES, list[str]()
    for path, lines in sorted(mine, key=lambda change: change[1] or 0):
        if lines is not None and lines <= room and len(chosen) < MOST_FILES:
            chosen.append(path)
            room -= lines
    chosen_paths = set(chosen)
    text = ""
    if chosen:
        paths = [f":(top,literal){path}" for path, _ in mine if path in chosen_paths]
        text = to_valid_text(
            _git(git, "diff", *_PLAIN, "--src-prefix=a/", "--dst-prefix=b/", before, after, "--", *paths)
        )
    below = {path for path, _ in mine}
    left_out = [path for path, _ in mine if path not in chosen_paths]
    return CommitDiff(text[:MOST_CHARACTERS], left_out, [path for path, _ in changed if path not in below])


def _changed(git: Git, before: str, after: str) -> Iterator[tuple[str, int | None]]:
    for entry in _git(git, "diff", "--numstat", "-z", *_PLAIN, before, after).split("\0"):
        if entry:
            added, removed, path = entry.split("\t", 2)
            yield to_valid_text(path), None if added == "-" else int(added) + int(removed)


def _git(git: Git, *args: str) -> str:
    return git.text(*[word for setting in _SETTINGS for word in ("-c", setting)], *args, timeout_s=TIMEOUT_S)


MAX_ANSWER = 8_000  # Characters of either text; longer ones are shown beside each other without a diff
MAX_LINES = 4_000
MAX_LINE_LENGTH = 500
_WORDS = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class DiffPiece:
    kind: Literal["same", "missing", "extra"]
    text: str


def diff_words(expected: str, answer: str) -> Sequence[DiffPiece]:
    """Compare two texts by words; empty when they are equal, empty, too long or have no word in common."""
    if not expected or not answer or expected == answer or max(len(expected), len(answer)) > MAX_ANSWER:
        return ()
    a, b = _WORDS.findall(expected), _WORDS.findall(answer)
    pieces: list[DiffPiece] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            pieces.append(DiffPiece("same", "".join(a[i1:i2])))
            continue
        if i2 > i1:
            pieces.append(DiffPiece("missing", "".join(a[i1:i2])))
        if j2 > j1:
            pieces.append(DiffPiece("extra", "".join(b[j1:j2])))
    return pieces if any(piece.kind == "same" and piece.text.strip() for piece in pieces) else ()


LineKind = Literal["added", "removed", "place", "same"]


@dataclass(frozen=True, slots=True)
class DiffLine:
    kind: LineKind
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


@dataclass(frozen=True, slots=True)
class CodeChange:
    files: Sequence[FileDiff] = ()
    left_out: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    problem: str = ""
    notes: Sequence[str] = ()


def diff_code(pair: CodePair) -> CodeChange:
    before, after = pair.code
    if before is None or after is None:
        names = [name for name, code in zip(pair.names, pair.code, strict=True) if code is None]
        return CodeChange(problem=f"{' and '.join(names)}: not made of a commit that is known")
    dirty = [name for name, code in zip(pair.names, (before, after), strict=True) if code.dirty]
    notes = [f"{name} was made with uncommitted changes, which are not in this" for name in dirty]
    if before.commit == after.commit:
        return CodeChange(notes=["Both are of the same commit.", *notes])
    commits = (before.commit, after.commit)
    git = next((git for git in pair.repositories if all(has_commit(git, commit) for commit in commits)), None)
    if git is None:
        both = f"{before.commit[:12]} and {after.commit[:12]}"
        return CodeChange(problem=pair.no_repository or f"no repository here has both commits, {both}")
    try:
        diff = commit_diff(git, before.commit, after.commit, pair.folders)
    except GitError as error:
        return CodeChange(problem=error.message)
    return CodeChange(split_files(diff.text), diff.left_out, diff.elsewhere, notes=notes)


def split_files(diff: str) -> list[FileDiff]:
    files: list[tuple[str, list[DiffLine]]] = []
    every = diff.split("\n")
    more = [f"... {len(every) - MAX_LINES:,} more lines"] if len(every) > MAX_LINES else []
    for line in [*every[:MAX_LINES], *more]:
        if line.startswith("diff --git "):
            files.append((line.rpartition(" b/")[2] or line.removeprefix("diff --git "), []))
        elif files:
            in_body = any(earlier.kind == "place" for earlier in files[-1][1][:8])
            text = line if len(line) <= MAX_LINE_LENGTH else f"{line[:MAX_LINE_LENGTH]} ..."
            files[-1][1].append(DiffLine(_line_kind(line, in_body=in_body), text))
    return [FileDiff(name.strip('"'), lines) for name, lines in files]


def _line_kind(line: str, *, in_body: bool) -> LineKind:
    if line.startswith("@@"):
        return "place"
    if in_body and line.startswith(("+", "-")):
        return "added" if line[0] == "+" else "removed"
    return "same"
