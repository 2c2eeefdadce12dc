"""The folder a person works in: its layout, its TOML configs, its git state, its templates, its health.

Facts are read first (`git`, `layout`), rules over them are pure (`preflight`), nothing here prints or asks.
"""
