"""A job's process that stands ready has done what need not be done while somebody waits for it."""

from __future__ import annotations

import subprocess
import sys

WAITS = """
import runpy, sys
sys.argv = ["osmosis.jobs", "--wait", "."]
try:
    runpy.run_module("osmosis.jobs", run_name="__main__")
except SystemExit as end:
    from osmosis.records.base import Record
    from osmosis.records.run import JobSpec, HeartbeatReply
    from osmosis.records.wire import RolloutInit
    from osmosis.sandbox import probe
    built = [kind.__pydantic_complete__ for kind in (JobSpec, HeartbeatReply, RolloutInit)]
    print(end.code, probe.cache_info().misses, *built)
"""


def test_what_every_job_needs_is_there_before_there_is_one() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WAITS], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["0", "1", "True", "True", "True"]
