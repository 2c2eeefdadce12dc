"""The variables of one command: the process's, then those of an env file; and the switch that cuts the network.

A nearest `.env` never changes who one is talking to half-way: when the environment already says which platform
or token, a `.env` that says otherwise is a conflict, not a silent override.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from osmosis.base.net import is_loopback
from osmosis.errors import Conflict, NetworkError, ValidationError

from .context import AppContext

CA_FILE = "OSMOSIS_CA_FILE"
INSIDE = "_OSMOSIS_ROLLOUT_ENVIRONMENT"
"""Which environment a command runs in that was continued in its rollout's own."""
AUTH_PROFILE = ("OSMOSIS_TOKEN", "OSMOSIS_TOKEN_PLATFORM_URL", "OSMOSIS_PLATFORM_URL")
_CHILDREN_OFFLINE = {"OSMOSIS_OFFLINE": "1", "UV_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1"}


def load_environment(ctx: AppContext) -> None:
    """Add the variables of the env file to the context; the process's own variables win."""
    named = ctx.options.env_file or ctx.environ.get("OSMOSIS_ENV_FILE")
    path = ctx.path(named) if named else _nearest(ctx.cwd)
    if path is not None:
        if named and not path.is_file():
            raise ValidationError(f"env file not found: {path}", hint="--env-file FILE")
        ctx.environ = {**_read(path, ctx.environ, chosen=bool(named)), **ctx.environ}
        ctx.output.environ = ctx.environ
    if ctx.options.offline or ctx.environ.get("OSMOSIS_OFFLINE"):
        go_offline(ctx)


def _nearest(cwd: Path) -> Path | None:
    for folder in (cwd, *cwd.parents):
        if (folder / ".env").is_file():
            return folder / ".env"
        if (folder / ".git").exists():
            return None
    return None


def _read(path: Path, environ: Mapping[str, str], *, chosen: bool) -> dict[str, str]:
    from dotenv import dotenv_values

    try:
        values = {k: v for k, v in dotenv_values(path, interpolate=False).items() if v is not None}
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(f"cannot read {path}: {error}", hint="--env-file FILE") from error
    if not chosen and CA_FILE in values:
        raise Conflict(
            f"{path} sets {CA_FILE}: certificates to trust are your choice, not that of the folder you are in",
            hint=f"export {CA_FILE}=FILE, or osmosis login --ca-file FILE, or choose the file with --env-file",
        )
    if not chosen and any(environ.get(name) for name in AUTH_PROFILE):
        for name in AUTH_PROFILE:
            if name in values and values[name] != environ.get(name):
                given = " ".join(n for n in AUTH_PROFILE if environ.get(n))
                raise Conflict(
                    f"{path} sets {name} to another value than the environment",
                    hint=f"unset {given}, or choose a file with --env-file",
                )
    return values


_ALLOWED_HOSTS: set[str] | None = None
"""None = no restriction. An audit hook cannot be removed, so it asks this set."""
_HOOKED = False


def go_offline(ctx: AppContext) -> None:
    """From here on this process and its children reach only this machine, and the host of `--base-url`."""
    global _ALLOWED_HOSTS, _HOOKED
    _ALLOWED_HOSTS = {""}
    ctx.environ = {**ctx.environ, **_CHILDREN_OFFLINE}
    os.environ.update(_CHILDREN_OFFLINE)
    if not _HOOKED:
        sys.addaudithook(_guard)
        _HOOKED = True


def online() -> None:
    """Undo `go_offline` for this process (tests run several commands in one)."""
    global _ALLOWED_HOSTS
    _ALLOWED_HOSTS = None
    for name in _CHILDREN_OFFLINE:
        os.environ.pop(name, None)


def allow_host(url: str) -> None:
    """Let one base URL through."""
    from urllib.parse import urlsplit

    if _ALLOWED_HOSTS is not None and (host := urlsplit(url).hostname):
        _ALLOWED_HOSTS.add(host)


def _guard(event: str, args: tuple[object, ...]) -> None:
    if _ALLOWED_HOSTS is None or event not in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        return
    if event == "socket.getaddrinfo":
        host = args[0]
    else:
        address = args[1]
        host = address[0] if isinstance(address, tuple) else ""  # a unix socket stays on this machine
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host or "")
    if name in _ALLOWED_HOSTS or is_loopback(name):
        return
    if event == "socket.getaddrinfo":
        raise NetworkError(f"--offline: connection to {name} refused", hint="remove --offline")
    raise NetworkError(f"--offline: connection to {name} refused", hint="remove --offline")
