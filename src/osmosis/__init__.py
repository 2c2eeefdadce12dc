"""osmosis: see `docs/`."""
