"""What one commit of a repository holds, read from git objects: no checkout, and no user code is imported.

Finds `rollouts/*`, `configs/**/*.toml`, and the older layout's decorated functions in `reward_fn/`,
`reward_rubric/` and `mcp/tools/`. Python is parsed, by a process of its own, and never run; files that are too large or
do not parse are passed over.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from osmosis.base.git import Git
from osmosis.base.json_types import JsonObject
from osmosis.platform.readers import Unreadable, read_with

from .source_reader import MAX_DESCRIPTION

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 256 * 1024
MAX_READ_BYTES = 16 * 1024 * 1024
"""Of all files of one kind together; those beyond it are passed over."""
READ_S = 20.0
READ_MEMORY_MB = 512
_PATHS_PER_CALL = 200
_DECORATORS = {
    "reward_fn": ("osmosis_reward",),
    "reward_rubric": ("osmosis_rubric",),
    "mcp": ("tool",),
}
_FOLDERS = {"reward_fn": "reward_fn/", "reward_rubric": "reward_rubric/", "mcp": "mcp/tools/"}


@dataclass(frozen=True, slots=True)
class FoundItem:
    """One thing a commit holds."""

    kind: str
    """`rollout`, `config`, `reward_fn`, `reward_rubric` or `mcp`."""
    name: str
    """Rollout: its folder's name. Config: its path. Functions: `folder.module:function`."""
    path: str
    """Folder of a rollout, file of everything else; relative to the repository."""
    description: str | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    mode: str
    kind: str
    sha: str
    size: int
    path: str

    @property
    def is_folder(self) -> bool:
        return self.kind == "tree"

    @property
    def is_file(self) -> bool:
        return self.kind == "blob" and self.mode != "120000"

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


class Tree:
    """Read access to the files of one commit in a bare repository. Errors are `GitError`."""

    def __init__(self, git: Git, commit: str) -> None:
        self.git = git
        self.commit = commit

    def list(self, paths: Iterable[str], *, recursive: bool = False) -> list[_Entry]:
        """Entries below the given paths; a path with a trailing slash lists that folder's direct children."""
        entries: list[_Entry] = []
        wanted = list(paths)
        for start in range(0, len(wanted), _PATHS_PER_CALL):
            args = ["ls-tree", "-z", "-l", "--full-tree", *(["-r"] if recursive else []), self.commit, "--"]
            out = self.git.run(*args, *wanted[start : start + _PATHS_PER_CALL])
            entries.extend(_entry(line) for line in out.split(b"\0") if line)
        return entries

    def read(self, entries: Iterable[_Entry]) -> dict[str, str]:
        """Contents by path; files beyond `MAX_FILE_BYTES`, or `MAX_READ_BYTES` together, are left out."""
        wanted, left = [], MAX_READ_BYTES
        for entry in entries:
            if entry.is_file and entry.size <= min(MAX_FILE_BYTES, left):
                wanted.append(entry)
                left -= entry.size
        if not wanted:
            return {}
        stdin = b"".join(e.sha.encode() + b"\n" for e in wanted)
        out = self.git.run("cat-file", "--batch", stdin=stdin)
        texts: dict[str, str] = {}
        position = 0
        for entry in wanted:
            end = out.index(b"\n", position)
            size = int(out[position:end].split()[2])
            texts[entry.path] = out[end + 1 : end + 1 + size].decode(errors="replace")
            position = end + 1 + size + 1
        return texts

    def has_file(self, path: str) -> bool:
        return any(e.is_file and e.path == path for e in self.list([path]))


def _entry(line: bytes) -> _Entry:
    facts, _, path = line.partition(b"\t")
    mode, kind, sha, size = facts.decode().split()
    return _Entry(mode, kind, sha, int(size) if size.isdigit() else 0, path.decode(errors="replace"))


def discover(tree: Tree) -> list[FoundItem]:
    """Everything Git Sync shows of a commit, rollouts first, each group sorted by name."""
    texts = _Texts()
    rollouts, functions = _rollouts(tree, texts), _functions(tree, texts)
    said = texts.parsed()
    return [*rollouts(said), *_configs(tree), *functions(said)]


