"""The code of the commit that a run was made with, in a worktree, and a run gone on with there.

Branches and the working tree stay as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from osmosis.base.git import Git
from osmosis.engine.journal import Journal
from osmosis.errors import ValidationError


def commit_of(journal: Journal) -> str:
    """The commit that a run's code was. Raises ValidationError for one that no commit describes."""
    git = journal.plan().provenance.get("git") or {}
    name = journal.folder.name
    if not git.get("commit"):
        raise ValidationError(
            f"run {name} was made outside a git repository", hint="make runs of committed code, then try again"
        )
    if git.get("dirty"):
        raise ValidationError(
            f"run {name} was made with uncommitted changes: its commit does not say what ran",
            hint="commit, run it again, then try again",
        )
    return str(git["commit"])


@contextmanager
def folder_at(root: Path, commit: str) -> Iterator[Path]:
    """The folder `root` of a repository as it was at this commit."""
    git = Git(root)
    top = Path(git.text("rev-parse", "--show-toplevel").strip())
    tree = top / ".osmosis" / "bisect" / commit[:12]
    shutil.rmtree(tree, ignore_errors=True)
    git.text("worktree", "prune")
    git.text("worktree", "add", "--quiet", "--force", "--detach", str(tree), commit)
    try:
        yield tree / root.resolve().relative_to(top.resolve())
    finally:
        git.text("worktree", "remove", "--force", str(tree))
