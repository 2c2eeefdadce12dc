"""Dataset files: one reader and one rule book, for local runs, for `osmosis dataset validate` and for a platform.

Looks at data only: nothing in a file is ever run, and no file is changed.
"""
