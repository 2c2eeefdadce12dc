"""Run the `osmosis` command in a real terminal, and type answers where it asks."""

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_in_terminal(
    folder: Path, words: Sequence[str], answers: Sequence[tuple[bytes, bytes]], environ: Mapping[str, str] | None = None
) -> bytes:
    """Return all that the terminal showed; an answer is typed once its question stands behind the one before."""
    here, there = os.openpty()
    surroundings = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", **(environ or {})}
    command = [sys.executable, "-m", "osmosis", *words]
    streams = {"stdin": there, "stdout": there, "stderr": there}
    process = subprocess.Popen(command, cwd=folder, env=surroundings, start_new_session=True, **streams)
    os.close(there)
    shown, seen, waiting = b"", 0, list(answers)
    try:
        while True:
            ready, _, _ = select.select([here], [], [], 60)
            assert ready, shown
            try:
                shown += os.read(here, 65536)
            except OSError:  # the other end is closed: the command is over
                break
            if waiting and (at := shown.find(waiting[0][0], seen)) >= 0:
                seen = at + len(waiting[0][0])
                os.write(here, waiting.pop(0)[1])
        process.wait(60)
    finally:
        process.kill()
        os.close(here)
    return shown
