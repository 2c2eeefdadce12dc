"""The context of a command, its variables (the process's, then those of an env file), and `--offline`. Nothing below
the command line reads `os.environ`: values are passed from here. The nearest `.env` raises Conflict instead of changing
the platform or the token that the environment names."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from typer import Option

from osmosis.base.net import is_loopback
from osmosis.cli.core.output import Mode, Output, is_terminal
from osmosis.errors import Conflict, NetworkError, ValidationError

if TYPE_CHECKING:
    from osmosis.client import PlatformClient


@dataclass(frozen=True)
class GlobalOptions:
    mode: Mode = Mode.RICH
    platform: str | None = None
    workspace: str | None = None
    env_file: str | None = None
    offline: bool = False
    yes: bool = False


@dataclass
class AppContext:
    environ: Mapping[str, str]
    cwd: Path
    options: GlobalOptions
    output: Output
    command: str = ""
    stdin: TextIO = field(default_factory=lambda: sys.stdin)
    words: tuple[str, ...] = ()
    closing: ExitStack = field(default_factory=ExitStack)

    @property
    def mode(self) -> Mode:
        return self.output.mode

    @property
    def interactive(self) -> bool:
        if self.mode is not Mode.RICH or self.environ.get("CI"):
            return False
        return is_terminal(self.stdin) and is_terminal(self.output.stderr)

    @property
    def platform_url(self) -> str:
        from osmosis.client.http import platform_url

        return platform_url(self.environ, self.options.platform)

    @property
    def in_workspace(self) -> bool:
        return any((folder / "rollouts").is_dir() for folder in (self.cwd, *self.cwd.parents))

    def path(self, value: str | Path) -> Path:
        path = self.cwd / Path(value).expanduser()
        return path.resolve() if ".." in path.parts else path

    def client(self, *, auth: bool = True, scoped: bool = True) -> "PlatformClient":
        """Open a client, which is closed when the command ends."""
        from osmosis.cli.core.connect import open_client

        return self.closing.enter_context(open_client(self, auth=auth, scoped=scoped))


_CURRENT: ContextVar[AppContext] = ContextVar("osmosis-cli-context")


def current() -> AppContext:
    return _CURRENT.get()


@contextmanager
def using(context: AppContext) -> Iterator[AppContext]:
    token = _CURRENT.set(context)
    try:
        yield context
    finally:
        _CURRENT.reset(token)


def mode_of(argv: Sequence[str]) -> Mode:
    words = argv[: argv.index("--")] if "--" in argv else argv
    return Mode.JSON if "--json" in words else Mode.PLAIN if "--plain" in words else Mode.RICH


CA_FILE = "OSMOSIS_CA_FILE"
INSIDE = "_OSMOSIS_ROLLOUT_ENVIRONMENT"  # Variable naming the rollout environment that a continued command runs in
AUTH_PROFILE = ("OSMOSIS_TOKEN", "OSMOSIS_TOKEN_PLATFORM_URL", "OSMOSIS_PLATFORM_URL")
_CHILDREN_OFFLINE = {"OSMOSIS_OFFLINE": "1", "UV_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1"}


def load_environment(ctx: AppContext) -> None:
    named = ctx.options.env_file or ctx.environ.get("OSMOSIS_ENV_FILE")
    path = ctx.path(named) if named else _nearest(ctx.cwd)
    if path is not None:
        if named and (not path.exists() or path.is_dir()):
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
        message = f"{path} sets {CA_FILE}: certificates to trust are your choice, not that of the folder you are in"
        hint = f"export {CA_FILE}=FILE, or osmosis login --ca-file FILE, or choose the file with --env-file"
        raise Conflict(message, hint=hint)
    if not chosen and any(environ.get(name) for name in AUTH_PROFILE):
        for name in AUTH_PROFILE:
            if name in values and values[name] != environ.get(name):
                names = " ".join(n for n in AUTH_PROFILE if environ.get(n))
                message = f"{path} sets {name} to another value than the environment"
                raise Conflict(message, hint=f"unset {names}, or choose a file with --env-file")
    return values


_ALLOWED_HOSTS: set[str] | None = None
"""Hosts that may be reached, None without a restriction; read by the audit hook, which cannot be removed."""
_HOOKED = False


def go_offline(ctx: AppContext) -> None:
    global _ALLOWED_HOSTS, _HOOKED
    _ALLOWED_HOSTS = {""}
    ctx.environ = {**ctx.environ, **_CHILDREN_OFFLINE}
    os.environ.update(_CHILDREN_OFFLINE)
    if not _HOOKED:
        sys.addaudithook(_guard)
        _HOOKED = True


def online() -> None:
    global _ALLOWED_HOSTS
    _ALLOWED_HOSTS = None
    for name in _CHILDREN_OFFLINE:
        os.environ.pop(name, None)


def allow_host(url: str) -> None:
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
    raise NetworkError(f"--offline: connection to {name} refused", hint="remove --offline")


SecretsFile = Annotated[str | None, Option(help="File of NAME=value lines, used for this run only; - is stdin")]


def read_secrets_file(ctx: AppContext, name: str) -> dict[str, str]:
    """Return the `NAME=value` lines of a file or of standard input (`-`); errors name a bad line only by its number."""
    if name == "-":
        text = ctx.stdin.read()
    else:
        path = ctx.path(name)
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror or "unreadable" if isinstance(error, OSError) else "it is not text"
            message = f"cannot read the secrets file {path}: {reason}"
            raise ValidationError(message, hint="--secrets-file FILE") from None
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().removeprefix("export ")
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, value = stripped.partition("=")
        if not equals or not key.strip().isidentifier():
            raise ValidationError(f"line {number} of the secrets file is not NAME=value", hint="write NAME=value")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        values[key.strip()] = value
    return values
