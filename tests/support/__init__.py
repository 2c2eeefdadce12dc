"""Fakes and helpers that tests and benchmarks share. Tests import them as `support.NAME`."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
RUN = (sys.executable, str(Path(__file__).with_name("run.py")))
"""Begins the command of a module that is run as a program: `[*RUN, "fake_job", ...]`."""
