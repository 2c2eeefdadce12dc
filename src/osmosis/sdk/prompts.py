"""Prompts of an agent as files: `prompts/NAME.md` beside its code is `ctx.prompts["NAME"]`."""

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER, SUFFIX = "prompts", ".md"


class Prompts(Mapping[str, str]):
    """The texts of a folder by name, without the blank lines around them; read from disk each time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> str:
        path = self.folder / f"{name}{SUFFIX}"
        try:
            return path.read_text("utf-8").strip()
        except FileNotFoundError:
            others = f"; there are: {', '.join(self)}" if len(self) else ""
            raise KeyError(f"there is no prompt {name!r}: write {path}{others}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}")))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def prompts_of(agent: type) -> Prompts:
    """Return the prompts beside the module of an agent's class, or above it in its project."""
    folder = folder_of(agent)
    parents = [folder, *folder.parents]
    top = next((i for i, parent in enumerate(parents) if (parent / "pyproject.toml").is_file()), 0)
    homes = [parent / FOLDER for parent in parents[: top + 1]]
    return Prompts(next((home for home in homes if home.is_dir()), homes[0]))


def folder_of(cls: type) -> Path:
    """Return the folder of a class's module; of a class that no file defines, as in a notebook, the current one."""
    try:
        return Path(inspect.getfile(cls)).resolve().parent
    except (TypeError, OSError):
        return Path.cwd()
