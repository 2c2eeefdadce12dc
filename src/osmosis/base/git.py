"""Git as a process: the one place where it is started, with a chosen environment and without prompts.

`users_environ` is the person's own, for their workspace. `sealed_environ` is for our bare repositories: no personal or
system configuration. `fetching_environ` is for reading a remote: home, ssh agent and proxies stay. The last two run no
hook, no `ext::` transport and no submodule. Errors contain no credential of a URL."""

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

from osmosis.base.processes import kill_group, kill_tree, limit_files
from osmosis.base.redact import without_credentials
from osmosis.errors import PlatformError

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
    """Git failed. The message has the end of its error output, `stderr` all of it, both without credentials."""

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
    git_dir: Path | None = None
    """A bare repository; None: the one that git finds from `cwd`."""
    timeout_s: float | None = None
    """Seconds for one command, which is then killed with its children. None: no limit."""
    own_group: bool = False
    """Own process group: no terminal, no Ctrl-C."""
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
        """Return the output as text without the last newline; invalid UTF-8 becomes surrogates (see
        `to_valid_text`)."""
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
