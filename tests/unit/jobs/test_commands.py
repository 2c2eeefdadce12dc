"""What a killed job left is ended by its successor; an id that belongs to somebody else is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from osmosis.jobs.commands import PROCESSES_FILE, Leftovers

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_ends_what_was_left_and_only_that(tmp_path: Path) -> None:
    with (
        subprocess.Popen(SLEEP, start_new_session=True) as left,
        subprocess.Popen(SLEEP, start_new_session=True) as stranger,
    ):
        try:
            Leftovers(tmp_path).add(left.pid)
            listed = json.loads((tmp_path / PROCESSES_FILE).read_text())
            listed[str(stranger.pid)] = "another start time"
            (tmp_path / PROCESSES_FILE).write_text(json.dumps(listed))
            assert Leftovers(tmp_path).end_all() == 1
            assert left.wait(10) == -9
            assert stranger.poll() is None
            assert Leftovers(tmp_path).end_all() == 0
        finally:
            left.kill()
            stranger.kill()
