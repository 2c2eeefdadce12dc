"""The command line. `main` is the console script; importing this package loads no command and no library."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return the exit code."""
    from .main import main as run

    return run(argv)


__all__ = ["main"]
