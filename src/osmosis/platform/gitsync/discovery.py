"""What one commit of a repository holds, read from git objects: no checkout, and no user code is imported.

Finds `rollouts/*`, `configs/**/*.toml`, and the older layout's decorated functions in `reward_fn/`,
`reward_rubric/` and `mcp/tools/`. Python is parsed, never run; files that are too large or do not parse are
passed over.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib
from osmosis.base.git import Git

MAX_FILE_BYTES = 256 * 1024
MAX_DESCRIPTION = 300
_PATHS_PER_CALL = 200
_DECORATORS = {
    "reward_fn": ("osmosis_reward",),
    "reward_rubric": ("osmosis_rubric",),
    "mcp": ("tool",),
}
_FOLDERS = {"reward_fn": "reward_fn/", "reward_rubric": "reward_rubric/", "mcp": "mcp/tools/"}


@dataclass(frozen=True, slots=True)
class Found:
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
        """Contents by path; files beyond `MAX_FILE_BYTES` are left out."""
        wanted = [e for e in entries if e.is_file and e.size <= MAX_FILE_BYTES]
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


def discover(tree: Tree) -> list[Found]:
    """Everything Git Sync shows of a commit, rollouts first, each group sorted by name."""
    return [*_rollouts(tree), *_configs(tree), *_functions(tree)]


def _rollouts(tree: Tree) -> list[Found]:
    folders = [e.path for e in tree.list(["rollouts/"]) if e.is_folder and not e.name.startswith((".", "_"))]
    if not folders:
        return []
    files: dict[str, list[_Entry]] = {folder: [] for folder in folders}
    for entry in tree.list([f"{folder}/" for folder in folders]):
        files[str(PurePosixPath(entry.path).parent)].append(entry)
    about = tree.read(e for held in files.values() for e in held if _tells(e.name))
    found = []
    for folder, held in sorted(files.items()):
        if any(e.is_file and (e.name.endswith(".py") or e.name == "pyproject.toml") for e in held):
            found.append(Found("rollout", PurePosixPath(folder).name, folder, _description(folder, about)))
    return found


def _tells(name: str) -> bool:
    return name == "pyproject.toml" or name.lower() in ("readme.md", "readme.txt", "readme")


def _description(folder: str, about: Mapping[str, str]) -> str | None:
    """`project.description` of the rollout's pyproject, else the first paragraph of its README."""
    try:
        project = tomllib.loads(about.get(f"{folder}/pyproject.toml", "")).get("project", {})
    except tomllib.TOMLDecodeError:
        project = {}
    said = project.get("description") if isinstance(project, dict) else None
    if isinstance(said, str) and said.strip():
        return said.strip()[:MAX_DESCRIPTION]
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


def _configs(tree: Tree) -> list[Found]:
    found = []
    for entry in tree.list(["configs/"], recursive=True):
        if entry.is_file and entry.path.endswith(".toml"):
            parts = PurePosixPath(entry.path).parts
            found.append(Found("config", entry.path, entry.path, parts[1] if len(parts) > 2 else None))
    return sorted(found, key=lambda f: f.name)


def _functions(tree: Tree) -> list[Found]:
    found = []
    entries = [e for e in tree.list(_FOLDERS.values()) if e.is_file and e.name.endswith(".py")]
    for path, text in sorted(tree.read(entries).items()):
        kind = PurePosixPath(path).parts[0]
        module = ".".join(PurePosixPath(path).with_suffix("").parts)
        for name, said in _decorated(text, _DECORATORS[kind]):
            found.append(Found(kind, f"{module}:{name}", path, said))
    return found


def _decorated(source: str, wanted: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """Top-level functions with one of the decorators, and the first line of their docstring."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = {_decorator_name(d) for d in node.decorator_list}
            if names & set(wanted):
                said = ast.get_docstring(node)
                found.append((node.name, said.strip().splitlines()[0][:MAX_DESCRIPTION] if said else None))
    return found


def _decorator_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