@dataclass(slots=True)
class _Texts:
    """What a commit holds that has to be parsed: all of it goes to one reader."""

    projects: dict[str, str] = field(default_factory=dict)
    modules: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    def parsed(self) -> _Parsed:
        if not self.projects and not self.modules:
            return _Parsed()
        script = str(Path(__file__).with_name("source_reader.py"))
        try:
            said = read_with(
                [script],
                {"projects": self.projects, "modules": self.modules},
                what="this commit",
                seconds=READ_S,
                address_space_mb=READ_MEMORY_MB,
            )
        except Unreadable as error:  # rollouts can be run all the same; they only have nothing to say of themselves
            log.warning("the descriptions of a commit were skipped: %s", error.message)
            return _Parsed()
        found: JsonObject = said if isinstance(said, dict) else {}
        return _Parsed(found.get("descriptions", {}), found.get("functions", {}))


@dataclass(frozen=True, slots=True)
class _Parsed:
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """By the path of the pyproject.toml."""
    functions: Mapping[str, list[tuple[str, str | None]]] = field(default_factory=dict)
    """By the path of the module."""


_Finder = Callable[[_Parsed], list[FoundItem]]


def _rollouts(tree: Tree, texts: _Texts) -> _Finder:
    folders = [e.path for e in tree.list(["rollouts/"]) if e.is_folder and not e.name.startswith((".", "_"))]
    files: dict[str, list[_Entry]] = {folder: [] for folder in folders}
    for entry in tree.list([f"{folder}/" for folder in folders]) if folders else ():
        files[str(PurePosixPath(entry.path).parent)].append(entry)
    about = tree.read(e for held in files.values() for e in held if _tells(e.name))
    texts.projects.update({path: text for path, text in about.items() if path.endswith(".toml")})
    runnable = [
        folder
        for folder, held in sorted(files.items())
        if any(e.is_file and (e.name.endswith(".py") or e.name == "pyproject.toml") for e in held)
    ]

    def found(said: _Parsed) -> list[FoundItem]:
        return [
            FoundItem("rollout", PurePosixPath(folder).name, folder, _description(folder, about, said))
            for folder in runnable
        ]

    return found


def _tells(name: str) -> bool:
    return name == "pyproject.toml" or name.lower() in ("readme.md", "readme.txt", "readme")


def _description(folder: str, about: Mapping[str, str], said: _Parsed) -> str | None:
    """`project.description` of the rollout's pyproject, else the first paragraph of its README."""
    if given := said.descriptions.get(f"{folder}/pyproject.toml"):
        return given
    for path, text in about.items():
        if path.startswith(f"{folder}/") and not path.endswith(".toml"):
            return _first_paragraph(text)
    return None


def _first_paragraph(text: str) -> str | None:
    for block in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in block.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if lines and not lines[0].startswith(("```", "<", "[![", "---", "|")):
            return " ".join(lines)[:MAX_DESCRIPTION]
    return None


def _configs(tree: Tree) -> list[FoundItem]:
    found = []
    for entry in tree.list(["configs/"], recursive=True):
        if entry.is_file and entry.path.endswith(".toml"):
            parts = PurePosixPath(entry.path).parts
            found.append(FoundItem("config", entry.path, entry.path, parts[1] if len(parts) > 2 else None))
    return sorted(found, key=lambda f: f.name)


def _functions(tree: Tree, texts: _Texts) -> _Finder:
    entries = [e for e in tree.list(_FOLDERS.values()) if e.is_file and e.name.endswith(".py")]
    read = tree.read(entries)
    texts.modules.update({path: (text, _DECORATORS[PurePosixPath(path).parts[0]]) for path, text in read.items()})

    def found(said: _Parsed) -> list[FoundItem]:
        return [
            FoundItem(PurePosixPath(path).parts[0], f"{_module(path)}:{name}", path, text)
            for path in sorted(read)
            for name, text in said.functions.get(path, ())
        ]

    return found


def _module(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts)
