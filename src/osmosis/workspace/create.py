import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from osmosis.errors import Conflict
from osmosis.records.api.workspaces import check_workspace_name
from osmosis.workspace.git import commit_paths, init_repository
from osmosis.workspace.layout import check_rollout_name
from osmosis.workspace.templates import find_template, render_rollout, render_workspace


@dataclass(slots=True)
class Created:
    root: Path
    name: str
    files: list[str] = field(default_factory=list)
    git: bool = False
    commit: str | None = None


def check_destination(dest: Path, *, here: bool) -> None:
    inside = next((folder for folder in (dest, *dest.parents) if _is_git_folder(folder)), None)
    if inside is not None:
        is_git = "is a git directory without a working tree"
        problem = is_git if inside == dest else f"is inside the git directory {inside}"
        raise Conflict(f"{dest} {problem}", hint=f"git clone {inside} and init there, or choose another folder")
    if here or not dest.exists():
        return
    if not dest.is_dir():
        raise Conflict(f"{dest} is a file", hint="choose another name")
    if any(dest.iterdir()):
        kind = "is already a workspace" if (dest / "rollouts").is_dir() else "exists and is not empty"
        raise Conflict(f"{dest} {kind}", hint=f"cd {dest.name} && osmosis init --here, or choose another name")


def _is_git_folder(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()


def create_workspace(
    dest: Path, name: str, *, here: bool = False, template: str | None = None, git: bool = True, force: bool = False
) -> Created:
    """Render a workspace into `dest`, with a first rollout when a template is named, and commit it. With `here` the
    folder may hold files; existing ones are kept unless `force`. Raise before anything is written when a name, the
    destination or a file is in the way."""
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
            folders = {dest / parent for name in made.files for parent in Path(name).parents} - {dest}
            for path in [dest / name for name in made.files]:
                if path not in before:
                    path.unlink(missing_ok=True)
            for folder in sorted(folders - before, reverse=True):
                with contextlib.suppress(OSError):  # not empty: somebody else's file is in it
                    folder.rmdir()
        raise
