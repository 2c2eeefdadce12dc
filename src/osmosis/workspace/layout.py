"""Where a workspace is, and what lies in it: rollouts, configs, datasets, the folder for local results.

A workspace has no marker file: it is the folder that holds `rollouts/` and `configs/`, normally the top of a git
repository. This module looks at the file system only; it creates nothing and runs no git.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from osmosis.base.light_dataclass import dataclass
from osmosis.errors import NotFound, ValidationError, WorkspaceRequired

ConfigKind = Literal["eval", "training"]
CONFIG_KINDS: tuple[ConfigKind, ...] = ("eval", "training")
FOLDERS = ("rollouts", "configs/eval", "configs/training", "data")
FILES = ("AGENTS.md", "CLAUDE.md", "configs/AGENTS.md")
ROLLOUT_NAME = re.compile(r"^[a-z][a-z0-9-]*$")
RESERVED_NAMES = ("default",)
DATASET_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")


@dataclass(frozen=True, slots=True)
class RolloutFolder:
    """One directory under `rollouts/`."""

    name: str
    path: Path
    entrypoint: Path | None
    """`main.py`, when there is one."""
    pyproject: Path | None
    eval_config: Path | None
    """`configs/eval/<name>.toml`, when there is one."""
    training_config: Path | None


@dataclass(frozen=True, slots=True)
class Workspace:
    """The root of a workspace; everything else is derived from it."""

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def state_dir(self) -> Path:
        """`.osmosis/`: local runs, downloads, logs. Git-ignored."""
        return self.root / ".osmosis"

    def relative(self, path: Path) -> str:
        """A path as it is shown: from the root where it lies inside, with `/`."""
        try:
            return path.resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            return str(path)

    def rollouts(self) -> list[RolloutFolder]:
        """Every directory under `rollouts/`, by name."""
        folder = self.root / "rollouts"
        if not folder.is_dir():
            return []
        names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "_")))
        return [self.rollout_folder(n) for n in names]

    def rollout_folder(self, name: str) -> RolloutFolder:
        folder = self.root / "rollouts" / name
        main, pyproject = folder / "main.py", folder / "pyproject.toml"
        configs = {k: self.root / "configs" / k / f"{name}.toml" for k in CONFIG_KINDS}
        return RolloutFolder(
            name,
            folder,
            main if main.is_file() else None,
            pyproject if pyproject.is_file() else None,
            configs["eval"] if configs["eval"].is_file() else None,
            configs["training"] if configs["training"].is_file() else None,
        )

    def configs(self, kind: ConfigKind | None = None) -> Iterator[tuple[ConfigKind, Path]]:
        """The TOML files of one kind, or of both."""
        for each in CONFIG_KINDS if kind is None else (kind,):
            folder = self.root / "configs" / each
            if folder.is_dir():
                for path in sorted(folder.rglob("*.toml")):
                    yield each, path

    def datasets(self) -> list[Path]:
        """Dataset files under `data/`."""
        folder = self.root / "data"
        if not folder.is_dir():
            return []
        return sorted(p for p in folder.rglob("*") if p.suffix in DATASET_SUFFIXES and p.is_file())

    def local_dataset(self, name: str) -> Path | None:
        """The file under `data/` whose stem is the dataset's name (that is how upload names it)."""
        return next((p for p in self.datasets() if p.stem == name), None)


def find_workspace(start: Path) -> Workspace:
    """The workspace that holds `start`. Raises WorkspaceRequired outside one.

    The nearest folder upwards with `rollouts/` and `configs/`; else the top of the git repository when it has at
    least one of them, so that a damaged workspace can still be diagnosed.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        found = [(folder / name).is_dir() for name in ("rollouts", "configs")]
        top = (folder / ".git").exists()
        if all(found) or (top and any(found)):
            return Workspace(folder)
        if top:
            break
    near = _below(start)
    raise WorkspaceRequired(
        f"{start} is not inside a workspace (a folder with rollouts/ and configs/)",
        hint=f"cd {near}" if near else "cd into a workspace, or create one: osmosis init NAME",
    )


def _below(start: Path) -> str | None:
    """The one workspace right below: where somebody who just made it forgot to go."""
    try:
        found = [p.name for p in start.iterdir() if (p / "rollouts").is_dir() and (p / "configs").is_dir()]
    except OSError:
        return None
    return found[0] if len(found) == 1 else None


def check_rollout_name(name: str) -> None:
    """Raises ValidationError unless the name can be a folder under `rollouts/` and a dataset's name."""
    if name in RESERVED_NAMES:
        raise ValidationError(f"rollout name {name!r} is reserved", hint="choose another name, such as my-rollout")
    if not ROLLOUT_NAME.match(name) or len(name) > 64:
        better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64].lstrip("0123456789-")
        raise ValidationError(
            f"rollout name {name!r}: use small letters, digits and -, starting with a letter, at most 64 of them",
            hint=f"osmosis rollout new {better}" if better and better not in RESERVED_NAMES else "my-rollout is one",
        )


def pick_rollout(workspace: Workspace, name: str | None) -> RolloutFolder:
    """The named rollout; with one in the workspace no name is needed. Raises NotFound or ValidationError."""
    names = [r.name for r in workspace.rollouts()]
    if name is None:
        if len(names) == 1:
            return workspace.rollout_folder(names[0])
        if not names:
            raise NotFound("this workspace has no rollouts yet", hint="osmosis rollout new NAME")
        raise ValidationError("several rollouts match; name one", hint=f"one of: {', '.join(names)}")
    if name not in names:
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"one of: {', '.join(names)}" if names else "osmosis rollout new"
        raise NotFound(f"there is no rollouts/{name}/ in this workspace", hint=hint)
    return workspace.rollout_folder(name)


def pick_config(workspace: Workspace, kind: ConfigKind, name: str | None) -> Path:
    """A config by path, by file stem or by rollout; with one of that kind no name is needed."""
    paths = [p for _, p in workspace.configs(kind)]
    if name is None:
        if len(paths) == 1:
            return paths[0]
        if not paths:
            raise NotFound(f"there is no config in configs/{kind}/", hint="osmosis rollout new NAME creates one")
        shown = ", ".join(workspace.relative(p) for p in paths)
        raise ValidationError(f"which {kind} config? there are several", hint=f"one of: {shown}")
    by_stem = [p for p in paths if p.stem == name]
    if by_stem:
        return by_stem[0]
    return Path(name)
