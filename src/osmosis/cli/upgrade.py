from typing import Annotated

import typer

from osmosis._version import __version__
from osmosis.base.installation import upgrade_command
from osmosis.cli.core.results import NextStep, OperationResult
from osmosis.errors import NotOffered


def upgrade() -> OperationResult:
    """Show how to upgrade this installation; osmosis replaces no packages by itself.

    Example:
        osmosis upgrade
    """
    steps = [NextStep("upgrade it", command=upgrade_command())]
    message = f"this is osmosis-ai {__version__}"
    return OperationResult("upgrade", message, {"version": __version__}, next_steps=steps)


def benchmark(words: Annotated[list[str] | None, typer.Argument(help="Ignored")] = None) -> None:
    """Say that there are no benchmarks, and what to run instead.

    Example:
        osmosis eval submit configs/eval/multiply.toml
    """
    raise NotOffered("osmosis does not offer benchmarks", hint="run an evaluation: osmosis eval submit")
