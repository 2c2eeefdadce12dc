"""Differences of two commits as text of bounded size. Runs nothing that a repository configures."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .git import Git, GitError, to_valid_text

SHA = re.compile(r"[0-9a-f]{7,64}")
MOST_FILES = 100
MOST_LINES = 4_000
"""Added and removed lines of all files together."""
MOST_CHARACTERS = 600_000
LARGEST_FILE = 256 * 1024
"""Bytes; a larger file is only named."""
TIMEOUT_S = 20.0
_SETTINGS = ("core.quotePath=false", "diff.relative=false", f"core.bigFileThreshold={LARGEST_FILE}")
_PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")


@dataclass(frozen=True, slots=True)
class CommitDiff:
    text: str
    left_out: Sequence[str]
    """Files of the folders that are too large, too many, or not text."""
    elsewhere: Sequence[str]
    """Number of changed files outside of the folders."""


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
    mine = [change for change in changed if not folders or _is_below(change[0], folders)]
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
    return CommitDiff(
        text[:MOST_CHARACTERS],
        [path for path, _ in mine if path not in chosen_paths],
        [path for path, _ in changed if path not in below],
    )


def _changed(git: Git, before: str, after: str) -> Iterator[tuple[str, int | None]]:
    for entry in _git(git, "diff", "--numstat", "-z", *_PLAIN, before, after).split("\0"):
        if entry:
            added, removed, path = entry.split("\t", 2)
            yield to_valid_text(path), None if added == "-" else int(added) + int(removed)


def _git(git: Git, *args: str) -> str:
    return git.text(*[word for setting in _SETTINGS for word in ("-c", setting)], *args, timeout_s=TIMEOUT_S)


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(f"/{path}".find(f"/{folder}/") >= 0 for folder in folders)
