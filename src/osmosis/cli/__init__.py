"""The command line. `main` is the console script; importing this package loads no command and no library."""

from __future__ import annotations

import gc
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return the exit code."""
    # Imports make many objects that stay, rollouts many and hardly a cycle: the collector's defaults cost a tenth.
    gc.set_threshold(20_000, 20, 20)
    from .main import main as run

    return run(argv)


__all__ = ["main"]
