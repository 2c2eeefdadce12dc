"""Local evaluation on the command line: flags to a plan (`plan`), a session of a run (`session`), its picture (`show`).

Each command has a file named after it; `command` is `osmosis eval -m ...` itself. Nothing here talks to a
platform, except `upload`.
"""
