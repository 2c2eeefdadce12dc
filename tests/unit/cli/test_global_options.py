"""Global options are taken from anywhere on the line, and only before a bare `--`."""

from __future__ import annotations

import pytest

from osmosis.cli.context import hoist
from osmosis.cli.output import Mode
from osmosis.errors import UsageError


@pytest.mark.parametrize(
    "line",
    [
        "--json --platform http://x --workspace w eval list --limit 3",
        "eval --json list --platform=http://x --limit 3 --workspace w",
        "eval list --limit 3 --workspace=w --platform http://x --json",
    ],
)
def test_they_stand_anywhere(line: str) -> None:
    options, rest = hoist(line.split())
    assert (options.mode, options.platform, options.workspace) == (Mode.JSON, "http://x", "w")
    assert rest == ["eval", "list", "--limit", "3"]


def test_a_bare_double_dash_ends_them() -> None:
    options, rest = hoist(["__complete", "--", "eval", "--json"])
    assert options.mode is Mode.RICH
    assert rest == ["__complete", "--", "eval", "--json"]


def test_the_platform_flag_of_init_stays_with_init() -> None:
    _, rest = hoist(["init", "demo", "--platform"])
    assert rest == ["init", "demo", "--platform"]
    options, rest = hoist(["init", "demo", "--platform", "http://127.0.0.1:1"])
    assert (options.platform, rest) == ("http://127.0.0.1:1", ["init", "demo"])


@pytest.mark.parametrize("line", ["eval list --platform", "--workspace --json eval list", "doctor --env-file"])
def test_a_missing_value_is_named(line: str) -> None:
    with pytest.raises(UsageError, match="needs a value"):
        hoist(line.split())


def test_json_and_plain_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="cannot be used together"):
        hoist(["--json", "eval", "list", "--plain"])
