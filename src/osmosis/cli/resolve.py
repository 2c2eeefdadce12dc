"""From words to a command: walk the table, load the one module that is meant, hand the rest to typer.

A wrong word gets the nearest right one. Uses only what `typer` exports, because older versions stand on `click`
and newer ones bring their own copy of it.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import inspect
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from osmosis.base.light_dataclass import dataclass
from osmosis.base.pydantic_plugins import without_plugins
from osmosis.errors import UsageError

from .mentioned import with_mentioned

if TYPE_CHECKING:
    from .context import AppContext

HELP = ("-h", "--help", "help")
SYNONYMS = {
    "ls": "list",
    "show": "info",
    "get": "info",
    "describe": "info",
    "status": "info",
    "rm": "delete",
    "remove": "delete",
    "del": "delete",
    "add": "create",
    "new": "create",
    "push": "upload",
    "pull": "download",
    "cancel": "stop",
    "kill": "stop",
    "tail": "logs",
    "log": "logs",
    "use": "switch",
    "start": "submit",
    "run": "submit",
    "lint": "check",
    "validate": "check",
}


@dataclass(frozen=True)
class Command:
    """Where a command lives; `attr` names a function, or a `typer.Typer` for a group; it may have dots."""

    module: str
    attr: str
    help: str
    section: str = ""
    hidden: bool = False

    def target(self) -> Any:
        """The function or `typer.Typer` itself: its module is loaded here, and nowhere else.

        What a start makes lives as long as the process, so the collector neither looks for garbage in it meanwhile
        nor walks through it afterwards: that is a tenth of the time of a local run's start.
        """
        gc.disable()
        try:
            return operator.attrgetter(self.attr)(importlib.import_module(self.module))
        finally:
            gc.freeze()
            gc.enable()


@dataclass(frozen=True)
class Group:
    """Commands of several modules under one word."""

    help: str
    commands: Mapping[str, Command | Group]
    section: str = ""
    hidden: bool = False
    about: str = ""
    """Printed under the help line, as it stands."""
    fallback: Command | None = None
    """Runs when the first word is an option: `osmosis eval -m ...`."""
    guesses: Mapping[str, str] = field(default_factory=dict)
    """What people type when they guess wrong -> what they mean."""


@dataclass
class FoundCommand:
    """What a command line means so far."""

    path: list[str] = field(default_factory=list)
    command: Command | None = None
    args: list[str] = field(default_factory=list)
    help_of: Group | None = None
    """The group whose help is wanted."""
    asked_for_help: bool = False


def resolve(root: Group, words: Sequence[str]) -> FoundCommand:
    """Follow the table as far as it goes. Raises `UsageError` for a word that is no command."""
    found, group, rest = FoundCommand(), root, list(words)
    while True:
        if not rest or rest[0] in HELP:
            found.help_of, found.asked_for_help = group, bool(rest)
            if rest[:1] == ["help"] and rest[1:]:
                rest = [*rest[1:], "--help"]
                continue
            return found
        word = rest[0]
        if word.startswith("-"):
            if group.fallback is None:
                raise UsageError(f"no such option: {word}", hint=_help_line(found.path))
            found.command, found.args = group.fallback, rest
            return found
        entry = group.commands.get(word)
        if entry is None:
            raise unknown_command(word, found.path, _visible(group), group.guesses)
        found.path.append(word)
        rest = rest[1:]
        if isinstance(entry, Command):
            found.command, found.args = entry, rest
            return found
        group = entry


def _visible(group: Group) -> list[str]:
    return [name for name, entry in group.commands.items() if not entry.hidden]


def unknown_command(word: str, path: Sequence[str], known: Sequence[str], guesses: Mapping[str, str]) -> UsageError:
    """The error for a word that is no command, with the nearest one that is."""
    meant = guesses.get(word) or nearest(word, known)
    where = " ".join(["osmosis", *path])
    message = f"no such command: {where} {word}" + (f"; did you mean {meant}?" if meant else "")
    return UsageError(message, hint=f"{where} {meant}" if meant else _help_line(path), known=list(known))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like `word`, by spelling or by meaning."""
    names = {name.lower(): name for name in known}
    lowered = word.lower()
    if SYNONYMS.get(lowered) in names:
        return names[SYNONYMS[lowered]]
    close = difflib.get_close_matches(lowered, names, n=1, cutoff=0.6)
    starts = [name for name in names if len(word) > 1 and name.startswith(lowered)]
    found = next(iter(close or starts), None)
    return names[found] if found else None


