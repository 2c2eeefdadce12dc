"""The command reference, made from the commands: `docs/cli.md` is this text, and a check that a line parses.

Walks the table and loads every command; used by the documentation and the tests, never by a command.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from osmosis.errors import OsmosisError, UsageError

from .context import hoist
from .helptext import GLOBALS_HELP
from .main import ROOT
from .resolve import Command, Group, load, resolve, usage_of

HEAD = """\
# Commands

Generated from the commands by `make docs`; do not edit. A group without a command prints its help,
`-h` works everywhere, and a mistyped command gets a suggestion.

Exit codes: 0 done; 1 known error, or a run that failed, has no score at all or fell below its threshold; 2 wrong
command line; 3 a bug in osmosis (a bug report is written); 130 interrupted.
"""


def commands(group: Group = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every visible command as `(path, command object)`, in the order of the table."""
    for name, entry in group.commands.items():
        if entry.hidden:
            continue
        if isinstance(entry, Group):
            yield from commands(entry, (*path, name))
            if entry.fallback:
                yield (*path, name, "-m"), load(entry.fallback, name)
        else:
            yield from _walk(load(entry, name), (*path, name))


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    if command.invoke_without_command:
        if "Example:" not in (command.help or ""):  # the group's own function says more than the group
            command.help = inspect.getdoc(command.callback) or command.help
        yield path, command
    for name, child in children.items():
        if not child.hidden:
            yield from _walk(child, (*path, name))


def reference() -> str:
    """The whole page."""
    parts = [HEAD, "## Options accepted anywhere on the line\n", "```\n" + GLOBALS_HELP + "```\n"]
    section = ""
    for path, command in commands():
        top = ROOT.commands[path[0]]
        if top.section != section:
            section = top.section
            parts.append(f"## {section}\n")
        parts.append(_entry(path, command))
    return "\n".join(parts)


def _entry(path: Sequence[str], command: Any) -> str:
    name = " ".join(("osmosis", *path))
    about, examples = split_help(command.help or "")
    usage = [f"osmosis {' '.join(path[:-1])} -m" if path[-1] == "-m" else name]
    usage += [_argument(p) for p in command.params if p.param_type_name == "argument"]
    lines = [f"### {name}\n", about + "\n", "```"]
    lines += [" ".join([*usage, "[OPTIONS]"]), *([""] if examples else []), *examples, "```\n"]
    rows = [_option(p) for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
    if rows:
        lines += ["| option | |", "| --- | --- |", *rows, ""]
    return "\n".join(lines)


def split_help(text: str) -> tuple[str, list[str]]:
    """The description, and the command lines of the example."""
    text = inspect.cleandoc(text.replace("\b\n", ""))
    head, _, tail = text.partition("Example:")
    about = re.sub(r"\n(?!\n)(?=\S)(?<!\n\n)", " ", head.strip())
    return about, [line.strip() for line in tail.splitlines() if line.strip()]


def _argument(param: Any) -> str:
    name = (param.metavar or param.name or "").upper().strip("[]").removesuffix("...")
    shown = f"{name}..." if param.nargs == -1 else name
    return shown if param.required else f"[{shown}]"


def _option(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    text = (param.help or "").replace("|", "\\|").rstrip(".")
    if closed := param.shell_complete(None, ""):
        text += f": {', '.join(choice.value for choice in closed)}"
    default = param.default
    plain = isinstance(default, (str, int, float)) and not isinstance(default, bool)
    if plain and default != "" and "[default" not in text:
        text += f" (default {default})"
    return f"| {names} | {text}{' (required)' if param.required else ''} |"


def why_wrong(line: str) -> str | None:
    """Why a command line (`osmosis ...`) does not parse; None when it does. Runs nothing."""
    words = shlex.split(line, comments=True)
    if not words or words[0] not in ("osmosis", "osmosis-ai", "osmosis_ai"):
        return "it does not start with osmosis"
    try:
        _, rest = hoist(words[1:])
        if rest[:1] in (["--version"], ["-V"]):
            return None
        found = resolve(ROOT, rest)
        if found.command is None:
            return None
        parse_only(found.command, found.path, found.args)
    except OsmosisError as error:
        return error.message
    return None


def parse_only(entry: Command, path: Sequence[str], args: Sequence[str]) -> None:
    """Parse the arguments of a command without running it. Raises `UsageError`."""
    import typer

    command: Any = load(entry, path[-1])
    words, at = list(args), list(path)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            raise UsageError(f"no such command: osmosis {' '.join([*at, words[0]])}")
        at.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands") and not words:
        return
    try:
        command.make_context(" ".join(["osmosis", *at]), words)
    except typer.Exit:
        return
    except typer.TyperException as wrong:
        raise usage_of(wrong, at) from wrong


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference())
