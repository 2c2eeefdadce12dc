"""The command reference `docs/cli.md`, generated from the commands; imports every command."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from osmosis.cli.core.app import LazyCommand, find_command, move_global_options, usage_error
from osmosis.cli.main import ROOT
from osmosis.errors import OsmosisError

HEAD = """\
# Commands

Generated from the commands by `make docs`; do not edit. A group without a command prints its help,
`-h` works everywhere, and a mistyped command gets a suggestion.

Exit codes: 0 done; 1 known error, or a run that failed, has no score at all or fell below its threshold; 2 wrong
command line; 3 a bug in osmosis (a bug report is written); 130 interrupted.
"""


def commands(group: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        loaded = command.load() if isinstance(command, LazyCommand) else command
        if not isinstance(loaded, TyperGroup):
            yield (*path, name), loaded
            continue
        if loaded.invoke_without_command:
            if "Example:" not in (loaded.help or ""):  # the group's own function says more than the group
                loaded.help = inspect.getdoc(loaded.callback) or loaded.help
            yield (*path, name), loaded
        yield from commands(loaded, (*path, name))


def reference() -> str:
    parts = [HEAD, "## Options accepted anywhere on the line\n", _option_table(ROOT)]
    panel = ""
    for path, command in commands():
        top: Any = ROOT.commands[path[0]]
        if top.rich_help_panel != panel:
            panel = top.rich_help_panel
            parts.append(f"## {panel}\n")
        parts.append(_entry(path, command))
    return "\n".join(parts)


def _entry(path: Sequence[str], command: Any) -> str:
    name = " ".join(("osmosis", *path))
    about, examples = split_help(command.help or "")
    arguments = [_argument(p) for p in command.params if p.param_type_name == "argument" and not p.hidden]
    usage = " ".join([name, *arguments, "[OPTIONS]"])
    lines = [f"### {name}\n", about + "\n", "```", usage, *([""] if examples else []), *examples, "```\n"]
    return "\n".join([*lines, *([table] if (table := _option_table(command)) else [])])


def split_help(text: str) -> tuple[str, list[str]]:
    text = inspect.cleandoc(text.replace("\b\n", ""))
    head, _, tail = text.partition("Example:")
    about = re.sub(r"\n(?!\n)(?=\S)(?<!\n\n)", " ", head.strip())
    return about, [line.strip() for line in tail.splitlines() if line.strip()]


def _argument(param: Any) -> str:
    name = re.sub(r"^\[(.*)\]$", r"\1", (param.metavar or param.name or "").upper().removesuffix("..."))
    text = f"{name}..." if param.nargs == -1 else name
    return text if param.required else f"[{text}]"


def _option_table(command: Any) -> str:
    rows = [_option(p) for p in command.params if p.param_type_name == "option" and not p.hidden]
    return "\n".join(["| option | |", "| --- | --- |", *rows, ""]) if rows else ""


def _option(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    text = (param.help or "").replace("|", "\\|").rstrip(".")
    if choices := param.type_descriptor.choices:
        text += f": {', '.join(map(str, choices))}"
    default = param.default
    plain = isinstance(default, (str, int, float)) and not isinstance(default, bool)
    if plain and default != "" and "[default" not in text:
        text += f" (default {default})"
    return f"| {names} | {text}{' (required)' if param.required else ''} |"


def why_wrong(line: str) -> str | None:
    """Return why a command line (`osmosis ...`) does not parse, None when it does; runs nothing."""
    words = shlex.split(line, comments=True)
    if not words or words[0] not in ("osmosis", "osmosis-ai", "osmosis_ai"):
        return "it does not start with osmosis"
    try:
        front, rest = _split_globals(move_global_options(words[1:]))
        command, path, words = find_command(ROOT, rest)
        if not isinstance(command, TyperGroup) or words:
            ROOT.make_context("osmosis", front, resilient_parsing=True)
            command.make_context(" ".join(["osmosis", *path]), words)
    except OsmosisError as error:
        return error.message
    except typer.Exit:
        return None
    except typer.TyperException as wrong:
        return usage_error(wrong).message
    return None


def _split_globals(words: Sequence[str]) -> tuple[list[str], list[str]]:
    valued = {name for param in ROOT.params for name in param.opts if not getattr(param, "is_flag", False)}
    flags = {name for param in ROOT.params for name in param.opts} - valued
    i = 0
    while i < len(words) and words[i].partition("=")[0] in valued | flags:
        i += 2 if words[i] in valued else 1
    return list(words[:i]), list(words[i:])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference())
