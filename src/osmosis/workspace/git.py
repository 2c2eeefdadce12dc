"""Git facts of a workspace: one `git status` and three small look-ups.

Only reads. Rules about what the facts mean are in `preflight`; commits, pushes and snapshots are in `gitwrite`.
No credential of a URL leaves this module.
"""

from __future__ import annotations

import re
from pathlib import Path

from osmosis.base.git import Git, GitError, NoRepository, shown
from osmosis.base.git_url import parse_git_url
from osmosis.base.redact import without_credentials
from osmosis.errors import ValidationError
from osmosis.records.source import FileFact, PinnedCommit, RolloutFiles, Source

LARGE_FILE = 10 * 1024 * 1024
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
_MARKS = {
    "rebase-merge": "rebase",
    "rebase-apply/applying": "am",
    "rebase-apply": "rebase",
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}
"""What lies in the git folder in the middle of an operation."""


def read_source(root: Path) -> Source | None:
    """The state of the repository that holds `root`; None when there is none.

    Paths in the answer are relative to `root`; changes elsewhere in a bigger repository are left out.
    """
    git = Git(root)
    try:
        out = git.text("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--", ".")
    except NoRepository:
        return None
    # `.git` here (a folder, or a file in a worktree) means that this is the top: one call less.
    prefix = "" if (root / ".git").exists() else git.text("rev-parse", "--show-prefix")
    source = _parse_status(shown(out), prefix)
    source.root = str(root)
    if source.detached or source.conflicts:
        source.operation = _operation(git)
    _add_remote(git, source)
    return source


def _operation(git: Git) -> str | None:
    folder = Path(git.text("rev-parse", "--absolute-git-dir"))
    return next((name for mark, name in _MARKS.items() if (folder / mark).exists()), None)


def _add_remote(git: Git, source: Source) -> None:
    head = git.text("for-each-ref", "--format=%(symref:short)", "refs/remotes/origin/HEAD")
    source.default_branch = head.partition("/")[2] or None
    try:
        # get-url expands insteadOf, as a push and a clone do.
        url = git.text("remote", "get-url", "origin")
    except GitError:
        return
    try:
        remote = parse_git_url(url)
    except ValidationError:
        source.remote_url = without_credentials(url)
        return
    source.remote_url, source.remote_host, source.identity = remote.display, remote.host, remote.identity


def _parse_status(out: str, prefix: str) -> Source:
    source = Source(root="", prefix=prefix)
    entries = iter(out.split("\0"))
    for entry in entries:
        kind, _, rest = entry.partition(" ")
        if kind == "#":
            _header(source, rest)
        elif kind == "1":
            source.dirty.append(_inside(prefix, rest.split(" ", 7)[-1]))
        elif kind == "u":
            source.dirty.append(_inside(prefix, rest.split(" ", 9)[-1]))
            source.conflicts.append(source.dirty[-1])
        elif kind == "2":
            source.dirty.append(_inside(prefix, rest.split(" ", 8)[-1]))
            if (old := _inside(prefix, next(entries, ""))) and old not in source.dirty:
                source.dirty.append(old)
        elif kind == "?":
            source.untracked.append(_inside(prefix, rest))
    return source


def _header(source: Source, rest: str) -> None:
    key, _, value = rest.partition(" ")
    if key == "branch.oid":
        source.commit = None if value == "(initial)" else value
    elif key == "branch.head":
        source.detached = value == "(detached)"
        source.branch = None if source.detached else value
    elif key == "branch.upstream":
        source.upstream = value
    elif key == "branch.ab" and (found := re.match(r"\+(\d+) -(\d+)", value)):
        source.ahead, source.behind = int(found[1]), int(found[2])


def _inside(prefix: str, path: str) -> str:
    return path[len(prefix) :] if prefix and path.startswith(prefix) else path


def rollout_files(root: Path, rollout: str, *, large: int = LARGE_FILE) -> RolloutFiles:
    """What git holds under `rollouts/<rollout>`: submodules, LFS pointers and files over `large` bytes."""
    git = Git(root)
    folder = f"rollouts/{rollout}"
    facts = RolloutFiles(rollout=rollout)
    files: list[str] = []
    for entry in git.text("ls-files", "--stage", "-z", "--", folder).split("\0"):
        meta, _, path = entry.partition("\t")
        if not path:
            continue
        if meta.startswith("160000"):
            facts.submodules.append(shown(path))
            continue
        files.append(path)
        _judge_file(facts, root, path, large)
    facts.tracked = len(files)
    filtered = _lfs_by_attribute(git, root, folder, files)
    facts.lfs = sorted({*facts.lfs, *map(shown, filtered)})
    return facts


def _judge_file(facts: RolloutFiles, root: Path, path: str, large: int) -> None:
    file = root / path
    try:
        size = file.lstat().st_size
        if size > large:
            facts.large.append(FileFact(path=shown(path), size=size))
        elif size < 1024 and file.is_file():
            with file.open("rb") as opened:
                if opened.read(len(LFS_POINTER)) == LFS_POINTER:
                    facts.lfs.append(shown(path))
    except OSError:
        return  # deleted in the working tree: `git status` already says so


def _lfs_by_attribute(git: Git, root: Path, folder: str, paths: list[str]) -> list[str]:
    """Files whose attributes say `filter=lfs`: their content is here, but a plain checkout gets pointers."""
    spots = [root / ".gitattributes", *(root / folder).rglob(".gitattributes")]
    if not any(s.is_file() and "filter=lfs" in s.read_text("utf-8", "replace") for s in spots):
        return []
    found = []
    for start in range(0, len(paths), 500):  # a command line has an end
        chunk = paths[start : start + 500]
        words = git.text("check-attr", "-z", "filter", "--", *chunk).split("\0")
        found += [path for path, value in zip(words[0::3], words[2::3], strict=False) if value == "lfs"]
    return found


def commit_of_pin(root: Path, sha: str, rollout: str, entrypoint: str) -> PinnedCommit:
    """Look a pinned commit up in the local repository. Raises only when git itself fails."""
    git = Git(root)
    pin = PinnedCommit(asked=sha)
    try:
        pin.found = git.text("rev-parse", "--verify", "--quiet", f"{sha}^{{commit}}") or None
    except GitError as error:
        pin.ambiguous = "ambiguous" in error.message
        return pin
    if not pin.found:
        return pin
    pin.on_remote = bool(git.text("branch", "--remotes", "--contains", pin.found))
    listed = git.text("ls-tree", "--name-only", "-z", pin.found, "--", f"rollouts/{rollout}/{entrypoint}")
    pin.has_entrypoint = bool(listed.strip("\0"))
    return pin
