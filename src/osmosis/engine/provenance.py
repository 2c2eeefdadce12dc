"""Hash the inputs of a result, by which a resume decides what to run again; describe where a run comes from."""

import functools
import hashlib
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import orjson

from osmosis._version import __version__
from osmosis.base.git import Git, GitError, to_valid_text
from osmosis.base.jsonable import JsonObject
from osmosis.base.redact import without_credentials
from osmosis.engine.loader import load_module, source_files, source_hash, source_of
from osmosis.records.run.plan import EvalPlan

_DIFF_LIMIT = 200_000
_UNTRACKED_SHOWN = 20


def digest(*parts: object) -> str:
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()[:16]


def plan_hashes(
    plan: EvalPlan, *, agent_files: Sequence[Path], base_dir: Path, objects: Mapping[str, object] | None = None
) -> dict[str, str]:
    agent: list[object] = [plan.agent, plan.max_turns, plan.max_tokens_total, source_hash(list(agent_files))]
    for own in (plan.limits, plan.sandbox, plan.program):
        agent += [own.to_dict()] if own != type(own)() else []
    agent += [plan.branch.to_dict()] if plan.branch is not None else []
    if objects and plan.agent in objects:
        agent.append(source_of(objects[plan.agent], base_dir)[1])
    model, kind = plan.model, plan.model.kind
    if kind in ("messages", "responses"):  # a run that began when these were asked otherwise is resumed, not paid twice
        kind = "openai" if model.base_url else "litellm"
    return {
        "agent": digest(*agent),
        "sampling": digest(model.name, kind, model.base_url, model.params, model.seed),
        "score": score_hash(plan.score_fns, base_dir, objects=objects),
    }


def score_hash(paths: Sequence[str], base_dir: Path, *, objects: Mapping[str, object] | None = None) -> str:
    files, texts = _score_sources(paths, base_dir, objects)
    return digest(sorted(paths), source_hash(files), *texts)


def score_files(paths: Sequence[str], base_dir: Path, *, objects: Mapping[str, object] | None = None) -> list[Path]:
    return _score_sources(paths, base_dir, objects)[0]


def _score_sources(
    paths: Sequence[str], base_dir: Path, objects: Mapping[str, object] | None
) -> tuple[list[Path], list[str]]:
    files: list[Path] = []
    texts: list[str] = []
    for path in paths:
        module, _, attribute = path.partition(":")
        if objects and path in objects:
            own, text = source_of(objects[path], base_dir)
            files.extend(own)
            texts.extend([text] if text else [])
        elif module == "rubric":
            files.append(base_dir / attribute.partition("#")[0])
        else:
            files.extend(source_files(load_module(module, base_dir), base_dir))
    return sorted(set(files)), texts


def folder_files(folder: Path) -> list[Path]:
    skipped = {".venv", "__pycache__", ".git", "node_modules"}
    return sorted(p for p in folder.rglob("*.py") if not skipped & set(p.relative_to(folder).parts))


def provenance(base_dir: Path) -> dict[str, object]:
    record: JsonObject = {
        "osmosis": __version__,
        "python": sys.version.split()[0],
        "platform": sys.platform,
        "folder": str(base_dir),
    }
    if not any((folder / ".git").exists() for folder in (base_dir, *base_dir.parents)):
        return record
    # Our own journals are no change of anything.
    status = _git(base_dir, "status", "--porcelain=v2", "--branch", "--", ":(top)", ":(exclude,glob)**/.osmosis/**")
    head = dict(line[2:].split(" ", 1) for line in (status or "").splitlines() if line.startswith("# "))
    commit = head.get("branch.oid", "(initial)")
    if status is None or commit == "(initial)":
        return record
    changes = [line for line in status.splitlines() if not line.startswith("#")]
    untracked = [line[2:] for line in changes if line.startswith("? ")]
    record["git"] = {"commit": commit, "branch": head.get("branch.head", ""), "dirty": bool(changes)}
    origin = _git(base_dir, "config", "--get", "remote.origin.url")
    if origin:
        record["git"]["repository"] = without_credentials(origin)
    if untracked:
        record["git"]["untracked"] = untracked[:_UNTRACKED_SHOWN]
    if len(untracked) < len(changes):
        diff = _git(base_dir, "diff", "HEAD", "--no-ext-diff", "--no-color") or ""
        record["git"]["diff_sha256"] = hashlib.sha256(diff.encode()).hexdigest()
        record["git"]["diff"] = diff[:_DIFF_LIMIT]
    return record


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        return to_valid_text(Git(folder, timeout_s=10.0).text(*arguments))
    except GitError:
        return None


MOST_FILES = 1000
MOST_BYTES = 16 * 2**20  # Bytes above which a file is known by its size and time instead of its content
_SKIPPED = {
    *(".git", ".osmosis", ".venv", "venv", "__pycache__", "node_modules", "site-packages", "dist-packages"),
    *(".github", "tests", "docs"),
}
_TALK = ("readme", "license", "changelog", "contributing", ".gitignore", ".gitattributes")


def is_agent_file(path: PurePath) -> bool:
    return not _SKIPPED.intersection(path.parts) and not path.name.lower().startswith(_TALK)


Manifest = dict[str, dict[str, str]]  # `agent` and `score`: path from the base folder, to digest


