"""The one place where the platform starts git: scrubbed environment, no prompt, no hook, a time limit.

Two environments exist. `sealed` is for repositories the platform owns: no personal or system configuration
reaches it. `personal` is for fetching someone's remote and keeps what a fetch may need (home, ssh agent,
proxies), so that private remotes work as they do for the person who started the platform. Neither runs
hooks, `ext::` transports or submodule recursion. Credentials never leave in an error text.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from osmosis.errors import PlatformError

_PERSONAL = (
    "HOME",
    "USER",
    "LOGNAME",
    "SSH_AUTH_SOCK",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSH_COMMAND",
    "GIT_SSL_CAINFO",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
)
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
}
_CREDENTIAL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/\s@]+@", re.IGNORECASE)


class GitFailed(PlatformError):
    """A git command ended badly; the message is git's own last words, credentials removed."""


def strip_credentials(text: str) -> str:
    """`https://user:token@host/x` becomes `https://host/x`, wherever it stands in the text."""
    return _CREDENTIAL.sub(r"\g<scheme>", text)


def sealed(environ: Mapping[str, str], *, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for git on repositories of the platform: nothing of the person's configuration."""
    env = _base(environ, settings)
    env.update({"HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull})
    return env


def personal(environ: Mapping[str, str], *, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for git against a remote: credential helpers and ssh keys of who started the platform."""
    env = _base(environ, settings)
    env.update({key: environ[key] for key in _PERSONAL if key in environ})
    return env


def _base(environ: Mapping[str, str], settings: Mapping[str, str] | None) -> dict[str, str]:
    env = {
        "PATH": environ.get("PATH") or os.defpath,
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "GIT_OPTIONAL_LOCKS": "0",
        "GCM_INTERACTIVE": "never",
    }
    pairs = {**_SETTINGS, **(settings or {})}
    env["GIT_CONFIG_COUNT"] = str(len(pairs))
    for number, (key, value) in enumerate(pairs.items()):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env


def run_git(
    args: Sequence[str],
    *,
    environ: Mapping[str, str],
    git_dir: Path | None = None,
    stdin: bytes | None = None,
    timeout_s: float = 60.0,
) -> bytes:
    """Run one git command and return its standard output; `environ` comes from `sealed` or `personal`.

    GitFailed when git is missing, exits with an error, or is not done after `timeout_s` (its process group is
    killed then).
    """
    command = ["git", *([f"--git-dir={git_dir}"] if git_dir else []), *args]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise GitFailed("git is not installed on the platform's machine", hint="install git 2.31 or newer") from error
    try:
        out, err = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise GitFailed(f"git {args[0]} took longer than {timeout_s:g} s and was stopped") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        raise GitFailed(f"git {args[0]} failed: {last_words(err)}", exit_status=process.returncode)
    return out


def last_words(stderr: bytes) -> str:
    """The lines of git's error output that say what happened, without credentials, at most 500 characters."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:", "ssh:", "remote:", "Host key"))]
    return strip_credentials("; ".join((telling or lines)[-3:]))[:500] or "no message"
