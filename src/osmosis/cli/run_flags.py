"""The arguments and options that commands on runs share, so that `eval` and `train` mean the same by the same word.

Each is a default that typer reads. Only declarations: what the values do is in `runs` and `submit`.
"""

from __future__ import annotations

import typer

NAME = typer.Argument(..., help="Name or id of the run")
YES = typer.Option(False, "--yes", "-y", help="Do not ask")
SECRETS_FILE = typer.Option(None, "--secrets-file", help="NAME=value lines for this run only; - is stdin")

# submit
WAIT_SYNC = typer.Option(False, "--wait-sync", help="Wait until the platform has synced HEAD")
ALLOW_DIRTY = typer.Option(False, "--allow-dirty", help="Run what is synced, whatever lies here")
SNAPSHOT = typer.Option(False, "--snapshot", help="Run this working tree as it is, without a commit")

# list and info
LIMIT = typer.Option(None, min=1, max=50, help="How many [default: 50]")
OFFSET = typer.Option(0, min=0, help="How many to leave out")
EVERYTHING = typer.Option(False, "--all", help="All of them")
OUTPUT = typer.Option(None, "-o", "--output", help="Write the same as JSON to this file")

# logs
LINES = typer.Option(50, min=1, max=200, help="How many lines of the end")
CURSOR = typer.Option(None, help="Go further back: next_cursor of the last answer")
FOLLOW = typer.Option(False, "--follow", "-f", help="Go on until the run is over")
