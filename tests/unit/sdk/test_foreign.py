"""Environments of other packages, as far as they need no package: `tests/flow/test_foreign.py` has the real ones."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from osmosis.engine.load_agent import load_agent
from osmosis.engine.loader import load_object
from osmosis.errors import LoadError, UsageError
from osmosis.local.evaluate import evaluate
from osmosis.sdk.foreign import PACKAGES, is_foreign, open_foreign, parse_foreign


def test_options_follow_the_name_as_json_or_text() -> None:
    name, options = parse_foreign("reasoning-gym:chain_sum?size=5&tag=a%20b&min_terms=2&plain=true")
    assert name == "chain_sum"
    assert options == {"size": 5, "tag": "a b", "min_terms": 2, "plain": True}


def test_only_the_words_of_packages_name_an_environment() -> None:
    assert all(is_foreign(f"{kind}:x") for kind in PACKAGES)
    assert not any(map(is_foreign, ("server:loop", "verifiers", "./reasoning-gym/main.py", "mcp:./tools")))


@pytest.mark.parametrize("load", [open_foreign, load_object, load_agent])
@pytest.mark.parametrize("kind", sorted({*PACKAGES} - {"openenv"}))  # which is asked over HTTP, without its package
def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(
    kind: str, load: Callable[[str, Path], object], tmp_path: Path
) -> None:
    package = PACKAGES[kind].partition(">")[0]
    if find_spec(package.replace("-", "_")):
        pytest.skip(f"{package} is installed")
    with pytest.raises(LoadError, match=f"needs {package}>=") as problem:
        load(f"{kind}:x", tmp_path)
    assert f"'{PACKAGES[kind]}'; for a rollout" in str(problem.value.hint)
    assert f'uv add "{PACKAGES[kind]}"' in str(problem.value.hint)
    with pytest.raises(LoadError, match="names no environment"):
        load(f"{kind}:", tmp_path)


def test_an_agent_that_brings_no_rows_needs_them() -> None:
    with pytest.raises(UsageError, match="needs the rows for server:loop"):
        evaluate("server:loop", model="offline/calculator")
