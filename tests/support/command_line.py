"""Run the `osmosis` command inside a test: a folder, an environment and an input of its own, everything it said kept.

Nothing is replaced but the streams: the command line, its commands and whatever they reach are real.
"""

import contextlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.jsonable import JsonObject
from osmosis.cli.main import main


@dataclass(frozen=True)
class CommandRun:
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> JsonObject:
        """The envelope on stdout."""
        envelope: JsonObject = json.loads(self.out)
        return envelope

    @property
    def error(self) -> JsonObject:
        """The `error` of the last envelope on stderr."""
        body: JsonObject = json.loads(self.err.strip().splitlines()[-1])["error"]
        return body


def login_environ(url: str, token: str) -> dict[str, str]:
    """The variables of somebody who is logged in at this platform."""
    return {"OSMOSIS_PLATFORM_URL": url, "OSMOSIS_TOKEN": token, "OSMOSIS_TOKEN_PLATFORM_URL": url}


def run_command(*words: str, cwd: Path, environ: Mapping[str, str] | None = None, stdin: str = "") -> CommandRun:
    """Run one command line in this process, with config, data and cache folders under `cwd/.home`.

    `environ` adds to that; nothing of this process's environment but `PATH` is seen.
    """
    import os

    home = cwd / ".home"
    surroundings = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(home),
        "OSMOSIS_CONFIG_DIR": str(home / "config"),
        "OSMOSIS_DATA_DIR": str(home / "data"),
        "OSMOSIS_CACHE_DIR": str(home / "cache"),
        **(environ or {}),
    }
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words), environ=surroundings, cwd=cwd, stdin=io.StringIO(stdin))
    return CommandRun(code, out.getvalue(), err.getvalue())
