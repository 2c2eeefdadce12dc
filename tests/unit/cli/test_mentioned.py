"""A line is read by the options that it mentions as by all of them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Annotated

import pytest
import typer

from osmosis.cli.flags import takes
from osmosis.cli.mentioned import with_mentioned
from osmosis.cli.resolve import Command, FoundCommand, invoke
from osmosis.errors import UsageError


@dataclass(frozen=True)
class _Flags:
    names: Annotated[list[str], typer.Argument()] = field(default_factory=list)
    number: Annotated[int, typer.Option("--number", "-n", "--count")] = 1
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False
    colour: Annotated[bool, typer.Option(help="Of all that is written.")] = True
    tag: Annotated[list[str], typer.Option(help="Repeatable.")] = field(default_factory=list)
    token: Annotated[str | None, typer.Option(envvar="A_TOKEN")] = None
    kind: Annotated[str, typer.Option("--kind", "-k")] = "a"


@takes(_Flags)
def command(flags: _Flags) -> _Flags:
    """Says what it got."""
    return flags


def read(words: list[str]) -> _Flags:
    found = FoundCommand(["it"], Command(__name__, "command", "Says what it got."), words)
    flags: _Flags = invoke(found, SimpleNamespace())  # type: ignore[arg-type]  # only its `command` is set
    return flags


def names_of(words: list[str]) -> set[str] | None:
    less = with_mentioned(command, words)
    return None if less is None else set(inspect.signature(less).parameters)


ALWAYS = {"names", "token"}


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ([], set()),
        (["a", "b"], set()),
        (["--number", "3"], {"number"}),
        (["--count=3"], {"number"}),
        (["-n3"], {"number"}),
        (["-yq"], {"yes", "quiet"}),
        (["--no-colour"], {"colour"}),
        (["--tag", "x", "--tag=y"], {"tag"}),
        (["-k", "b"], {"kind"}),
    ],
)
def test_an_option_is_there_where_the_line_mentions_it(words: list[str], more: set[str]) -> None:
    assert names_of(words) == ALWAYS | more


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["a", "-n3", "-yq", "b"], _Flags(["a", "b"], 3, True, True)),
        (["--no-colour", "--tag=x", "--tag", "y", "--", "--quiet"], _Flags(["--quiet"], colour=False, tag=["x", "y"])),
        (["-k", "--quiet"], _Flags(kind="--quiet")),
    ],
)
def test_a_line_means_what_it_means_to_the_whole_command(words: list[str], flags: _Flags) -> None:
    assert read(words) == flags


def test_the_environment_is_asked_without_being_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "t")
    assert read(["a"]) == _Flags(["a"], token="t")


@pytest.mark.parametrize(
    ("words", "said"), [(["--nmber", "3"], "did you mean"), (["--number", "x"], "--number"), (["--tag"], "--tag")]
)
def test_what_is_wrong_is_said_by_the_whole_command(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(words)
    assert said in str(caught.value)


def plain(limit: Annotated[int | None, typer.Option("--most", min=1, max=50)] = None) -> int | None:
    """A command whose parameters are its own."""
    return limit


def test_an_option_without_a_default_keeps_its_name_and_its_bounds() -> None:
    def reading(*words: str) -> object:
        return invoke(FoundCommand(["it"], Command(__name__, "plain", ""), list(words)), SimpleNamespace())  # type: ignore[arg-type]  # the same

    assert reading("--most", "7") == 7
    with pytest.raises(UsageError, match="50"):
        reading("--most", "51")
    less = with_mentioned(plain, [])
    assert less is not None
    assert not inspect.signature(less).parameters


def test_help_wants_the_whole_command() -> None:
    assert names_of(["--number", "3", "--help"]) is None
    assert names_of(["-h"]) is None
