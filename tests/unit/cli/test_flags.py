"""A command whose flags are a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from typer.testing import CliRunner

from osmosis.cli.core.app import takes


@dataclass(frozen=True)
class Flags:
    name: Annotated[str, typer.Argument(help="Who.")]
    count: Annotated[int, typer.Option("--count", "-c", help="How many.")] = 3
    file: Annotated[Path | None, typer.Option(help="Where.")] = None
    tag: Annotated[list[str], typer.Option(help="Words.")] = field(default_factory=list)
    loud: Annotated[bool, typer.Option("--loud", help="Shout.")] = False


seen: list[Flags] = []


@takes(Flags)
def command(flags: Flags) -> None:
    """Greets."""
    seen.append(flags)


def go(*words: str) -> Flags:
    app = typer.Typer()
    app.command()(command)
    seen.clear()
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return seen[0] if seen else Flags("")


def test_a_field_is_a_flag_with_its_type_and_default() -> None:
    assert go("me") == Flags("me")
    given = go("me", "-c", "5", "--file", "a/b", "--tag", "x", "--tag", "y", "--loud")
    assert given == Flags("me", 5, Path("a/b"), ["x", "y"], True)


def test_the_help_is_the_fields() -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command)
    said = CliRunner().invoke(app, ["--help"]).output
    assert "Greets." in said
    for word in ("--count", "How many.", "[default: 3]", "Where.", "Shout."):
        assert word in said