class AgentFiles:
    def __init__(
        self, base_dir: Path, folder: Path, *, agent: Iterable[Path], score: Iterable[Path], others: Iterable[Path]
    ) -> None:
        self._base = base_dir.resolve()
        self._folder = folder.resolve()
        self._agent = {file.resolve() for file in agent}
        self._score = {file.resolve() for file in score} - self._agent
        self._others = {file.resolve() for file in others}
        self._tracked = self._git_files()

    def now(self) -> Manifest:
        opened = {
            file: opened_file
            for file, opened_file in list(_opened.items())
            if self._inside(file) and file not in _written
        }
        scored = {file for file, opened_file in opened.items() if opened_file.scoring}
        imported = _imported((f"{self._folder}{os.sep}",))
        agent = self._agent | self._tracked | set(opened) | {file for file in imported if self._inside(file)}
        agent -= self._score | self._others | scored
        score = (self._score | scored) - self._others
        return {"agent": self._digests(agent, opened), "score": self._digests(score, opened)}

    @staticmethod
    def count_files() -> int:
        return len(_opened) + len(sys.modules)

    def changed(self, stored: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
        by_part: dict[str, list[str]] = {}
        for part, name, digest in ((part, *item) for part, files in stored.items() for item in files.items()):
            if (file := self._base / name) not in self._others and hash_file(file) != digest:
                by_part.setdefault(part, []).append(name)
        return by_part

    def _digests(self, files: set[Path], opened: "Mapping[Path, _Seen]") -> dict[str, str]:
        digests = {}
        for file in sorted(files)[:MOST_FILES]:
            digest = hash_file(file)
            if digest is not None:
                opened_file = opened.get(file)
                stale = opened_file is not None and opened_file.stat != _stat(file)
                digests[os.path.relpath(file, self._base)] = "changed while it ran" if stale else digest
        return digests

    def _inside(self, file: Path) -> bool:
        return self._folder in file.parents and not _SKIPPED.intersection(file.relative_to(self._folder).parts)

    def _git_files(self) -> set[Path]:
        if not any((folder / ".git").exists() for folder in (self._folder, *self._folder.parents)):
            return set()
        try:
            names = Git(self._folder, timeout_s=10.0).text("ls-files", "-z").split("\0")
        except GitError:
            return set()
        files = [self._folder / name for name in names if name and is_agent_file(PurePath(name))]
        inside = [file for file in files if self._inside(file) and file.is_file()]
        return set(inside) if len(inside) <= MOST_FILES else set()


@dataclass(frozen=True, slots=True)
class _Seen:
    stat: tuple[int, int]
    scoring: bool


_opened: dict[Path, _Seen] = {}
_written: set[Path] = set()
_roots: list[str] = []
_reported: tuple[int, frozenset[str]] = (0, frozenset())
_scoring = threading.local()
_HOMES = tuple(
    (f"{home}{os.sep}", f"{home.resolve()}{os.sep}") for home in (Path(os.__file__).parent, Path(__file__).parents[1])
)


def watch(base_dir: Path) -> None:
    root = str(base_dir.resolve()) + os.sep
    if not _roots:
        sys.addaudithook(_on_event)
    if root not in _roots:
        _roots.append(root)


OpenedFiles = list[tuple[str, tuple[int, int] | None, bool]]
"""Path; size and time, None for a file that was written; whether a score function opened it."""


def news() -> OpenedFiles:
    global _reported
    if _reported[0] == AgentFiles.count_files() + len(_written):
        return []
    files: OpenedFiles = [
        (str(file), opened_file.stat, opened_file.scoring) for file, opened_file in list(_opened.items())
    ]
    files += [
        (str(file), stat, False)
        for file in _imported(tuple(_roots))
        if file not in _opened and (stat := _stat(file)) is not None
    ]
    files += [(str(file), None, False) for file in list(_written)]
    fresh = [entry for entry in files if entry[0] not in _reported[1]]
    _reported = (AgentFiles.count_files() + len(_written), _reported[1] | {path for path, _, _ in fresh})
    return fresh


def learn(files: OpenedFiles) -> None:
    for path, stat, scoring in files:
        if stat is None:
            _written.add(Path(path))
        else:
            _opened.setdefault(Path(path), _Seen(stat, scoring))


class LoadingScorers:
    def __enter__(self) -> None:
        _scoring.on = True

    def __exit__(self, *_: object) -> None:
        _scoring.on = False


def _on_event(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open":
        return
    path, flags = arguments[0], arguments[2]
    if not isinstance(path, (str, bytes)) or not isinstance(flags, int):
        return
    full = os.path.abspath(os.fsdecode(path))
    if not full.startswith(tuple(_roots)) or full.endswith(".pyc") or f"{os.sep}.osmosis{os.sep}" in full:
        return
    file = Path(full)
    if flags & (os.O_WRONLY | os.O_RDWR):
        _written.add(file)
    elif file not in _opened and len(_opened) < MOST_FILES and (stat := _stat(file)) is not None:
        _opened[file] = _Seen(stat, getattr(_scoring, "on", False))


def _stat(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size)


def hash_file(file: Path) -> str | None:
    try:
        stat = file.stat()
        if stat.st_size > MOST_BYTES:
            return f"{stat.st_size} bytes of {stat.st_mtime_ns}"
        with file.open("rb") as source:
            return hashlib.sha256(source.read()).hexdigest()[:16]
    except OSError:
        return None


def _imported(roots: tuple[str, ...]) -> set[Path]:
    elsewhere = tuple(home[0] for home in _HOMES if not any(root.startswith(home) for root in roots))
    files = set()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str) or not name.endswith(".py") or name.startswith(elsewhere):
            continue
        if (file := _real(name)).startswith(roots):
            files.add(Path(file))
    return files


_real_folder = functools.lru_cache(maxsize=4096)(os.path.realpath)


@functools.lru_cache(maxsize=4096)
def _real(name: str) -> str:
    folder, _, base = name.rpartition(os.sep)
    if not folder or os.path.islink(name):
        return os.path.realpath(name)
    return f"{_real_folder(folder)}{os.sep}{base}"
