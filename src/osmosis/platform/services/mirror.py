"""The git side of Git Sync: bring a repository's folder up to date and read what its branches point at.

Every function starts git, so none is called with a session open. Of an external repository a bare mirror is kept:
its branches, tags and snapshot refs. What was synced once stays reachable, also after a force push.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from osmosis.base import locks
from osmosis.base.net import is_loopback
from osmosis.errors import Conflict

from .. import tables
from ..settings import PlatformSettings
from .gitcmd import GitFailed, personal, run_git, sealed
from .repositories import SNAPSHOT_REFS, SYNCED_REFS, parse_remote, prepare_bare

FETCH_TIMEOUT_S = 600.0
MAX_MESSAGE = 500
LOOSE_OBJECTS = 6000
"""From about this many unpacked objects on, a folder is packed after a sync."""
FULL_SHA = re.compile(r"^[0-9a-f]{40}$")
_PINNED_REFS = "refs/osmosis/pinned"
_HEAD_FORMAT = "%(objectname)%00%(refname:lstrip=2)%00%(authorname)%00%(committerdate:unix)%00%(contents:subject)%00"


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
class Place:
    """Where a repository is: what git calls need of its row, usable after the session is closed."""

    id: str
    kind: str
    url: str
    path: Path
    default_branch: str

    @classmethod
    def of(cls, repository: tables.Repository, settings: PlatformSettings) -> Place:
        path = settings.located(repository.path)
        return cls(repository.id, repository.kind, repository.url, path, repository.default_branch)


@contextmanager
def locked(place: Place) -> Iterator[None]:
    """One sync of a repository at a time, across threads and processes of this machine."""
    with locks.locked(place.path.with_suffix(".lock")):
        yield


def fetch(place: Place, settings: PlatformSettings) -> str | None:
    """Bring a mirror up to date and return the remote's default branch; a hosted repository needs no fetch.

    GitFailed when the remote cannot be read: unknown host, refused, no credential, too slow.
    """
    prepare_bare(place.path, place.default_branch, settings)
    if place.kind == "internal":
        return None
    environ = _remote_environ(settings)
    symref = run_git(["ls-remote", "--symref", "--", place.url, "HEAD"], environ=environ, timeout_s=60.0)
    refspecs = [f"+{name}/*:{name}/*" for name in ("refs/heads", "refs/tags", SNAPSHOT_REFS)]
    run_git(
        ["fetch", "--quiet", "--prune", "--no-tags", "--no-write-fetch-head", "--", place.url, *refspecs],
        environ=environ,
        git_dir=place.path,
        timeout_s=FETCH_TIMEOUT_S,
    )
    match = re.match(rb"ref: refs/heads/(\S+)\tHEAD", symref)
    return match[1].decode() if match else None


def _remote_environ(settings: PlatformSettings) -> dict[str, str]:
    return personal(
        settings.environ,
        settings={
            "protocol.file.allow": "always" if is_loopback(settings.host) else "never",
            "http.lowSpeedLimit": "1000",
            "http.lowSpeedTime": "30",
        },
    )


def heads(place: Place, environ: Mapping[str, str]) -> list[Head]:
    """All branches, the most recently committed first."""
    args = ["for-each-ref", "--sort=-committerdate", f"--format={_HEAD_FORMAT}", "refs/heads"]
    out = run_git(args, environ=sealed(environ), git_dir=place.path).decode(errors="replace")
    found = []
    for line in out.split("\0\n"):
        if line:
            commit, branch, author, moment, message = line.split("\0")
            when = datetime.fromtimestamp(int(moment or 0), timezone.utc)
            found.append(Head(branch, commit, author, message[:MAX_MESSAGE], when))
    return found


def settle_default_branch(place: Place, named: str | None, found: Iterable[Head], environ: Mapping[str, str]) -> str:
    """The default branch, which HEAD then names.

    The remote's own choice first; else the present one if it exists; else `main`, `master` or the newest branch,
    so that a first push of any branch works.
    """
    branches = [head.branch for head in found]
    wanted = named or place.default_branch
    if wanted not in branches and branches:
        wanted = next((name for name in ("main", "master") if name in branches), branches[0])
    if wanted != place.default_branch or named:
        run_git(["symbolic-ref", "HEAD", f"refs/heads/{wanted}"], environ=sealed(environ), git_dir=place.path)
    return wanted


def keep(place: Place, commits: Iterable[str], environ: Mapping[str, str]) -> None:
    """Hold commits by refs that no push can move."""
    lines = "".join(f"update {SYNCED_REFS}/{commit} {commit}\n" for commit in commits)
    if lines:
        run_git(["update-ref", "--stdin"], environ=sealed(environ), git_dir=place.path, stdin=lines.encode())


def tidy(place: Place, environ: Mapping[str, str]) -> None:
    """Let git pack a folder in which much has piled up; a no-op else. What any ref holds stays."""
    args = ["gc", "--auto", "--quiet"]
    settings = {"gc.auto": str(LOOSE_OBJECTS), "gc.autoDetach": "false", "gc.autoPackLimit": "60"}
    run_git(args, environ=sealed(environ, settings=settings), git_dir=place.path, timeout_s=FETCH_TIMEOUT_S)


def find_commit(place: Place, text: str, settings: PlatformSettings) -> str | None:
    """The full sha of a commit given by 7 to 40 hex digits, None when the repository has none.

    A full sha that a mirror lacks is asked of the remote once. Conflict when the digits fit several commits.
    """
    short = text.lower()
    if found := _in_folder(place, short, settings.environ):
        return found
    if place.kind == "external" and FULL_SHA.fullmatch(short):
        pin = f"+{short}:{_PINNED_REFS}/{short}"
        try:
            run_git(
                ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", place.url, pin],
                environ=_remote_environ(settings),
                git_dir=place.path,
                timeout_s=FETCH_TIMEOUT_S,
            )
        except GitFailed:
            return None
        return _in_folder(place, short, settings.environ)
    return None


def _in_folder(place: Place, short: str, environ: Mapping[str, str]) -> str | None:
    if not (place.path / "HEAD").is_file():
        return None
    args = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{short}^{{commit}}"]
    try:
        return run_git(args, environ=sealed(environ), git_dir=place.path).decode().strip()
    except GitFailed as error:
        if "ambiguous" in error.message:
            raise Conflict(f"commit {short} fits several commits", hint="give more digits") from error
        return None


def branch_head(place: Place, branch: str, environ: Mapping[str, str]) -> str | None:
    """The commit a branch points at now, None when there is no such branch."""
    return _ref(place, f"refs/heads/{branch}", environ)


def _ref(place: Place, name: str, environ: Mapping[str, str]) -> str | None:
    if not (place.path / "HEAD").is_file():
        return None
    try:
        out = run_git(["show-ref", "--verify", "--hash", name], environ=sealed(environ), git_dir=place.path)
    except GitFailed:
        return None
    return out.decode().strip()


def check_url(url: str, settings: PlatformSettings) -> None:
    """Ask a remote for its HEAD, so that a wrong URL or a missing credential is known before it is stored.

    GitFailed with git's own words otherwise.
    """
    remote = parse_remote(url)
    run_git(["ls-remote", "--", remote.url, "HEAD"], environ=_remote_environ(settings), timeout_s=30.0)
