"""What a type checker makes of a project that uses us: unknown names are errors, known ones have their types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from osmosis import Nope
from osmosis import RolloutAgentLoop, osmosis_reward
from osmosis_ai import Neither
from osmosis_ai.rollout.core.schemas import RolloutRequest
from osmosis_ai.rollout.core.schemas import RolloutReqest
import osmosis_ai.rollout.nothing

reveal_type(RolloutRequest)
reveal_type(RolloutAgentLoop)
"""


def test_a_project_is_checked_against_real_types(tmp_path: Path) -> None:
    """Shape: `file:line: error|note: text`."""
    (tmp_path / "project.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--config-file", "", "--cache-dir", str(tmp_path / "cache"), "project.py"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found: dict[str, str] = {}
    for line in said.stdout.splitlines():
        if line.startswith("project.py:"):
            found.setdefault(line.split(":")[1], line)
    assert 'has no attribute "Nope"' in found["2"]
    assert 'has no attribute "Neither"' in found["4"]
    assert 'has no attribute "RolloutReqest"' in found["6"]
    assert "osmosis_ai.rollout.nothing" in found["7"]
    assert "osmosis.records.wire02.RolloutRequest" in found["9"]
    assert "osmosis.sdk.agent_loop.RolloutAgentLoop" in found["10"]
    assert set(found) == {"2", "4", "6", "7", "9", "10"}, said.stdout + said.stderr
