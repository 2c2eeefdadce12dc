"""The typed things that move between layers. A layer uses a record; it never redefines one.

Import each record from its module (`osmosis.records.rollout`); this package re-exports nothing, so that a
command loads only what it uses.
"""
