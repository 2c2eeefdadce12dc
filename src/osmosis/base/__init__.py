"""The floor: small primitives that every package may use and that know nothing of osmosis itself."""
