"""Which files an agent and its score functions are made of, beyond the modules that are imported when they are loaded.

Counted are the files of the agent's folder that git tracks, that code opened for reading while it ran here, and that
it imported late; each by a digest, so that a resume can name what changed. A file that was also written is a result,
not an input, and what is only new changes nothing that is stored. Nothing outside the folder is looked at.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from osmosis.base.git import Git, GitError

MOST_FILES = 1000
MOST_BYTES = 16 * 2**20
"""A larger file is known by its size and time instead of its content."""
CHANGED_MEANWHILE = "changed while it ran"
_SKIPPED = {
    ".git", ".osmosis", ".venv", "venv", "__pycache__", "node_modules", "site-packages", "dist-packages", ".github",
    "tests", "docs",
}  # fmt: skip
_TALK = ("readme", "license", "changelog", "contributing", ".gitignore", ".gitattributes")
"""Files that git tracks and that no agent reads, unless it is seen to."""

Manifest = dict[str, dict[str, str]]
"""`agent` and `score`: path from the base folder, to digest."""


class AgentFiles:
    """The files of one run's agent (`folder`) and score functions, named by their paths from `base_dir`."""

    def __init__(
        self, base_dir: Path, folder: Path, *, agent: Iterable[Path], score: Iterable[Path], others: Iterable[Path]
    ) -> None:
        self._base = base_dir.resolve()
        self._folder = folder.resolve()
        self._agent = {file.resolve() for file in agent}
        self._score = {file.resolve() for file in score} - self._agent
        self._others = {file.resolve() for file in others}
        """The dataset, and whatever else has a hash of its own."""
        self._tracked = self._git_files()

    def now(self) -> Manifest:
        """What is known by now: more, the longer the code has run."""
        opened = {file: seen for file, seen in list(_opened.items()) if self._inside(file) and file not in _written}
        scored = {file for file, seen in opened.items() if seen.scoring}
        imported = _imported((f"{self._folder}{os.sep}",))
        agent = self._agent | self._tracked | set(opened) | {file for file in imported if self._inside(file)}
        agent -= self._score | self._others | scored
        score = (self._score | scored) - self._others
        return {"agent": self._digests(agent, opened), "score": self._digests(score, opened)}

    @staticmethod
    def seen() -> int:
        """A number that grows when there may be more to know."""
        return len(_opened) + len(sys.modules)

    def changed(self, stored: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
        """Of the files of a stored manifest: those that are gone or different now."""
        found = {
            part: [name for name, digest in files.items() if self._differs(name, digest)]
            for part, files in stored.items()
        }
        return {part: names for part, names in found.items() if names}

    def _differs(self, name: str, digest: str) -> bool:
        file = self._base / name
        return file not in self._others and _digest(file) != digest

    def _digests(self, files: set[Path], opened: Mapping[Path, _Seen]) -> dict[str, str]:
        found = {}
        for file in sorted(files)[:MOST_FILES]:
            digest = _digest(file)
            if digest is not None:
                seen = opened.get(file)
                stale = seen is not None and seen.stat != _stat(file)
                found[os.path.relpath(file, self._base)] = CHANGED_MEANWHILE if stale else digest
        return found

    def _inside(self, file: Path) -> bool:
        return self._folder in file.parents and not _SKIPPED.intersection(file.relative_to(self._folder).parts)

    def _git_files(self) -> set[Path]:
        if not any((folder / ".git").exists() for folder in (self._folder, *self._folder.parents)):
            return set()
        try:
            names = Git(self._folder, timeout_s=10.0).text("ls-files", "-z").split("\0")
        except GitError:
            return set()
        files = (self._folder / name for name in names if name and not name.lower().startswith(_TALK))
        kept = [file for file in files if self._inside(file) and file.is_file()]
        return set(kept) if len(kept) <= MOST_FILES else set()


class _Seen:
    """How a file was when it was first opened, and whether a score function did."""

    __slots__ = ("scoring", "stat")

    def __init__(self, stat: tuple[int, int], scoring: bool) -> None:
        self.stat = stat
        self.scoring = scoring


_opened: dict[Path, _Seen] = {}
_written: set[Path] = set()
_roots: list[str] = []
_told: tuple[int, frozenset[str]] = (0, frozenset())
_scoring = threading.local()
_HOMES = tuple(
    (f"{home}{os.sep}", f"{home.resolve()}{os.sep}") for home in (Path(os.__file__).parent, Path(__file__).parents[1])
)
"""Of Python's own modules and of ours: most of what is imported, and nobody's agent unless it lies there, too."""


def watch(base_dir: Path) -> None:
    """From now on every file below `base_dir` that this process opens is known. Costs nothing where none is opened."""
    root = str(base_dir.resolve()) + os.sep
    if not _roots:
        sys.addaudithook(_on_event)
    if root not in _roots:
        _roots.append(root)


Told = list[tuple[str, tuple[int, int] | None, bool]]
"""Path, size and time (None for a file that was written), and whether a score function opened it."""


def news() -> Told:
    """What this process has seen since it was last asked: for the process that keeps the journal."""
    global _told
    if _told[0] == AgentFiles.seen() + len(_written):
        return []
    found: Told = [(str(file), seen.stat, seen.scoring) for file, seen in list(_opened.items())]
    found += [
        (str(file), stat, False)
        for file in _imported(tuple(_roots))
        if file not in _opened and (stat := _stat(file)) is not None
    ]
    found += [(str(file), None, False) for file in list(_written)]
    fresh = [one for one in found if one[0] not in _told[1]]
    _told = (AgentFiles.seen() + len(_written), _told[1] | {path for path, _, _ in fresh})
    return fresh


def learn(told: Told) -> None:
    """What another process of the same run has seen."""
    for path, stat, scoring in told:
        if stat is None:
            _written.add(Path(path))
        else:
            _opened.setdefault(Path(path), _Seen(stat, scoring))


class loading_scorers:
    """Inside the block, what is opened in this thread belongs to the score functions."""

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
        scoring = getattr(_scoring, "on", False) or threading.current_thread().name.startswith("score-")
        _opened[file] = _Seen(stat, scoring)


def _stat(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size)


def _digest(file: Path) -> str | None:
    """None for what cannot be read."""
    try:
        stat = file.stat()
        if stat.st_size > MOST_BYTES:
            return f"{stat.st_size} bytes of {stat.st_mtime_ns}"
        with file.open("rb") as source:
            return hashlib.sha256(source.read()).hexdigest()[:16]
    except OSError:
        return None


def _imported(roots: tuple[str, ...]) -> set[Path]:
    """The files of the modules that are imported by now and lie below one of these folders (with a separator at the
    end), links followed."""
    elsewhere = tuple(home[0] for home in _HOMES if not any(root.startswith(home) for root in roots))
    found = set()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str) or not name.endswith(".py") or name.startswith(elsewhere):
            continue
        if (file := _real(name)).startswith(roots):
            found.add(Path(file))
    return found


@functools.lru_cache(maxsize=4096)
def _real(name: str) -> str:
    """`os.path.realpath`, for a thousand files in a few folders; a module stays what it was when first seen."""
    folder, _, base = name.rpartition(os.sep)
    if not folder or os.path.islink(name):
        return os.path.realpath(name)
    return f"{_real_folder(folder)}{os.sep}{base}"


@functools.lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)
