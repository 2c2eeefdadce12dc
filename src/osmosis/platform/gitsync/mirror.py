"""The git side of Git Sync: bring a repository's folder up to date and read what its branches point at.

Every function starts git, so none is called with a session open. Of an external repository a bare mirror is kept:
its branches, tags and snapshot refs. What was synced once stays reachable, also after a force push.
"""

from __future__ import annotations

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
from osmosis.platform.settings import PlatformSettings

from .remotes import Remote, reaching
from .repositories import credential_of, parse_repository_url

HIDDEN_REFS = "refs/osmosis"
SNAPSHOT_REFS = "refs/osmosis/snapshots"
SYNCED_REFS = "refs/osmosis/synced"
MAX_PUSH_BYTES = 4 * 1024**3
FETCH_TIMEOUT_S = 600.0
COMMAND_TIMEOUT_S = 60.0
LOOK_UP_TIMEOUT_S = 60.0
"""For a commit that a config names and a mirror lacks: somebody waits for the answer."""
LOOK_UP_TURN_S = 5.0
MAX_MESSAGE = 500
LOOSE_OBJECTS = 6000
"""From about this many unpacked objects on, a folder is packed after a sync."""
FULL_SHA = re.compile(r"^[0-9a-f]{40}$")
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


class TooSlow(PlatformError):
    """What is done with a repository was not over in time."""


@dataclass(frozen=True, slots=True)
class Head:
    """A branch and the commit it points at."""

    branch: str
    commit: str
    author: str
    message: str
    """First line of the commit message."""
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class MirrorPlace:
    """Where a repository is: what git calls need of its row, usable after the session is closed."""

    id: str
    kind: str
    url: str
    path: Path
    default_branch: str
    trusted: bool = False
    credential: str = field(default="", repr=False)
    """This and the one before: as in `remotes.Remote`."""
    until: float = math.inf
    """When (`time.monotonic`) whatever is done there has to be over."""
    limit_s: float = math.inf
    """How long that was from the beginning."""

    @classmethod
    def of(cls, repository: tables.Repository, settings: PlatformSettings) -> MirrorPlace:
        path = settings.located(repository.path)
        credential = credential_of(repository, settings)
        return cls(
            repository.id,
            repository.kind,
            repository.url,
            path,
            repository.default_branch,
            repository.trusted,
            credential,
        )

    @property
    def remote(self) -> Remote:
        return Remote(self.url, self.trusted, self.credential)

    def git(self, environ: Mapping[str, str], **settings: str) -> Git:
        """Git on the folder, which sees nothing of the person's configuration."""
        timeout_s = self.seconds(COMMAND_TIMEOUT_S)
        return Git.bare(self.path, sealed_environ(environ, settings=settings), timeout_s=timeout_s)

    def within(self, seconds: float, *, limit_s: float | None = None) -> MirrorPlace:
        """The same, for something that may take so long from now on."""
        return replace(self, until=time.monotonic() + seconds, limit_s=limit_s or seconds)

    def seconds(self, most: float) -> float:
        """How long the next step may take. TooSlow when the time is over."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TooSlow(f"it took longer than {self.limit_s:g} s")
        return min(most, left)


def lock_file(place: MirrorPlace) -> Path:
    """Held by whoever works on the repository's folder."""
    return place.path.with_suffix(".lock")


@contextlib.contextmanager
def locked(place: MirrorPlace) -> Iterator[None]:
    """One sync of a repository at a time, across threads and processes of this machine. TooSlow when that of another
    one was not over in time."""
    lock = locks.FileLock(lock_file(place))
    if not lock.take(timeout_s=None if math.isinf(place.until) else max(0.0, place.until - time.monotonic())):
        raise TooSlow(f"another sync of this repository was running for all of its {place.limit_s:g} s")
    try:
        yield
    finally:
        lock.release()


