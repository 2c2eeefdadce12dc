"""Run git as a process, without prompts and with a chosen environment: the person's own (`users_environ`), none
(`sealed_environ`), or home, ssh agent and proxies (`fetching_environ`). The last two run no hook."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from osmosis.base.processes import kill_group, kill_tree, limit_files
from osmosis.base.redact import without_credentials
from osmosis.errors import PlatformError, ValidationError

_TOO_LARGE = (f"signal {signal.SIGXFSZ.value}", "File too large") if sys.platform == "linux" else ()
QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
_PASSED = frozenset(
    {
        "HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "SSL_CERT_FILE",
        "SSL_CERT_DIR", "CURL_CA_BUNDLE", "NIX_SSL_CERT_FILE", "LD_LIBRARY_PATH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO",
    }
)  # fmt: skip
_SETTINGS = {
    "safe.directory": "*",
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.askPass": "",
    "credential.interactive": "false",
    "protocol.ext.allow": "never",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "transfer.fsckObjects": "true",
    # what old and honest repositories have
    **{
        f"{way}.fsck.{problem}": "warn"
        for way in ("fetch", "receive")
        for problem in ("zeroPaddedFilemode", "badTimezone", "missingSpaceBeforeDate", "zeroPaddedDate")
    },
}
_TELLING = ("fatal:", "error:", "ssh:", "remote:", "Host key", "!")
_REAP_S = 5.0


class GitError(PlatformError):
    def __init__(self, message: str, *, hint: str | None = None, stderr: str = "", **details: object) -> None:
        super().__init__(message, hint=hint, **details)
        self.stderr = stderr


class GitTooLarge(GitError): ...


class GitMissing(GitError): ...


class GitTimeout(GitError): ...


class NoRepository(GitError): ...


def users_environ(environ: Mapping[str, str] | None = None, **more: str) -> dict[str, str]:
    return {**(os.environ if environ is None else environ), **QUIET, **more}


def sealed_environ(environ: Mapping[str, str], *, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    sealed = _safe_environ(environ, settings)
    sealed.update({"HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull})
    return sealed


def fetching_environ(environ: Mapping[str, str], *, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    passed = {name: value for name, value in environ.items() if name in _PASSED or name.lower().endswith("_proxy")}
    return {**_safe_environ(environ, settings), **passed}


def _safe_environ(environ: Mapping[str, str], settings: Mapping[str, str] | None) -> dict[str, str]:
    pairs = {**_SETTINGS, **(settings or {})}
    safe = {
        **QUIET,
        "PATH": environ.get("PATH") or os.defpath,
        "GIT_ASKPASS": "",
        "GCM_INTERACTIVE": "never",
        "GIT_CONFIG_COUNT": str(len(pairs)),
    }
    for number, (key, value) in enumerate(pairs.items()):
        safe[f"GIT_CONFIG_KEY_{number}"] = key
        safe[f"GIT_CONFIG_VALUE_{number}"] = value
    return safe


@dataclass(frozen=True, slots=True)
class Git:
    cwd: Path | None = None
    environ: Mapping[str, str] = field(default_factory=users_environ, repr=False)
    git_dir: Path | None = None  # A bare repository; None: the one that git finds from `cwd`
    timeout_s: float | None = None  # Seconds for one command, which is then killed with its children. None: no limit.
    own_group: bool = False
    max_file_bytes: int | None = None
    """Bytes of the largest file that git may write (Linux), else `GitTooLarge`. A fetch writes one file."""

    @classmethod
    def bare(cls, git_dir: Path | None, environ: Mapping[str, str], *, timeout_s: float = 60.0) -> "Git":
        return cls(None, environ, git_dir, timeout_s, own_group=True)

    def run(
        self,
        *args: str,
        stdin: bytes | None = None,
        timeout_s: float | None = None,
        log: Callable[[str], None] | None = None,
    ) -> bytes:
        return self._outcome(self._start(args, stdin is not None), args, stdin, timeout_s, log)

    def text(self, *args: str, timeout_s: float | None = None, log: Callable[[str], None] | None = None) -> str:
        """Return the output without the last newline; invalid UTF-8 becomes surrogates (see `to_valid_text`)."""
        return _text(self.run(*args, timeout_s=timeout_s, log=log))

    async def text_async(self, *args: str, log: Callable[[str], None] | None = None) -> str:
        import asyncio  # costs a short command more than all of its own code

        process = self._start(args, False)
        work = asyncio.ensure_future(asyncio.to_thread(self._outcome, process, args, None, None, log))
        try:
            out = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._kill(process)
            await asyncio.wait([work])
            work.exception()
            raise
        return _text(out)

    def _start(self, args: tuple[str, ...], piped: bool) -> subprocess.Popen[bytes]:
        program = shutil.which("git", path=self.environ.get("PATH"))
        if program is None:
            raise GitMissing("git is not installed, or not on PATH", hint="install git 2.25 or newer")
        try:
            process = subprocess.Popen(
                [program, *([f"--git-dir={self.git_dir}"] if self.git_dir else []), *args],
                cwd=self.cwd,
                env=self.environ,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=self.own_group,
            )
        except OSError as problem:  # its folder is gone, or the machine has no process left
            raise GitError(f"git {_name(args)} cannot be started: {problem}") from None
        if self.max_file_bytes is not None and sys.platform == "linux":
            limit_files(process.pid, self.max_file_bytes)
        return process

    def _outcome(
        self,
        process: subprocess.Popen[bytes],
        args: tuple[str, ...],
        stdin: bytes | None,
        timeout_s: float | None,
        log: Callable[[str], None] | None = None,
    ) -> bytes:
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            out, err = process.communicate(stdin, timeout=limit)
        except subprocess.TimeoutExpired:
            raise GitTimeout(f"git {_name(args)} took longer than {limit:g} s and was stopped") from None
        finally:
            if process.returncode is None:
                self._kill(process)
                try:
                    process.communicate(timeout=_REAP_S)
                except subprocess.TimeoutExpired:  # something it started got away and holds the pipe
                    streams: tuple[IO[bytes] | None, ...] = (process.stdin, process.stdout, process.stderr)
                    for stream in streams:
                        if stream is not None:
                            stream.close()
        stderr = without_credentials(err.decode("utf-8", "replace")).strip()
        if log:
            for line in stderr.splitlines():
                log(line)
        if process.returncode != 0:
            if self.max_file_bytes is not None and any(sign in stderr for sign in _TOO_LARGE):
                raise GitTooLarge(f"git {_name(args)} would write more than {self.max_file_bytes} bytes", stderr=stderr)
            # Some commands say on the wrong side what is missing ("nothing to commit").
            raise explain_failure(args, stderr or without_credentials(_text(out)), process.returncode)
        return out

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if process.returncode is None:
            (kill_group if self.own_group else kill_tree)(process.pid)


def _text(out: bytes) -> str:
    return out.decode("utf-8", "surrogateescape").removesuffix("\n")


def to_valid_text(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def summarize_stderr(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("hint:")]
    telling = [number for number, line in enumerate(lines, 1) if line.startswith(_TELLING)]
    return "; ".join(lines[: telling[-1] if telling else None][-3:])[:500] or "no message"


def _name(args: tuple[str, ...]) -> str:
    return next((word for word in args if re.match(r"^[a-z][a-z-]*\Z", word)), "")


def no_repository(stderr: str = "") -> NoRepository:
    return NoRepository("this is not a git repository", hint="git init, or osmosis init", stderr=stderr)


def explain_failure(args: tuple[str, ...], stderr: str, status: int) -> GitError:
    lower = stderr.lower()
    if "not a git repository" in lower:
        return no_repository(stderr)
    if "dubious ownership" in lower:
        folder = re.search(r"at '([^']+)'", stderr)
        hint = f"git config --global --add safe.directory {folder[1] if folder else '<folder>'}"
        return GitError("git does not trust this repository: it belongs to another user", hint=hint, stderr=stderr)
    return GitError(f"git {_name(args)} failed: {summarize_stderr(stderr)}", stderr=stderr, exit_status=status)


_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_SCP = re.compile(r"^(?:(?P<user>[^@/\s]+)@)?(?P<host>\[[^\]\s]+\]|[^:/\s@]+):(?P<path>(?!//).+)\Z")
_DRIVE = re.compile(r"^[A-Za-z]:[\\/]")
_SCP_PASSWORD = re.compile(r"^([^@/\s:]+):[^@/\s]*@")
_QUERY = re.compile(r"[?#]\S*")
HINT = "git remote set-url origin <url>, for example https://host/owner/repo.git"


@dataclass(frozen=True, slots=True)
class GitUrl:
    scheme: str
    host: str | None
    path: str  # Path of the repository on the host, without outer slashes and `.git`
    identity: str | None  # `owner/repo`, lower-case; None when the path has fewer than two segments
    display: str
    has_credential: bool = False  # Has a password, a query, or a user over http: the last two may be tokens


def parse_git_url(url: str) -> GitUrl:
    if not url or url != url.strip() or any(ord(c) < 32 or ord(c) == 127 for c in url):
        raise _refused(url, "is empty or has whitespace at its ends or control characters in it")
    if scheme := _SCHEME.match(url):
        return _from_url(url, scheme.group(1).lower())
    if re.match(r"^[A-Za-z0-9+.-]+::", url):
        raise _refused(url, "runs a git helper program, which is not allowed")
    if _DRIVE.match(url):
        return _from_path(url.replace("\\", "/"))
    if not url.startswith(("/", ".", "~")) and (scp := _SCP.match(url)):
        raw = scp["path"]
        path = _clean(url, raw)
        if not path:
            raise _refused(url, "has no repository path")
        host = scp["host"].lower()
        user = scp["user"].split(":", 1)[0] + "@" if scp["user"] else ""
        return GitUrl("ssh", host, path, _identity(path), f"{user}{host}:{raw}", ":" in (scp["user"] or ""))
    if ":" in url.split("/", 1)[0]:
        raise _refused(url, "is neither a URL nor host:path")
    return _from_path(url)


def find_web_page(url: str) -> str:
    try:
        remote = parse_git_url(url)
    except ValidationError:
        return ""
    return f"https://{remote.host}/{remote.path}" if remote.host in ("github.com", "codeberg.org") else ""


def _from_url(url: str, scheme: str) -> GitUrl:
    if scheme not in ("https", "http", "ssh", "git", "file", "git+ssh", "ssh+git", "git+https", "git+http"):
        raise _refused(url, f"uses {scheme}://, which is not a git protocol")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refused(url, "has a host or port that cannot be read") from None
    path = _clean(url, parts.path)
    if scheme == "file":
        if host not in (None, "localhost"):
            raise _refused(url, "names a host; file URLs are file:///path")
        return GitUrl("file", None, path, _identity(path, local=True), f"file://{parts.path}")
    if not host or re.search(r"\s", host):
        raise _refused(url, "has no host")
    if not path:
        raise _refused(url, "has no repository path")
    bare = scheme.replace("git+", "").replace("+git", "")
    shown_host = f"[{host}]" if ":" in host else host
    if port is not None and port != {"https": 443, "http": 80, "ssh": 22, "git": 9418}.get(bare):
        shown_host = f"{shown_host}:{port}"
    # The user of an ssh URL is part of the address (git@); over http it may be a token.
    user = f"{parts.username}@" if bare == "ssh" and parts.username else ""
    credential = parts.password is not None or bool(parts.query) or (bare != "ssh" and parts.username is not None)
    return GitUrl(bare, shown_host, path, _identity(path), f"{bare}://{user}{shown_host}{parts.path}", credential)


def _from_path(url: str) -> GitUrl:
    path = _clean(url, url, encoded=False)
    if not path:
        raise _refused(url, "is not the path of a repository")
    return GitUrl("path", None, path, _identity(path, local=url.startswith("/")), without_credentials(url))


def _clean(url: str, path: str, *, encoded: bool = True) -> str:
    if encoded:
        if re.search(r"%(2f|5c|00|0a|0d)", path, re.IGNORECASE):
            raise _refused(url, "has an encoded separator in its path")
        path = unquote(path)
        if any(ord(c) < 32 for c in path):
            raise _refused(url, "has control characters in its path")
    path = re.sub(r"/+", "/", path).strip("/")
    return re.sub(r"(?:/\.git|\.git)\Z", "", path)


def _identity(path: str, *, local: bool = False) -> str | None:
    segments = [s for s in path.split("/") if s not in ("", ".", "..", "~")]
    if len(segments) < 2:
        # A repository right below the root of a disk has no owner; the platform calls it so too.
        return f"local/{segments[0]}".lower() if segments and local else None
    return "/".join(segments[-2:]).lower()


def _refused(url: str, reason: str) -> ValidationError:
    safe_url = _QUERY.sub("", without_credentials(_SCP_PASSWORD.sub(r"\1@", url)))
    return ValidationError(f"the remote URL {safe_url!r} {reason}", hint=HINT)
