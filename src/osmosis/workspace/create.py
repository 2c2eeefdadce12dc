"""Making a workspace folder: rendered, a git repository with its first commit, all or nothing.

What a failure leaves behind is what was there before. Platforms are not spoken to here; `cli.init` connects the
finished folder.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from osmosis.errors import Conflict
from osmosis.records.workspace_name import check_workspace_name

from .gitwrite import commit_paths, init_repository
from .layout import check_rollout_name
from .templates import find_template, render_rollout, render_workspace


@dataclass(slots=True)
class Created:
    """What `create_workspace` did."""

    root: Path
    name: str
    files: list[str] = field(default_factory=list)
    """Files written, relative to the root."""
    git: bool = False
    """The folder is a repository."""
    commit: str | None = None
    """The commit made; None without git, or when there was nothing new to commit."""


def check_destination(dest: Path, *, here: bool) -> None:
    """Raises Conflict when `dest` is not a place for a new workspace."""
    inside = next((folder for folder in (dest, *dest.parents) if _is_git_folder(folder)), None)
    if inside is not None:
        what = (
            "is a git directory without a working tree" if inside == dest else f"is inside the git directory {inside}"
        )
        raise Conflict(f"{dest} {what}", hint=f"git clone {inside} and init there, or choose another folder")
    if here or not dest.exists():
        return
    if not dest.is_dir():
        raise Conflict(f"{dest} is a file", hint="choose another name")
    if any(dest.iterdir()):
        kind = "is already a workspace" if (dest / "rollouts").is_dir() else "exists and is not empty"
        raise Conflict(f"{dest} {kind}", hint=f"cd {dest.name} && osmosis init --here, or choose another name")


def _is_git_folder(folder: Path) -> bool:
    """What git itself takes for a repository: a bare one, or the `.git` of a working tree."""
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()


def create_workspace(
    dest: Path, name: str, *, here: bool = False, template: str | None = None, git: bool = True, force: bool = False
) -> Created:
    """Render a workspace into `dest`, with a first rollout when a template is named, and commit it.

    With `here` the folder may hold files; existing ones are kept unless `force`. Raises before anything is
    written when a name, the destination or a file is in the way.
    """
    check_workspace_name(name)
    check_destination(dest, here=here)
    if template is not None:
        find_template(template)
        check_rollout_name(template)
    made = Created(dest, name)
    with _undone_on_error(dest, made):
        dest.mkdir(parents=True, exist_ok=True)
        made.files += render_workspace(dest, {"name": name}, force=force, keep=here and not force)
        if template is not None:
            made.files += render_rollout(template, template, dest, {}, force)
        if git:
            init_repository(dest)
            made.git = True
            if made.files:
                made.commit = commit_paths(dest, "Start the workspace", made.files)
        else:
            made.git = (dest / ".git").exists()
    return made


@contextlib.contextmanager
def _undone_on_error(dest: Path, made: Created) -> Iterator[None]:
    existed, had_git = dest.exists(), (dest / ".git").exists()
    before = {p for p in dest.rglob("*") if ".git" not in p.parts} if existed else set()
    try:
        yield
    except BaseException:
        if not existed:
            shutil.rmtree(dest, ignore_errors=True)
        else:
            if not had_git:
                shutil.rmtree(dest / ".git", ignore_errors=True)
            _remove_new(dest, made.files, before)
        raise


def _remove_new(dest: Path, files: list[str], before: set[Path]) -> None:
    """Remove what was written and was not there; never what somebody else put there in the meantime."""
    folders = {dest / parent for name in files for parent in Path(name).parents} - {dest}
    for path in [dest / name for name in files]:
        if path not in before:
            path.unlink(missing_ok=True)
    for folder in sorted(folders - before, reverse=True):
        with contextlib.suppress(OSError):  # not empty: somebody else's file is in it
            folder.rmdir()