def prepare(place: MirrorPlace, settings: PlatformSettings) -> Path:
    """Make the bare folder of a repository if it is not there; safe to call at any time, by several at once.

    Starts git: never call it inside a session. GitError when git cannot.
    """
    path = place.path
    if (path / "HEAD").is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        environ = sealed_environ(settings.environ)
        Git.bare(None, environ).run(
            "init", "--quiet", "--bare", "--template=", f"--initial-branch={place.default_branch}", str(made)
        )
        for key, value in _BARE_SETTINGS.items():
            Git.bare(made, environ).run("config", key, value)
        with contextlib.suppress(OSError):
            os.rename(made, path)  # fails when another process was first: its folder is as good
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return path


def fetch(place: MirrorPlace, settings: PlatformSettings) -> str | None:
    """Bring a mirror up to date and return the remote's default branch; a hosted repository needs no fetch.

    GitError when the remote cannot be read: unknown host, refused, no credential, too slow. ValidationError when
    what it sends at once is larger than this platform takes.
    """
    prepare(place, settings)
    if place.kind == "internal":
        return None
    with reaching(place.remote, settings) as environ:
        symref = Git.bare(None, environ, timeout_s=place.seconds(COMMAND_TIMEOUT_S)).run(
            "ls-remote", "--symref", "--", place.url, "HEAD"
        )
        refspecs = [f"+{name}/*:{name}/*" for name in ("refs/heads", "refs/tags", SNAPSHOT_REFS)]
        _fetch(place, settings, environ, "--prune", refspecs)
    match = re.match(rb"ref: refs/heads/(\S+)\tHEAD", symref)
    return match[1].decode() if match else None


def _fetch(
    place: MirrorPlace, settings: PlatformSettings, environ: Mapping[str, str], flag: str, refspecs: Iterable[str]
) -> None:
    limit = settings.max_fetch_bytes
    timeout_s = place.seconds(FETCH_TIMEOUT_S)
    git = replace(Git.bare(place.path, environ, timeout_s=timeout_s), max_file_bytes=limit)
    try:
        git.run("fetch", "--quiet", flag, "--no-tags", "--no-write-fetch-head", "--", place.url, *refspecs)
    except GitTooLarge:
        for left in (place.path / "objects" / "pack").glob("tmp_*"):
            left.unlink(missing_ok=True)
        raise ValidationError(
            f"the repository sends more than {limit / 1e6:g} MB at once, which is the most this platform fetches",
            hint="take large files out of it (git lfs, or a dataset), or ask an operator to raise "
            "OSMOSIS_MAX_FETCH_BYTES",
        ) from None


def heads(place: MirrorPlace, environ: Mapping[str, str]) -> list[Head]:
    """All branches, the most recently committed first."""
    args = ["for-each-ref", "--sort=-committerdate", f"--format={_HEAD_FORMAT}", "refs/heads"]
    out = place.git(environ).run(*args).decode(errors="replace")
    found = []
    for line in out.split("\0\n"):
        if line:
            commit, branch, author, moment, message = line.split("\0")
            when = datetime.fromtimestamp(int(moment or 0), timezone.utc)
            found.append(Head(branch, commit, author, message[:MAX_MESSAGE], when))
    return found


def settle_default_branch(
    place: MirrorPlace, named: str | None, found: Iterable[Head], environ: Mapping[str, str]
) -> str:
    """The default branch, which HEAD then names.

    The remote's own choice first; else the present one if it exists; else `main`, `master` or the newest branch,
    so that a first push of any branch works.
    """
    branches = [head.branch for head in found]
    wanted = named or place.default_branch
    if wanted not in branches and branches:
        wanted = next((name for name in ("main", "master") if name in branches), branches[0])
    if wanted != place.default_branch or named:
        place.git(environ).run("symbolic-ref", "HEAD", f"refs/heads/{wanted}")
    return wanted


