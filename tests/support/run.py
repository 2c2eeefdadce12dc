"""Run a module of this package as a program: `python tests/support/run.py fake_job ARGUMENT...`."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module(f"support.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
