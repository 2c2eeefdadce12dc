"""Layout of a workspace: the folder that holds `rollouts/` and `configs/`, without a marker file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from osmosis.errors import NotFound, ValidationError, WorkspaceRequired

ConfigKind = Literal["eval", "training", "optimize", "benchmark"]
CONFIG_KINDS: tuple[ConfigKind, ...] = ("eval", "training", "optimize")  # The kinds of which a rollout has at most one
FOLDERS = ("rollouts", "configs/eval", "configs/training", "data")
FILES = ("AGENTS.md", "CLAUDE.md", "configs/AGENTS.md")
ROLLOUT_NAME = re.compile(r"^[a-z][a-z0-9-]*\Z")
RESERVED_NAMES = ("default",)
DATASET_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")


@dataclass(frozen=True, slots=True)
class RolloutFolder:
    name: str
    path: Path
    entrypoint: Path | None
    pyproject: Path | None
    eval_config: Path | None
    training_config: Path | None


@dataclass(frozen=True, slots=True)
class Workspace:
    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def state_dir(self) -> Path:
        """`.osmosis/`, ignored by git: local runs, downloads, logs."""
        return self.root / ".osmosis"

    def relative(self, path: Path) -> str:
        try:
            return path.resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            return str(path)

    def rollouts(self) -> list[RolloutFolder]:
        folder = self.root / "rollouts"
        if not folder.is_dir():
            return []
        names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "_")))
        return [self.rollout_folder(n) for n in names]

    def rollout_folder(self, name: str) -> RolloutFolder:
        folder = self.root / "rollouts" / name
        configs = (self.root / "configs" / kind / f"{name}.toml" for kind in ("eval", "training"))
        files = (folder / "main.py", folder / "pyproject.toml", *configs)
        return RolloutFolder(name, folder, *(file if file.is_file() else None for file in files))

    def configs(self, kind: ConfigKind | None = None) -> Iterator[tuple[ConfigKind, Path]]:
        for each in CONFIG_KINDS if kind is None else (kind,):
            for path in sorted((self.root / "configs" / each).rglob("*.toml")):
                if path.stem not in RESERVED_NAMES:  # `default.toml` explains every key, and is not run
                    yield each, path

    def datasets(self) -> list[Path]:
        return sorted(p for p in (self.root / "data").rglob("*") if p.suffix in DATASET_SUFFIXES and p.is_file())

    def local_dataset(self, name: str) -> Path | None:
        return next((p for p in self.datasets() if p.stem == name), None)


def find_workspace(start: Path) -> Workspace:
    """Return the nearest folder upwards with `rollouts/` and `configs/`, else the git repository with one of them."""
    start = start.resolve()
    for folder in (start, *start.parents):
        root = [(folder / name).is_dir() for name in ("rollouts", "configs")]
        top = (folder / ".git").exists()
        if all(root) or (top and any(root)):
            return Workspace(folder)
        if top:
            break
    near = _below(start)
    hint = f"cd {near}" if near else "cd into a workspace, or create one: osmosis init NAME"
    raise WorkspaceRequired(f"{start} is not inside a workspace (a folder with rollouts/ and configs/)", hint=hint)


def _below(start: Path) -> str | None:
    try:
        folders = [p.name for p in start.iterdir() if (p / "rollouts").is_dir() and (p / "configs").is_dir()]
    except OSError:
        return None
    return folders[0] if len(folders) == 1 else None


def check_rollout_name(name: str) -> None:
    if name in RESERVED_NAMES:
        raise ValidationError(f"rollout name {name!r} is reserved", hint="choose another name, such as my-rollout")
    if not ROLLOUT_NAME.match(name) or len(name) > 64:
        better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64].lstrip("0123456789-")
        raise ValidationError(
            f"rollout name {name!r}: use small letters, digits and -, starting with a letter, at most 64 of them",
            hint=f"osmosis rollout new {better}" if better and better not in RESERVED_NAMES else "my-rollout is one",
        )


def pick_rollout(workspace: Workspace, name: str | None) -> RolloutFolder:
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
    paths = [p for _, p in workspace.configs(kind)]
    if name is None:
        if len(paths) == 1:
            return paths[0]
        if not paths:
            is_rendered = kind in ("eval", "training")
            hint = "osmosis rollout new NAME creates one" if is_rendered else f"write configs/{kind}/NAME.toml"
            raise NotFound(f"there is no config in configs/{kind}/", hint=hint)
        choices = ", ".join(workspace.relative(p) for p in paths)
        raise ValidationError(f"which {kind} config? there are several", hint=f"one of: {choices}")
    by_stem = [p for p in paths if p.stem == name]
    return by_stem[0] if by_stem else Path(name)
