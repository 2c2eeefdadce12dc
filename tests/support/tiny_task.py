"""The task of the tiny model, which lives with its example: `examples/train-tiny`."""

import sys
from pathlib import Path

TRAIN_TINY = Path(__file__).resolve().parents[2] / "examples" / "train-tiny"
sys.path.append(str(TRAIN_TINY))

from tiny_task import TOOL, conversation, grade, problem, run_tool  # noqa: E402

__all__ = ["TOOL", "TRAIN_TINY", "conversation", "grade", "problem", "run_tool"]
