"""A repository's folder. Every function starts git, so no session is open; what was synced once stays reachable."""

import contextlib
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from osmosis.base import locks
from osmosis.base.git import Git, GitError, GitMissing, GitTimeout, GitTooLarge, sealed_environ
from osmosis.errors import Conflict, PlatformError, ValidationError
from osmosis.platform import tables
from osmosis.platform.git.remotes import Remote, reaching
from osmosis.platform.git.repositories import get_credential, parse_repository_url
from osmosis.platform.settings import PlatformSettings

HIDDEN_REFS = "refs/osmosis"
SNAPSHOT_REFS = "refs/osmosis/snapshots"
SYNCED_REFS = "refs/osmosis/synced"
MAX_PUSH_BYTES = 4 * 1024**3
FETCH_TIMEOUT_S = 600.0
COMMAND_TIMEOUT_S = 60.0
LOOK_UP_TIMEOUT_S = 60.0
LOOK_UP_TURN_S = 5.0
MAX_MESSAGE = 500
GC_SETTINGS = {"gc.auto": "6000", "gc.autoDetach": "false", "gc.autoPackLimit": "60"}
FULL_SHA = re.compile(r"^[0-9a-f]{40}\Z")
# Non-fast-forward pushes are allowed, as in any personal repository; what was synced once is kept reachable by
# a ref under SYNCED_REFS that no push can move, so a run's commit never disappears.
_BARE_SETTINGS = {
    "http.receivepack": "true",
    "http.uploadpack": "true",
    "core.logAllRefUpdates": "true",
    "receive.autogc": "false",
    "receive.denyDeleteCurrent": "refuse",
    "receive.maxInputSize": str(MAX_PUSH_BYTES),
    "receive.hideRefs": SYNCED_REFS,
    "uploadpack.hideRefs": HIDDEN_REFS,
    "uploadpack.allowAnySHA1InWant": "true",
}
_PINNED_REFS = "refs/osmosis/pinned"
_HEAD_FORMAT = "%(objectname)%00%(refname:lstrip=2)%00%(authorname)%00%(committerdate:unix)%00%(contents:subject)%00"


class TooSlow(PlatformError): ...


@dataclass(frozen=True, slots=True)
class Branch:
    branch: str
    commit: str
    author: str
    message: str
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class RepositoryFolder:
    id: str
    kind: str
    url: str
    path: Path
    default_branch: str
    trusted: bool = False
    credential: str = field(default="", repr=False)
    until: float = math.inf
    limit_s: float = math.inf

    @classmethod
    def of(cls, repository: tables.Repository, settings: PlatformSettings) -> "RepositoryFolder":
        return cls(
            repository.id,
            repository.kind,
            repository.url,
            settings.located(repository.path),
            repository.default_branch,
            repository.trusted,
            get_credential(repository, settings),
        )

    @property
    def remote(self) -> Remote:
        return Remote(self.url, self.trusted, self.credential)

    def git(self, environ: Mapping[str, str], **settings: str) -> Git:
        timeout_s = self.seconds(COMMAND_TIMEOUT_S)
        return Git.bare(self.path, sealed_environ(environ, settings=settings), timeout_s=timeout_s)

    def within(self, seconds: float, *, limit_s: float | None = None) -> "RepositoryFolder":
        return replace(self, until=time.monotonic() + seconds, limit_s=limit_s or seconds)

    def seconds(self, most: float) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TooSlow(f"it took longer than {self.limit_s:g} s")
        return min(most, left)


def lock_file(folder: RepositoryFolder) -> Path:
    return folder.path.with_suffix(".lock")


@contextlib.contextmanager
def locked(folder: RepositoryFolder) -> Iterator[None]:
    """Allow one sync of a repository at a time on this machine; TooSlow when another one outlasts the deadline."""
    lock = locks.FileLock(lock_file(folder))
    if not lock.take(timeout_s=None if math.isinf(folder.until) else max(0.0, folder.until - time.monotonic())):
        raise TooSlow(f"another sync of this repository was running for all of its {folder.limit_s:g} s")
    try:
        yield
    finally:
        lock.release()


def prepare(folder: RepositoryFolder, settings: PlatformSettings) -> Path:
    """Create the bare folder of a repository unless it exists; several processes may do so at once."""
    path = folder.path
    if (path / "HEAD").is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        environ = sealed_environ(settings.environ)
        branch = f"--initial-branch={folder.default_branch}"
        Git.bare(None, environ).run("init", "--quiet", "--bare", "--template=", branch, str(draft))
        for key, value in _BARE_SETTINGS.items():
            Git.bare(draft, environ).run("config", key, value)
        with contextlib.suppress(OSError):
            os.rename(draft, path)  # fails when another process was first: its folder is as good
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def fetch(folder: RepositoryFolder, settings: PlatformSettings) -> str | None:
    """Bring a mirror up to date and return the remote's default branch. Raise GitError, ValidationError."""
    prepare(folder, settings)
    if folder.kind == "internal":
        return None
    with reaching(folder.remote, settings) as environ:
        git = Git.bare(None, environ, timeout_s=folder.seconds(COMMAND_TIMEOUT_S))
        symref = git.run("ls-remote", "--symref", "--", folder.url, "HEAD")
        refspecs = [f"+{name}/*:{name}/*" for name in ("refs/heads", "refs/tags", SNAPSHOT_REFS)]
        _fetch(folder, settings, environ, "--prune", refspecs)
    match = re.match(rb"ref: refs/heads/(\S+)\tHEAD", symref)
    return match[1].decode() if match else None


