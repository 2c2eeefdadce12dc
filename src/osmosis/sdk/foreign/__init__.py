"""Environments of other packages as an agent with its grader and its rows. Options follow the name as in a URL:
`reasoning-gym:chain_sum?size=50&seed=1`. Each package's module is imported when it is named."""

import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import parse_qsl

from osmosis.base.installation import install_command
from osmosis.base.jsonable import JsonObject, parse_or_text
from osmosis.errors import LoadError, OsmosisError
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.types import RolloutSample
from osmosis.sdk.workflow import AgentWorkflow, Grader, GraderContext, TConfig

PACKAGES = {
    "a2a": "a2a-sdk>=1.1,<2",
    "reasoning-gym": "reasoning-gym>=0.1.25,<0.2",
    "verifiers": "verifiers>=0.4,<0.5",
    "inspect": "inspect-ai>=0.3.285,<0.4",
    "openenv": "openenv>=0.10,<0.11",
    "harbor": "harbor>=0.25,<0.27",
}
"""Requirement by the word before the colon. A module here has the same name."""


class ForeignWorkflow(AgentWorkflow[TConfig]):
    """Always has its config. One whose package keeps the conversation registers itself, once it has the `sample`."""

    config: TConfig
    sample: RolloutSample

    async def get_sample(self) -> RolloutSample:
        return self.sample


class KeepReward(Grader[object]):
    async def grade(self, ctx: GraderContext) -> None: ...


@dataclass(frozen=True)
class ForeignEnvironment:
    backend: LocalBackend
    make_rows: Callable[[], Iterable[JsonObject]]


def is_foreign(name: str) -> bool:
    return ":" in name and name.partition(":")[0] in PACKAGES


def parse_foreign(text: str) -> tuple[str, JsonObject]:
    name, _, query = text.partition(":")[2].partition("?")
    return name, {key: parse_or_text(value) for key, value in parse_qsl(query, keep_blank_values=True)}


def open_foreign(text: str, base_dir: Path) -> ForeignEnvironment:
    if (base := str(base_dir.resolve())) not in sys.path:
        sys.path.insert(0, base)
    return _open(text, base_dir.resolve())


def load_environment(name: str) -> LocalBackend:
    """Return another package's environment as a backend: `load_environment("reasoning-gym:chain_sum")`."""
    return open_foreign(name, Path.cwd()).backend


@lru_cache(maxsize=8)
def _open(text: str, base_dir: Path) -> ForeignEnvironment:
    (name, options), kind = parse_foreign(text), text.partition(":")[0]
    if not is_foreign(text) or not name:
        raise LoadError(f"{text} names no environment", hint=" or ".join(f"{word}:NAME" for word in PACKAGES))
    package = PACKAGES[kind]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # what reasoning-gym needs has some
            module = importlib.import_module(f"{__name__}.{kind.replace('-', '_')}")
    except ImportError as error:
        hint = f"{install_command(package)}; for a rollout, in its folder: uv add {json.dumps(package)}"
        raise LoadError(f"{text} needs {package}, which cannot be imported: {error}", hint=hint) from error
    try:
        environment: ForeignEnvironment = module.open_environment(name, options, base_dir)
    except OsmosisError:
        raise
    except Exception as error:
        raise LoadError(f"{text} cannot be opened: {type(error).__name__}: {error}") from error
    return environment
