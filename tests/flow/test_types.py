"""What a type checker makes of a project that uses us: unknown names are errors, known ones have their types."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

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


def check(tmp_path: Path, *command: str) -> tuple[dict[str, str], str]:
    """Line number -> the first error or note about it, and all that was said. That a stub has no module beside it is
    only a warning: a finder makes the modules of `osmosis_ai`."""
    (tmp_path / "project.py").write_text(PROGRAM)
    words = [sys.executable, "-m", *command, "project.py"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    found: dict[str, str] = {}
    for line in said.stdout.splitlines():
        match = re.search(r"project\.py:(\d+):", line)
        if match and "warning:" not in line:
            found.setdefault(match[1], line)
    return found, said.stdout + said.stderr


def test_mypy_sees_real_types(tmp_path: Path) -> None:
    found, said = check(tmp_path, "mypy", "--config-file", "", "--cache-dir", str(tmp_path / "cache"))
    assert 'has no attribute "Nope"' in found["2"]
    assert 'has no attribute "Neither"' in found["4"]
    assert 'has no attribute "RolloutReqest"' in found["6"]
    assert "osmosis_ai.rollout.nothing" in found["7"]
    assert "osmosis.records.protocol.v02.RolloutRequest" in found["9"]
    assert "osmosis.sdk.agent_loop.RolloutAgentLoop" in found["10"]
    assert set(found) == {"2", "4", "6", "7", "9", "10"}, said


def test_pyright_sees_real_types(tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
    found, said = check(tmp_path, "basedpyright", "--pythonpath", sys.executable)
    assert '"Nope" is unknown import symbol' in found["2"]
    assert '"Neither" is unknown import symbol' in found["4"]
    assert '"RolloutReqest" is unknown import symbol' in found["6"]
    assert "osmosis_ai.rollout.nothing" in found["7"]
    assert "type[RolloutRequest]" in found["9"]
    assert "type[RolloutAgentLoop]" in found["10"]
    assert set(found) == {"2", "4", "6", "7", "9", "10"}, said
