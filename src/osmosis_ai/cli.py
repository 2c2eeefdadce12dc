"""The command line: `python -m osmosis_ai.cli`."""

from osmosis.cli import main as main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
