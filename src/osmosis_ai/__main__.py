"""`python -m osmosis_ai` is `osmosis`."""

from osmosis.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
