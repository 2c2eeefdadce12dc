"""Git facts of a workspace: one `git status` and three small look-ups, through GitPython.

Only reads. Rules about what the facts mean are in `preflight`; commits, pushes and snapshots are in `gitwrite`.
No credential of a URL leaves this module.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import OsmosisError, ValidationError
from ..records.source import FileFact, PinnedCommit, RolloutFiles, Source
from .remote import Remote, parse_remote, scrub

if TYPE_CHECKING:
    from git import Git

__all__ = [
    "GitError",
    "Remote",
    "commit_of_pin",
    "git_at",
    "parse_remote",
    "read_source",
    "rollout_files",
    "run_git",
    "shown",
]

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
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


class GitError(OsmosisError):
    """Git refused or is not there; the message carries what git said, without credentials."""

    code = "PLATFORM_ERROR"


def git_at(folder: Path) -> Git:
    """Git in a folder, quiet: no prompts, no locks taken by readers, messages in English."""
    try:
        from git import Git
    except ImportError:
        raise GitError("git is not installed, or not on PATH", hint="install git 2.25 or newer") from None
    client = Git(str(folder))
    client.update_environment(**_QUIET)
    return client


def run_git(client: Git, *arguments: str, **options: object) -> str:
    """One git command; its output as text. Raises GitError with what git said."""
    from git.exc import GitCommandError, GitCommandNotFound

    try:
        out = client.execute(["git", *arguments], **options)  # type: ignore[call-overload]
    except GitCommandNotFound:
        raise GitError("git is not installed, or not on PATH", hint="install git 2.25 or newer") from None
    except GitCommandError as error:
        raise _explained(arguments, error) from None
    return out if isinstance(out, str) else out.decode("utf-8", "surrogateescape")


def read_source(root: Path) -> Source | None:
    """The state of the repository that holds `root`; None when there is none.

    Paths in the answer are relative to `root`; changes elsewhere in a bigger repository are left out.
    """
    client = git_at(root)
    try:
        out = run_git(client, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--", ".")
    except GitError as error:
        if error.details.get("no_repository"):
            return None
        raise
    # `.git` here (a folder, or a file in a worktree) means that this is the top: one call less.
    prefix = "" if (root / ".git").exists() else run_git(client, "rev-parse", "--show-prefix")
    source = _parse_status(shown(out), prefix)
    source.root = str(root)
    if source.detached or source.conflicts:
        source.operation = _operation(client)
    _add_remote(client, source)
    return source


def _operation(client: Git) -> str | None:
    folder = Path(run_git(client, "rev-parse", "--absolute-git-dir"))
    return next((name for mark, name in _MARKS.items() if (folder / mark).exists()), None)


def shown(text: str) -> str:
    """Output of git for people and for JSON: bytes that are no UTF-8 replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _add_remote(client: Git, source: Source) -> None:
    head = run_git(client, "for-each-ref", "--format=%(symref:short)", "refs/remotes/origin/HEAD")
    source.default_branch = head.partition("/")[2] or None
    try:
        # get-url expands insteadOf, as a push and a clone do.
        url = run_git(client, "remote", "get-url", "origin")
    except GitError:
        return
    try:
        remote = parse_remote(url)
    except ValidationError:
        source.remote_url = scrub(url)
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
    client = git_at(root)
    folder = f"rollouts/{rollout}"
    facts = RolloutFiles(rollout=rollout)
    files: list[str] = []
    for entry in run_git(client, "ls-files", "--stage", "-z", "--", folder).split("\0"):
        meta, _, path = entry.partition("\t")
        if not path:
            continue
        if meta.startswith("160000"):
            facts.submodules.append(shown(path))
            continue
        files.append(path)
        _judge_file(facts, root, path, large)
    facts.tracked = len(files)
    filtered = _lfs_by_attribute(client, root, folder, files)
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


def _lfs_by_attribute(client: Git, root: Path, folder: str, paths: list[str]) -> list[str]:
    """Files whose attributes say `filter=lfs`: their content is here, but a plain checkout gets pointers."""
    spots = [root / ".gitattributes", *(root / folder).rglob(".gitattributes")]
    if not any(s.is_file() and "filter=lfs" in s.read_text("utf-8", "replace") for s in spots):
        return []
    found = []
    for start in range(0, len(paths), 500):  # a command line has an end
        chunk = paths[start : start + 500]
        words = run_git(client, "check-attr", "-z", "filter", "--", *chunk).split("\0")
        found += [path for path, value in zip(words[0::3], words[2::3], strict=False) if value == "lfs"]
    return found


def commit_of_pin(root: Path, sha: str, rollout: str, entrypoint: str) -> PinnedCommit:
    """Look a pinned commit up in the local repository. Raises only when git itself fails."""
    client = git_at(root)
    pin = PinnedCommit(asked=sha)
    try:
        pin.found = run_git(client, "rev-parse", "--verify", "--quiet", f"{sha}^{{commit}}") or None
    except GitError as error:
        pin.ambiguous = "ambiguous" in error.message
        return pin
    if not pin.found:
        return pin
    pin.on_remote = bool(run_git(client, "branch", "--remotes", "--contains", pin.found))
    listed = run_git(client, "ls-tree", "--name-only", "-z", pin.found, "--", f"rollouts/{rollout}/{entrypoint}")
    pin.has_entrypoint = bool(listed.strip("\0"))
    return pin


def _explained(arguments: tuple[str, ...], error: Exception) -> GitError:
    said = scrub(str(getattr(error, "stderr", "") or "")).strip()
    said = re.sub(r"^stderr:\s*'?|'$", "", said).strip()
    lower = said.lower()
    name = next((a for a in arguments if re.match(r"^[a-z][a-z-]*$", a)), "")
    if "not a git repository" in lower:
        return GitError("this is not a git repository", hint="git init, or osmosis init", no_repository=True)
    if "dubious ownership" in lower:
        folder = re.search(r"at '([^']+)'", said)
        return GitError(
            "git does not trust this repository: it belongs to another user",
            hint=f"git config --global --add safe.directory {folder[1] if folder else '<folder>'}",
        )
    last = [line for line in said.splitlines() if line.strip()]
    return GitError(f"git {name} failed: {' / '.join(last[-3:]) or 'no message'}", stderr=said)
