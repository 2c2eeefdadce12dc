"""Runs every example of docs/eval.md and of the README, in order, in one folder, as a reader would."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis.cli.main import main
from osmosis.cli.platform import process as local_platform
from support.endpoint import ModelEndpoint

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "eval.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def examples(page: Path) -> tuple[dict[str, str], list[tuple[str, int]]]:
    """Files to write, then commands with their expected exit code."""
    files: dict[str, str] = {}
    commands: list[tuple[str, int]] = []
    for language, body in BLOCK.findall(page.read_text()):
        named = re.match(r"# file: (\S+)\n", body)
        if named:
            files[named.group(1)] = body[named.end() :]
        elif language == "sh":
            for line in body.splitlines():
                if line and not line.startswith("#"):
                    command, _, note = line.partition("   # exit: ")
                    commands.append((command, int(note or 0)))
    return files, commands


def test_every_flag_of_the_command_is_documented():
    import typer

    from osmosis.cli.eval.run import run

    app = typer.Typer(add_completion=False)
    app.command()(run)
    flags = {
        option for parameter in typer.main.get_command(app).params if not parameter.hidden for option in parameter.opts
    }
    text = DOC.read_text()
    shown = {"--agent", "--module", "--dataset", "--output", "--quiet", "--api-key"}  # other spellings of what is there
    missing = sorted(f for f in flags if f.startswith("--") and f not in text and f not in shown)
    assert missing == []


def test_the_examples_run(tmp_path, capsys):
    files, commands = examples(DOC)
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    with ModelEndpoint() as endpoint:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "MODEL_URL": endpoint.url,
            "SERVICE_TOKEN": "a-token-for-the-test",
            "OSMOSIS_CACHE_DIR": str(tmp_path / "cache"),
        }
        for command, expected in commands:
            words = shlex.split(command.replace("$MODEL_URL", endpoint.url))
            if words[0] == "python":
                done = subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, env=environ, capture_output=True)
                assert done.returncode == expected, done.stderr.decode()
                continue
            assert words[0] == "osmosis"
            code = main(words[1:], environ=environ, cwd=tmp_path)
            said = capsys.readouterr()
            assert code == expected, f"{command}\n{said.out}\n{said.err}"
        assert len(endpoint.requests) > 8
    assert len(commands) > 35
    assert (tmp_path / "out" / "results.json").exists()
    assert (tmp_path / ".osmosis" / "runs" / "nightly" / "report.html").stat().st_size > 5000


def test_the_tutorial_runs_and_proves_what_it_says(tmp_path):
    """Every command as a reader types it, in a process of its own; then what the page claims of the results."""
    files, commands = examples(ROOT / "docs" / "tutorial.md")
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OSMOSIS_CACHE_DIR": str(tmp_path / "cache")}
    said = {}
    for command, expected in commands:
        words = shlex.split(command)
        program = (
            [sys.executable, *words[1:]] if words[0] == "python" else [sys.executable, "-m", "osmosis", *words[1:]]
        )
        done = subprocess.run(program, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600)
        assert done.returncode == expected, f"{command}\n{done.stdout}\n{done.stderr}"
        said[command] = done.stdout + done.stderr
    assert len(commands) == 10
    assert "first -> second: better" in said["osmosis eval compare first second"]
    assert "expected" in said["osmosis eval show first 0"]
    assert "1 passed" in said["python -m pytest -q test_solver.py"]


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("howto-*.md")))
def test_a_how_to_page_runs_as_printed(tmp_path, page):
    files, commands = examples(ROOT / "docs" / page)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    folders = {f"OSMOSIS_{kind}_DIR": str(tmp_path / "home" / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    with ModelEndpoint() as endpoint:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "SERVICE_TOKEN": "a-token-for-the-test",
            **folders,
        }
        try:
            for command, expected in commands:
                words = shlex.split(command.replace("$MODEL_URL", endpoint.url))
                # In a process of its own: two pages have files of the same name.
                program = words[1:] if words[0] == "python" else ["-m", "osmosis", *words[1:]]
                line = [sys.executable, *program]
                done = subprocess.run(line, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600)
                assert done.returncode == expected, f"{command}\n{done.stdout}\n{done.stderr}"
        finally:
            if any("platform start" in command for command, _ in commands):
                local_platform.stop(Path(folders["OSMOSIS_DATA_DIR"]), force=True)
    assert len(commands) >= 2


def test_the_readme_runs_as_printed(tmp_path):
    files, commands = examples(ROOT / "README.md")
    assert {"agent.py", "data.jsonl"} <= set(files)
    assert [command.split()[0] for command, _ in commands] == ["osmosis", "python"]
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OSMOSIS_CACHE_DIR": str(tmp_path / "cache")}
    for command, expected in commands:
        words = shlex.split(command)
        start = [sys.executable, "-m", "osmosis"] if words[0] == "osmosis" else [sys.executable]
        done = subprocess.run([*start, *words[1:]], cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert done.returncode == expected, done.stderr
    mean, pass_rate = map(float, done.stdout.split())
    assert 0 < mean == pass_rate < 1
