"""Fetch a repository into its folder: names are resolved here, every address is checked, git connects to these alone
and follows no redirect. No secret is in a command line, URL or log. Each function starts git, so no session is open."""

import base64
import contextlib
import math
import os
import re
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

from osmosis.base.files import write_text
from osmosis.base.git import (
    Git,
    GitError,
    GitMissing,
    GitTimeout,
    GitTooLarge,
    fetching_environ,
    parse_git_url,
    sealed_environ,
)
from osmosis.base.locks import FileLock
from osmosis.base.net import is_loopback, is_public, parse_host
from osmosis.errors import Conflict, Forbidden, PlatformError, ValidationError
from osmosis.platform import tables
from osmosis.platform.git.repositories import get_credential, parse_repository_url, refuse_url
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
class Remote:
    url: str
    trusted: bool = False
    """True when the operator connected it: their git credentials and paths of this machine may be used."""
    credential: str = field(default="", repr=False)  # A token, `user:token`, or a private key in PEM; empty for none


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
    remote: Remote
    path: Path
    default_branch: str
    until: float = math.inf
    limit_s: float = math.inf

    @classmethod
    def of(cls, repository: tables.Repository, settings: PlatformSettings) -> "RepositoryFolder":
        remote = Remote(repository.url, repository.trusted, get_credential(repository, settings))
        path = settings.located(repository.path)
        return cls(repository.id, repository.kind, remote, path, repository.default_branch)

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
    lock = FileLock(lock_file(folder))
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
        symref = git.run("ls-remote", "--symref", "--", folder.remote.url, "HEAD")
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
        git.run("fetch", "--quiet", flag, "--no-tags", "--no-write-fetch-head", "--", folder.remote.url, *refspecs)
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
    turn = FileLock(folder.path.with_suffix(".look-up"))
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


_PORTS = {"https": 443, "http": 80, "ssh": 22, "git": 9418}
_TRUST_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")


@contextlib.contextmanager
def reaching(remote: Remote, settings: PlatformSettings) -> Iterator[dict[str, str]]:
    url = parse_git_url(remote.url)
    way = url.scheme.replace("git+", "").replace("+git", "")
    if way in ("path", "file"):
        _check_local(remote, settings)
        yield fetching_environ(settings.environ, settings={"protocol.file.allow": "always"})
        return
    host = parse_host(f"x://{url.host}") if url.host else ""
    port = (urlsplit(f"x://{url.host}").port if url.host else None) or _PORTS.get(way, 22)
    addresses = _addresses(host, port, way, remote, settings)
    pairs = {"protocol.file.allow": "never", "http.lowSpeedLimit": "1000", "http.lowSpeedTime": "30"}
    pairs["http.followRedirects"] = "false"
    if addresses and way == "git":
        scheme, _, rest = remote.url.partition("://")
        pairs[f"url.git://{addresses[0]}:{port}/.insteadOf"] = f"{scheme}://{rest.partition('/')[0]}/"
    elif addresses:
        pairs["http.curloptResolve"] = f"{host}:{port}:{','.join(addresses)}"
    if remote.credential:
        is_key = remote.credential.lstrip().startswith("-----BEGIN")
        if way == "ssh" and not is_key:
            raise refuse_url("is an ssh URL, and the secret is not a private key")
        if way == "https" and is_key:
            message = "is an https URL, and the secret is a key, which is for ssh"
            raise refuse_url(message, hint="use git@host:owner/repo.git")
        if way not in ("ssh", "https"):
            raise refuse_url(f"uses {way}, which would send the secret in the open", hint="use https or ssh")
        if way == "https":
            token = remote.credential.strip()
            pair = token if ":" in token else f"x-access-token:{token}"
            pairs["http.extraHeader"] = f"Authorization: Basic {base64.b64encode(pair.encode()).decode()}"
    if remote.trusted and not remote.credential:
        yield fetching_environ(settings.environ, settings=pairs)
        return
    environ = sealed_environ(settings.environ, settings=pairs)
    for name, value in settings.environ.items():
        if name in _TRUST_FILES or name.lower().endswith("_proxy"):
            environ[name] = value
    with tempfile.TemporaryDirectory(prefix="osmosis-key-") as folder:
        if way == "ssh":
            environ["GIT_SSH_COMMAND"] = _ssh(remote, host, addresses, Path(folder), settings)
        yield environ


def _check_local(remote: Remote, settings: PlatformSettings) -> None:
    if not remote.trusted:
        message = "a path on the platform's machine can be connected only by an operator of the platform"
        hint = "push to the repository that the platform hosts, or give an https:// or ssh:// URL"
        raise Forbidden(message, hint=hint, code="OPERATOR_NEEDED")
    if not is_loopback(settings.host):
        message = "is a path on the platform's machine, which is allowed only when the platform listens on loopback"
        raise refuse_url(message)
    path = Path(urlsplit(remote.url).path if "://" in remote.url else remote.url).resolve()
    data = settings.data_dir.resolve()
    if path == data or data in path.parents or path in data.parents:
        raise refuse_url("is inside the platform's own data folder")


def _addresses(host: str, port: int, way: str, remote: Remote, settings: PlatformSettings) -> list[str]:
    """Return the checked addresses to which git may connect; empty where a proxy connects by its own rules."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        proxies = {name.lower() for name, value in settings.environ.items() if value}
        if way in ("https", "http") and proxies & {f"{way}_proxy", "all_proxy"}:
            return []
        raise refuse_url(f"names the host {host}, which cannot be resolved") from None
    addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries))
    own = remote.trusted and is_loopback(settings.host)
    if host not in settings.remote_allow and not own and not all(map(is_public, addresses)):
        message = f"names {host}, which is not a public address"
        raise refuse_url(message, hint=f"an operator can allow it: osmosis platform start --remote-allow {host}")
    return [f"[{address}]" if ":" in address else address for address in addresses]


def _ssh(remote: Remote, host: str, addresses: list[str], folder: Path, settings: PlatformSettings) -> str:
    words = ["ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new"]
    words += ["-o", f"UserKnownHostsFile={settings.data_dir / 'known_hosts'}", "-o", f"HostKeyAlias={host}"]
    words += ["-o", "IdentityAgent=none", "-o", "IdentitiesOnly=yes", "-o", f"HostName={addresses[0].strip('[]')}"]
    if remote.credential:
        write_text(folder / "key", f"{remote.credential.strip()}\n", mode=0o600)
        words += ["-i", str(folder / "key")]
    return shlex.join(words)