def keep(place: MirrorPlace, commits: Iterable[str], environ: Mapping[str, str]) -> None:
    """Hold commits by refs that no push can move."""
    lines = "".join(f"update {SYNCED_REFS}/{commit} {commit}\n" for commit in commits)
    if lines:
        place.git(environ).run("update-ref", "--stdin", stdin=lines.encode())


def tidy(place: MirrorPlace, environ: Mapping[str, str]) -> None:
    """Let git pack a folder in which much has piled up; a no-op else. What any ref holds stays."""
    settings = {"gc.auto": str(LOOSE_OBJECTS), "gc.autoDetach": "false", "gc.autoPackLimit": "60"}
    place.git(environ, **settings).run("gc", "--auto", "--quiet", timeout_s=FETCH_TIMEOUT_S)


def find_commit(place: MirrorPlace, text: str, settings: PlatformSettings) -> str | None:
    """The full sha of a commit given by 7 to 40 hex digits, None when the repository has none.

    A full sha that a mirror lacks is asked of the remote once, by one at a time. Conflict when the digits fit several
    commits; ValidationError when the remote does not answer in time.
    """
    short = text.lower()
    if found := _in_folder(place, short, settings.environ):
        return found
    if place.kind == "external" and FULL_SHA.fullmatch(short):
        limited = place.within(min(LOOK_UP_TIMEOUT_S, settings.sync_limit_s))
        return _asked_for(limited, short, settings)
    return None


def _asked_for(place: MirrorPlace, full: str, settings: PlatformSettings) -> str | None:
    turn = locks.FileLock(place.path.with_suffix(".look-up"))
    if not turn.take(timeout_s=min(LOOK_UP_TURN_S, place.limit_s)):
        raise _unanswered(place, full)
    try:
        if found := _in_folder(place, full, settings.environ):
            return found
        with reaching(place.remote, settings) as environ:
            _fetch(place, settings, environ, "--no-prune", [f"+{full}:{_PINNED_REFS}/{full}"])
        return _in_folder(place, full, settings.environ)
    except (GitTimeout, TooSlow):
        raise _unanswered(place, full) from None
    except (GitError, ValidationError):
        return None
    finally:
        turn.release()


def _unanswered(place: MirrorPlace, full: str) -> ValidationError:
    return ValidationError(
        f"commit {full[:12]} is not here, and the repository it should come from does not answer",
        hint="try again, or run `osmosis sync` and see what it says",
        field="commit_sha",
    )


def _in_folder(place: MirrorPlace, short: str, environ: Mapping[str, str]) -> str | None:
    if not (place.path / "HEAD").is_file():
        return None
    args = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{short}^{{commit}}"]
    try:
        return place.git(environ).text(*args)
    except GitError as error:
        if "ambiguous" in error.message:
            raise Conflict(
                f"commit {short} matches several commits", hint="give more characters of the commit"
            ) from error
        return None


def branch_head(place: MirrorPlace, branch: str, environ: Mapping[str, str]) -> str | None:
    """The commit a branch points at now, None when there is no such branch."""
    return _ref(place, f"refs/heads/{branch}", environ)


def _ref(place: MirrorPlace, name: str, environ: Mapping[str, str]) -> str | None:
    if not (place.path / "HEAD").is_file():
        return None
    try:
        return place.git(environ).text("show-ref", "--verify", "--hash", name)
    except GitError:
        return None


def check_url(remote: Remote, settings: PlatformSettings) -> None:
    """Ask a remote for its HEAD, so that a wrong URL or a missing credential is known before it is stored.

    ValidationError with git's own words otherwise.
    """
    url = parse_repository_url(remote.url).url
    try:
        with reaching(remote, settings) as environ:
            Git.bare(None, environ, timeout_s=30.0).run("ls-remote", "--", url, "HEAD")
    except GitMissing:
        raise
    except GitError as error:
        issue = {"key": "repository_url", "message": error.message}
        raise ValidationError(
            f"the repository cannot be read: {error.message}", hint=error.hint, issues=[issue]
        ) from error
