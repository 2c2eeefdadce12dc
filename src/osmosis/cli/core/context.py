"""The context of a command. Nothing below the command line reads `os.environ`: values are passed from here."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from osmosis.cli.core.old_spellings import respell
from osmosis.cli.core.output import Mode, Output, is_terminal
from osmosis.errors import UsageError

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
        from osmosis.client.settings import platform_url

        return platform_url(self.environ, self.options.platform)

    @property
    def in_workspace(self) -> bool:
        return any((folder / "rollouts").is_dir() for folder in (self.cwd, *self.cwd.parents))

    def path(self, value: str | Path) -> Path:
        return self.cwd / Path(value).expanduser()

    def client(self, *, auth: bool = True, scoped: bool = True) -> "PlatformClient":
        from osmosis.cli.core.connect import open_client

        return open_client(self, auth=auth, scoped=scoped)


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


_VALUED = ("--platform", "--workspace", "--env-file")


def mode_of(argv: Sequence[str]) -> Mode:
    words = argv[: argv.index("--")] if "--" in argv else argv
    return Mode.JSON if "--json" in words else Mode.PLAIN if "--plain" in words else Mode.RICH


def move_global_options(argv: Sequence[str]) -> list[str]:
    """Move the global options to the front of a command line, from anywhere before a bare `--`.

    A `--platform` without a value stays in place: `init` and `doctor` have a flag of that name.
    `help X` becomes `X --help`, and an older spelling today's. Raise UsageError for a missing value and for `--json`
    with `--plain`."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(range(len(argv)))
    for i in words:
        word = argv[i]
        name, equals, _ = word.partition("=")
        if word == "--":
            rest.extend(argv[i:])
            break
        if word in ("--json", "--plain", "--offline", "--yes", "-y") or (name in _VALUED and equals):
            front.append(word)
        elif name in _VALUED and i + 1 < len(argv) and not argv[i + 1].startswith("-"):
            front += [word, argv[next(words)]]
        elif name in _VALUED and (name != "--platform" or rest[:1] not in (["init"], ["doctor"])):
            raise UsageError(f"option {name} needs a value")
        else:
            rest.append(word)
    if {"--json", "--plain"} <= set(front):
        raise UsageError("--json and --plain cannot be used together")
    if rest[:1] == ["help"]:
        rest = [*rest[1:], "--help"]
    return [*front, *respell(rest)]
