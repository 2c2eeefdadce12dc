"""Version and help load no heavy library, so they answer at once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.platform_process import until

VENDORS = {
    "aiohttp", "alembic", "copier", "cryptography", "fastapi", "git", "keyring", "litellm", "openai",
    "prompt_toolkit", "pyarrow", "questionary", "sqlalchemy", "starlette", "tomlkit", "torch", "transformers",
    "uvicorn", "yaml",
}  # fmt: skip
PROBE = """
import json, sys
from osmosis.cli import main
code = main(sys.argv[1:])
names = sorted({name.partition(".")[0] for name in sys.modules})
print("\\n@@" + json.dumps([code, names]))
"""


def modules(cwd: Path, *words: str) -> tuple[int, set[str]]:
    environ = {"PATH": os.environ["PATH"], "OSMOSIS_CONFIG_DIR": str(cwd / "c"), "OSMOSIS_DATA_DIR": str(cwd / "d")}
    command = [sys.executable, "-c", PROBE, *words]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, check=True)
    code, names = json.loads(ran.stdout.rpartition("@@")[2])
    return code, set(names)


@pytest.mark.parametrize("words", ["--version", "--help"])
def test_no_vendor_library_is_loaded(tmp_path: Path, words: str) -> None:
    _, loaded = modules(tmp_path, *words.split())
    assert not loaded & VENDORS


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"rmdir '{gone}'; exec '{sys.executable}' -m osmosis whoami"
    done = subprocess.run(["sh", "-c", line], cwd=gone, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: the current folder no longer exists")


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


HELP_OF_ALL = """
import sys
sys.path.insert(0, sys.argv[1])
from support.command_reference import reference
reference()
print(*sys.modules, sep="\\n")
"""


def test_no_help_loads_the_database(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HELP_OF_ALL, str(Path(__file__).parents[2])]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert not {"alembic", "sqlalchemy", "torch", "litellm"} & set(ran.stdout.split())