def _fetch(
    folder: RepositoryFolder, settings: PlatformSettings, environ: Mapping[str, str], flag: str, refspecs: Iterable[str]
) -> None:
    limit = settings.max_fetch_bytes
    timeout_s = folder.seconds(FETCH_TIMEOUT_S)
    git = replace(Git.bare(folder.path, environ, timeout_s=timeout_s), max_file_bytes=limit)
    try:
        git.run("fetch", "--quiet", flag, "--no-tags", "--no-write-fetch-head", "--", folder.url, *refspecs)
    except GitTooLarge:
        for left in (folder.path / "objects" / "pack").glob("tmp_*"):
            left.unlink(missing_ok=True)
        raise ValidationError(
            f"the repository sends more than {limit / 1e6:g} MB at once, which is the most this platform fetches",
            hint="take large files out of it (git lfs, or a dataset), or ask an operator to raise "
            "OSMOSIS_MAX_FETCH_BYTES",
        ) from None


def list_branches(folder: RepositoryFolder, environ: Mapping[str, str]) -> list[Branch]:
    args = ["for-each-ref", "--sort=-committerdate", f"--format={_HEAD_FORMAT}", "refs/heads"]
    out = folder.git(environ).run(*args).decode(errors="replace")
    branches = []
    for line in out.split("\0\n"):
        if line:
            commit, branch, author, moment, message = line.split("\0")
            when = datetime.fromtimestamp(int(moment or 0), timezone.utc)
            branches.append(Branch(branch, commit, author, message[:MAX_MESSAGE], when))
    return branches


def settle_default_branch(
    folder: RepositoryFolder, named: str | None, heads_now: Iterable[Branch], environ: Mapping[str, str]
) -> str:
    """Return the remote's default branch, else ours, `main`, `master` or the newest; HEAD names it."""
    branches = [head.branch for head in heads_now]
    chosen = named or folder.default_branch
    if chosen not in branches and branches:
        chosen = next((name for name in ("main", "master") if name in branches), branches[0])
    if chosen != folder.default_branch or named:
        folder.git(environ).run("symbolic-ref", "HEAD", f"refs/heads/{chosen}")
    return chosen


def find_commit(folder: RepositoryFolder, text: str, settings: PlatformSettings) -> str | None:
    """Return the full sha for 7 to 40 hex digits, or None; the remote is asked once for a full one."""
    short = text.lower()
    if commit := _in_folder(folder, short, settings.environ):
        return commit
    if folder.kind == "external" and FULL_SHA.fullmatch(short):
        return _fetch_commit(folder.within(min(LOOK_UP_TIMEOUT_S, settings.sync_limit_s)), short, settings)
    return None


def _fetch_commit(folder: RepositoryFolder, full: str, settings: PlatformSettings) -> str | None:
    turn = locks.FileLock(folder.path.with_suffix(".look-up"))
    if not turn.take(timeout_s=min(LOOK_UP_TURN_S, folder.limit_s)):
        raise _no_answer(folder, full)
    try:
        if commit := _in_folder(folder, full, settings.environ):
            return commit
        with reaching(folder.remote, settings) as environ:
            _fetch(folder, settings, environ, "--no-prune", [f"+{full}:{_PINNED_REFS}/{full}"])
        return _in_folder(folder, full, settings.environ)
    except (GitTimeout, TooSlow):
        raise _no_answer(folder, full) from None
    except (GitError, ValidationError):
        return None
    finally:
        turn.release()


def _no_answer(folder: RepositoryFolder, full: str) -> ValidationError:
    message = f"commit {full[:12]} is not here, and the repository it should come from does not answer"
    return ValidationError(message, hint="try again, or run `osmosis sync` and see what it says", field="commit_sha")


def _in_folder(folder: RepositoryFolder, short: str, environ: Mapping[str, str]) -> str | None:
    if not (folder.path / "HEAD").is_file():
        return None
    args = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{short}^{{commit}}"]
    try:
        return folder.git(environ).text(*args)
    except GitError as error:
        if "ambiguous" in error.message:
            message = f"commit {short} matches several commits"
            raise Conflict(message, hint="give more characters of the commit") from error
        return None


def branch_head(folder: RepositoryFolder, branch: str, environ: Mapping[str, str]) -> str | None:
    if not (folder.path / "HEAD").is_file():
        return None
    try:
        return folder.git(environ).text("show-ref", "--verify", "--hash", f"refs/heads/{branch}")
    except GitError:
        return None


def check_url(remote: Remote, settings: PlatformSettings) -> None:
    url = parse_repository_url(remote.url).url
    try:
        with reaching(remote, settings) as environ:
            Git.bare(None, environ, timeout_s=30.0).run("ls-remote", "--", url, "HEAD")
    except GitMissing:
        raise
    except GitError as error:
        issue = {"key": "repository_url", "message": error.message}
        message = f"the repository cannot be read: {error.message}"
        raise ValidationError(message, hint=error.hint, issues=[issue]) from error
