"""Ctrl-C in `eval-rubric`, as a process: what is left on disk, with and without `--resume`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis.testing.platform_process import until

pytestmark = pytest.mark.flow

RUBRICS = """
version: 1
rubrics:
  - id: tone
    rubric: Be kind.
    model_info: {provider: offline, model: judge}
"""
FUNCTION = """
import asyncio, pathlib
async def judge(solution_str, ground_truth, extra_info):
    if solution_str == "second" and not pathlib.Path("go").exists():
        pathlib.Path("waits").touch()
        await asyncio.Event().wait()
    return 1.0
"""


@pytest.mark.parametrize("resume", [False, True])
def test_an_interrupted_run_is_kept_only_when_it_is_to_be_resumed(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "rubric_configs.yaml").write_text(RUBRICS)
    (tmp_path / "mine.py").write_text(FUNCTION)
    lines = [json.dumps({"solution_str": text, "rubric_id": "tone"}) for text in ("first", "second")]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    command = [sys.executable, "-m", "osmosis", "eval-rubric", "-r", "tone", "-d", "data.jsonl", "-o", "out/r.json"]
    command += ["--rubric-fn", "mine:judge", "--concurrency", "1", *(["--resume"] if resume else [])]
    environ = {**os.environ, "HOME": str(tmp_path / "home")}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as process:
        until((tmp_path / "waits").exists, "the second judgement runs")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    if not resume:
        assert "nothing is saved" in said
        assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
        return
    assert "1 of 2 judgements are saved" in said
    (tmp_path / "go").touch()
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 judgements are already done" in done.stderr
    assert json.loads((tmp_path / "out" / "r.json").read_text())["overall_statistics"]["success_count"] == 2
