"""`osmosis benchmark`, which the original service has and osmosis has not: it says so, whatever stands behind it."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis.errors import NotOffered


def benchmark(words: Annotated[list[str] | None, typer.Argument(help="What was asked for")] = None) -> None:
    """Say that there are no benchmarks, and what to run instead.

    Example:
        osmosis eval submit configs/eval/multiply.toml
    """
    raise NotOffered("osmosis does not offer benchmarks", hint="run an evaluation: osmosis eval submit")
