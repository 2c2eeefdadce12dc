"""A shell that stands in a folder somebody removed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.flow


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"rmdir '{gone}'; exec '{sys.executable}' -m osmosis whoami"
    done = subprocess.run(["sh", "-c", line], cwd=gone, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: the current folder no longer exists")