def _help_line(path: Sequence[str]) -> str:
    return " ".join(["osmosis", *path, "--help"])


def load(entry: Command, name: str) -> Any:
    """The command object behind a table entry, with our help style on it and everything below it."""
    return _built(entry.target(), name)


def _built(target: Any, name: str) -> Any:
    import typer

    if isinstance(target, typer.Typer):
        command: Any = typer.main.get_group(target)
    else:
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command(name=name, help=inspect.getdoc(target))(target)
        command = typer.main.get_command(app)
    _style(command)
    return command


def _style(command: Any) -> None:
    """Keep the indented examples of help texts as they are written, and accept `-h` everywhere."""
    command.rich_markup_mode = None
    command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    command.context_settings.setdefault("max_content_width", 110)
    if command.help:
        blocks = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(f"\b\n{b}" if "\n " in b or b.startswith(" ") else b for b in blocks)
    for child in getattr(command, "commands", {}).values():
        _style(child)


def invoke(found: FoundCommand, ctx: AppContext) -> Any:
    """Parse the arguments, run the command, return what it returns (an int for `--help`)."""
    assert found.command is not None
    target = found.command.target()
    if not found.args and inspect.isfunction(target) and not inspect.signature(target).parameters:
        ctx.command = " ".join(found.path)
        return target()  # nothing to parse: typer would load pydantic for it
    import typer

    try:
        with _parsed(found, target, ctx) as parsed:
            return parsed.command.invoke(parsed)
    except typer.Exit as done:
        return done.exit_code
    except (typer.Abort, EOFError):
        raise KeyboardInterrupt from None
    except typer.TyperException as wrong:
        raise usage_of(wrong, found.path) from wrong


def _parsed(found: FoundCommand, target: Any, ctx: AppContext) -> Any:
    """The context of the command that is meant, its values read from the line."""
    import typer

    with without_plugins():  # typer has pydantic check what was typed
        if not isinstance(target, typer.Typer) and (less := with_mentioned(target, found.args)) is not None:
            ctx.command = " ".join(found.path)
            with contextlib.suppress(typer.TyperException):  # the whole command says better what is wrong
                return _context(_built(less, found.path[-1]), found, found.args)
        command = _built(target, found.path[-1])
        ctx.command = " ".join(found.path + _sub_path(command, found.args))
        bare = hasattr(command, "commands") and not found.args and not command.invoke_without_command
        return _context(command, found, ["--help"] if bare else found.args)


def _context(command: Any, found: FoundCommand, words: Sequence[str]) -> Any:
    return command.make_context(" ".join(["osmosis", *found.path]), list(words))


def _sub_path(command: Any, args: Sequence[str]) -> list[str]:
    path = []
    for word in args:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        path.append(word)
    return path


def usage_of(wrong: Any, path: Sequence[str]) -> UsageError:
    """What typer says is wrong with the line, in our words."""
    ctx = getattr(wrong, "ctx", None)
    at = ctx.command_path if ctx else " ".join(["osmosis", *path])
    message = wrong.format_message().replace("Value error, ", "")  # pydantic's prefix
    if message.startswith("No such command") and ctx is not None:
        word = message.split("'")[1] if "'" in message else ""
        known = [name for name, child in ctx.command.commands.items() if not child.hidden]
        return unknown_command(word, at.split()[1:], known, {})
    possible = getattr(wrong, "possibilities", None)
    if message.startswith("No such option") and getattr(wrong, "option_name", None):
        message = f"no such option: {wrong.option_name}"
        if possible:
            message += f"; did you mean {' or '.join(sorted(possible))}?"
    return UsageError(_lower(message).rstrip("."), hint=f"{at} --help")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
