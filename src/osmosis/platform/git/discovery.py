"""Read what a commit contains from git objects; a separate process parses Python, and never runs it."""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from osmosis.base.git import Git
from osmosis.base.jsonable import JsonObject
from osmosis.platform.git.source_reader import MAX_DESCRIPTION
from osmosis.sandbox.process import Unreadable, read_with

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 256 * 1024
MAX_READ_BYTES = 16 * 1024 * 1024
READ_S = 20.0
READ_MEMORY_MB = 512
_PATHS_PER_CALL = 200
_ABOUT = ("pyproject.toml", "readme.md", "readme.txt", "readme")
_DECORATORS = {"reward_fn": ("osmosis_reward",), "reward_rubric": ("osmosis_rubric",), "mcp": ("tool",)}
_FOLDERS = {"reward_fn": "reward_fn/", "reward_rubric": "reward_rubric/", "mcp": "mcp/tools/"}


@dataclass(frozen=True, slots=True)
class FoundItem:
    kind: str  # `rollout`, `config`, `reward_fn`, `reward_rubric` or `mcp`
    name: str  # A rollout's folder name, a config's path, a function's `folder.module:function`
    path: str
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
    def __init__(self, git: Git, commit: str) -> None:
        self.git = git
        self.commit = commit

    def list(self, paths: Iterable[str], *, recursive: bool = False) -> list[_Entry]:
        entries: list[_Entry] = []
        names = list(paths)
        for start in range(0, len(names), _PATHS_PER_CALL):
            args = ["ls-tree", "-z", "-l", "--full-tree", *(["-r"] if recursive else []), self.commit, "--"]
            out = self.git.run(*args, *names[start : start + _PATHS_PER_CALL])
            entries.extend(_entry(line) for line in out.split(b"\0") if line)
        return entries

    def read(self, entries: Iterable[_Entry]) -> dict[str, str]:
        """Return contents by path, without files beyond `MAX_FILE_BYTES` each or `MAX_READ_BYTES` together."""
        chosen, left = [], MAX_READ_BYTES
        for entry in entries:
            if entry.is_file and entry.size <= min(MAX_FILE_BYTES, left):
                chosen.append(entry)
                left -= entry.size
        if not chosen:
            return {}
        stdin = b"".join(e.sha.encode() + b"\n" for e in chosen)
        out = self.git.run("cat-file", "--batch", stdin=stdin)
        texts: dict[str, str] = {}
        position = 0
        for entry in chosen:
            end = out.index(b"\n", position)
            size = int(out[position:end].split()[2])
            texts[entry.path] = out[end + 1 : end + 1 + size].decode(errors="replace")
            position = end + 1 + size + 1
        return texts


def _entry(line: bytes) -> _Entry:
    facts, _, path = line.partition(b"\t")
    mode, kind, sha, size = facts.decode().split()
    return _Entry(mode, kind, sha, int(size) if size.isdigit() else 0, path.decode(errors="replace"))


def discover(tree: Tree) -> list[FoundItem]:
    entries = [e for e in tree.list(_FOLDERS.values()) if e.is_file and e.name.endswith(".py")]
    modules = {path: (text, _DECORATORS[PurePosixPath(path).parts[0]]) for path, text in tree.read(entries).items()}
    folders = [e.path for e in tree.list(["rollouts/"]) if e.is_folder and not e.name.startswith((".", "_"))]
    files: dict[str, list[_Entry]] = {folder: [] for folder in folders}
    for entry in tree.list([f"{folder}/" for folder in folders]) if folders else ():
        files[str(PurePosixPath(entry.path).parent)].append(entry)
    about = tree.read(e for entries in files.values() for e in entries if e.name.lower() in _ABOUT)
    descriptions, functions = _parse({path: text for path, text in about.items() if path.endswith(".toml")}, modules)
    rollouts = [
        FoundItem("rollout", PurePosixPath(folder).name, folder, _description(folder, about, descriptions))
        for folder, entries in sorted(files.items())
        if any(e.is_file and (e.name.endswith(".py") or e.name == "pyproject.toml") for e in entries)
    ]
    configs = []
    for entry in tree.list(["configs/"], recursive=True):
        if entry.is_file and entry.path.endswith(".toml"):
            parts = PurePosixPath(entry.path).parts
            configs.append(FoundItem("config", entry.path, entry.path, parts[1] if len(parts) > 2 else None))
    decorated = [
        FoundItem(path.partition("/")[0], f"{path.removesuffix('.py').replace('/', '.')}:{name}", path, text)
        for path in sorted(modules)
        for name, text in functions.get(path, ())
    ]
    return [*rollouts, *sorted(configs, key=lambda item: item.name), *decorated]


def _parse(
    projects: Mapping[str, str], modules: Mapping[str, tuple[str, tuple[str, ...]]]
) -> tuple[Mapping[str, str], Mapping[str, list[tuple[str, str | None]]]]:
    if not projects and not modules:
        return {}, {}
    script = str(Path(__file__).with_name("source_reader.py"))
    request = {"projects": projects, "modules": modules}
    try:
        answer = read_with([script], request, what="this commit", seconds=READ_S, address_space_mb=READ_MEMORY_MB)
    except Unreadable as error:  # rollouts can be run all the same; they only have nothing to say of themselves
        log.warning("the descriptions of a commit were skipped: %s", error.message)
        return {}, {}
    values: JsonObject = answer if isinstance(answer, dict) else {}
    return values.get("descriptions", {}), values.get("functions", {})


def _description(folder: str, about: Mapping[str, str], descriptions: Mapping[str, str]) -> str | None:
    if description := descriptions.get(f"{folder}/pyproject.toml"):
        return description
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
