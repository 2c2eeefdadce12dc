"""What every command needs, in one object: environment, folder, output, global options, the platform client.

A command body gets it with one call, `current()`. `main` makes it; tests make their own by calling `main` with
an environment and a folder. Nothing below the command line reads `os.environ`: values are passed from here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from osmosis.base.light_dataclass import dataclass
from osmosis.errors import UsageError

from .output import Mode, Output

if TYPE_CHECKING:
    from osmosis.client import PlatformClient


@dataclass(frozen=True)
class GlobalOptions:
    """Options that are accepted anywhere on the line."""

    mode: Mode = Mode.RICH
    platform: str | None = None
    """`--platform URL`."""
    workspace: str | None = None
    """`--workspace NAME`."""
    env_file: str | None = None
    """`--env-file FILE`."""
    offline: bool = False
    """`--offline`: no socket but the given base URL."""


@dataclass
class AppContext:
    """The surroundings of one command."""

    environ: Mapping[str, str]
    cwd: Path
    options: GlobalOptions
    output: Output
    command: str = ""
    """The command as typed, without its arguments: `eval submit`."""
    stdin: TextIO = field(default_factory=lambda: sys.stdin)
    words: tuple[str, ...] = ()
    """The whole command line, for a command that continues in another process."""

    @property
    def mode(self) -> Mode:
        return self.output.mode

    @property
    def interactive(self) -> bool:
        """May a question be asked: for people, with a terminal on both ends."""
        if self.mode is not Mode.RICH or self.environ.get("CI"):
            return False
        try:
            return self.stdin.isatty() and self.output.stderr.isatty()
        except ValueError:  # closed
            return False

    @property
    def platform_url(self) -> str:
        """The platform addressed: `--platform`, `OSMOSIS_PLATFORM_URL`, the local one; normalised and checked."""
        from osmosis.client.settings import platform_url

        return platform_url(self.environ, self.options.platform)

    def path(self, value: str | Path) -> Path:
        """A path as typed, resolved against the folder of the command."""
        return self.cwd / Path(value).expanduser()

    def client(self, *, auth: bool = True, scoped: bool = True) -> PlatformClient:
        """A client of the platform. `auth`: logged in, else `AuthRequired`. `scoped`: speaks for a workspace
        (`--workspace`, else the checkout's `origin`, else the active one)."""
        from .connect import open_client

        return open_client(self, auth=auth, scoped=scoped)


def scope_of(client: PlatformClient) -> dict[str, dict[str, str]]:
    """The envelope's word for which workspace was spoken for."""
    scope = client.scope
    if "workspace" in scope:
        return {"workspace": {"name": scope["workspace"]}}
    return {"git": {"identity": scope["identity"]}} if "identity" in scope else {}


_CURRENT: ContextVar[AppContext] = ContextVar("osmosis-cli-context")


def current() -> AppContext:
    """The context of the command that is running."""
    return _CURRENT.get()


@contextmanager
def using(context: AppContext) -> Iterator[AppContext]:
    """Make a context the current one for a block."""
    token = _CURRENT.set(context)
    try:
        yield context
    finally:
        _CURRENT.reset(token)


_FLAGS = ("--json", "--plain", "--offline")
_VALUED = {"--platform": "platform", "--workspace": "workspace", "--env-file": "env_file"}


def mode_of(argv: Sequence[str]) -> Mode:
    """The output mode, known before the line is parsed so that even its errors have the right form."""
    asked = argv[: argv.index("--")] if "--" in argv else argv
    return Mode.JSON if "--json" in asked else Mode.PLAIN if "--plain" in asked else Mode.RICH


def hoist(argv: Sequence[str]) -> tuple[GlobalOptions, list[str]]:
    """Take the global options out of a command line, wherever they stand before a bare `--`.

    A `--platform` without a value stays where it is: `init` has a flag of that name.
    """
    flags: set[str] = set()
    values: dict[str, str] = {}
    rest: list[str] = []
    words = iter(range(len(argv)))
    for i in words:
        word = argv[i]
        name, equals, value = word.partition("=")
        if word == "--":
            rest.extend(argv[i:])
            break
        if word in _FLAGS:
            flags.add(word)
        elif name in _VALUED and (equals or (i + 1 < len(argv) and not argv[i + 1].startswith("-"))):
            values[_VALUED[name]] = value if equals else argv[next(words)]
        elif name in _VALUED and (name != "--platform" or "init" not in rest[:1]):
            raise UsageError(f"option {name} needs a value")
        else:
            rest.append(word)
    if {"--json", "--plain"} <= flags:
        raise UsageError("--json and --plain cannot be used together")
    options = GlobalOptions(
        mode=mode_of(argv),
        platform=values.get("platform"),
        workspace=values.get("workspace"),
        env_file=values.get("env_file"),
        offline="--offline" in flags,
    )
    return options, rest
