"""Global options are taken from anywhere on the line, and only before a bare `--`."""

from __future__ import annotations

import pytest

from osmosis.cli.core.app import move_global_options
from osmosis.errors import UsageError


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ("--json eval list --limit 3", "--json eval list --limit 3"),
        ("eval --json list --platform=http://x --limit 3", "--json --platform=http://x eval list --limit 3"),
        ("eval list --workspace w --platform http://x", "--workspace w --platform http://x eval list"),
        ("__complete -- eval --json", "__complete -- eval --json"),
        ("init demo --platform", "init demo --platform"),
        ("init demo --platform http://127.0.0.1:1", "--platform http://127.0.0.1:1 init demo"),
        ("eval stop run-1 -y", "-y eval stop run-1"),
        ("help eval info", "eval info --help"),
        ("eval list --platform --help", "eval list --help"),
        ("eval -m --help", "eval --help"),
        ("eval submit config.toml --model --help", "eval submit config.toml --help"),
        ("eval edit run-1 -- --help", "eval edit run-1 -- --help"),
    ],
)
def test_global_options_are_moved_to_the_front(line: str, moved: str) -> None:
    assert move_global_options(line.split()) == moved.split()


@pytest.mark.parametrize("line", ["eval list --platform", "--workspace --json eval list", "doctor --env-file"])
def test_a_missing_value_is_named(line: str) -> None:
    with pytest.raises(UsageError, match="needs a value"):
        move_global_options(line.split())


def test_json_and_plain_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="cannot be used together"):
        move_global_options(["--json", "eval", "list", "--plain"])
