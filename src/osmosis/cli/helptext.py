"""The help of the groups that the table describes: written without loading a single command."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .resolve import Group

GLOBALS_HELP = """\
  --json            Print results as one line of JSON on stdout
  --plain           Print results as tab-separated lines, no colours
  --platform URL    Platform to use (or OSMOSIS_PLATFORM_URL); default http://127.0.0.1:7575
  --workspace NAME  Workspace to use; default: the one this checkout is connected to
  --env-file FILE   Read variables from FILE (or OSMOSIS_ENV_FILE) instead of the nearest .env
  --offline         Refuse network connections beyond this machine, except to --base-url
  -h, --help        Show help for any group or command
  -V, --version     Show the version
"""
_START = "Start here:\n  osmosis quickstart\n"


def group_help(group: Group, path: Sequence[str]) -> str:
    """The help text of a table group; `path` is how it was reached."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 110)
    name = " ".join(["osmosis", *path])
    parts = [f"Usage: {name} COMMAND [ARGS]...\n", group.help + "\n"]
    if group.about:
        parts.append(group.about + "\n")
    sections: dict[str, list[tuple[str, str]]] = {}
    for word, entry in group.commands.items():
        if not entry.hidden:
            sections.setdefault(entry.section, []).append((word, entry.help))
    longest = max((len(word) for rows in sections.values() for word, _ in rows), default=0)
    for section, rows in sections.items():
        lines = [f"{section if section and not path else 'Commands'}:"]
        for word, text in rows:
            indent = " " * (longest + 4)
            lines.append(textwrap.fill(text, width, initial_indent=f"  {word:<{longest}}  ", subsequent_indent=indent))
        parts.append("\n".join(lines) + "\n")
    if path:
        parts.append(f"For details: {name} COMMAND --help\n")
    else:
        parts += ["Options accepted anywhere on the line:\n" + GLOBALS_HELP, _START]
    return "\n".join(parts)
