"""What an agent is made of beyond its imports, and that a resume names the file that changed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from osmosis.engine.provenance import MOST_BYTES, AgentFiles, provenance

AGENT = """
from pathlib import Path
from osmosis.sdk.agent_loop import RolloutAgentLoop

HERE = Path(__file__).parent
PROMPT = (HERE / "prompt.txt").read_text()

class Loop(RolloutAgentLoop):
    name = "loop"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        import late
        (HERE / "seen.log").write_text("x")
        (HERE / "seen.log").read_text()
        return ctx.complete([{"role": "assistant", "content": PROMPT + late.WORD}])

loop = Loop()
"""
SCORE = """
from pathlib import Path

def f(solution_str, ground_truth, extra_info=None):
    return float((Path(__file__).parent / "key.txt").read_text())
"""


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An agent with a prompt, a module imported late, and a score function with a key."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "late.py").write_text("WORD = 'a'\n")
    (tmp_path / "score.py").write_text(SCORE)
    (tmp_path / "prompt.txt").write_text("be nice ")
    (tmp_path / "key.txt").write_text("1")
    (tmp_path / "notes.txt").write_text("nobody reads this")
    (tmp_path / "d.jsonl").write_text('{"user_prompt": "a", "ground_truth": "x"}\n' * 2)
    return tmp_path


def go(folder: Path, **more: object) -> str:
    """One session in a process of its own: what a module read when it was imported counts."""
    program = textwrap.dedent(f"""
        import sys
        from osmosis import evaluate
        from osmosis.errors import Conflict
        try:
            run = evaluate("agent:loop", "d.jsonl", model="offline/echo", scorers="score:f", name="r", **{more!r})
        except Conflict as error:
            sys.exit(str(error.message))
        print(run.report.completed, run.report.primary.mean)
    """)
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()


CHANGED = [
    ("prompt.txt", "be nasty ", "2 to run again (agent changed: prompt.txt)"),
    ("late.py", "WORD = 'b'\n", "2 to run again (agent changed: late.py)"),
    ("agent.py", f"{AGENT}\n# more\n", "2 to run again (agent changed: agent.py)"),
    ("key.txt", "0", "2 to score again, 0 to run again (score changed: key.txt)"),
    ("notes.txt", "other", "2 1.0"),
    ("seen.log", "other", "2 1.0"),
]


def test_a_resume_names_the_file_that_changed(folder: Path) -> None:
    assert go(folder) == "2 1.0"
    for name, text, said in CHANGED:
        before = (folder / name).read_text()
        (folder / name).write_text(text)
        assert said in go(folder), name
        (folder / name).write_text(before)


def test_after_the_rerun_the_new_files_are_the_ones_that_count(folder: Path) -> None:
    go(folder)
    (folder / "prompt.txt").write_text("be nasty ")
    assert go(folder, accept_changes=True) == "2 1.0"
    assert go(folder) == "2 1.0"
    (folder / "prompt.txt").write_text("be nice ")
    assert "agent changed: prompt.txt" in go(folder)


def test_what_git_tracks_counts_although_nobody_opened_it(folder: Path) -> None:
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "notes.txt", "d.jsonl", "agent.py", "score.py")
    git(folder, "commit", "-q", "-m", "one")
    go(folder)
    (folder / "README.md").write_text("new, and not read")
    assert go(folder) == "2 1.0"
    (folder / "notes.txt").write_text("other")
    assert "agent changed: notes.txt" in go(folder)


def test_a_large_file_is_known_by_its_size_and_time(tmp_path: Path) -> None:
    large = tmp_path / "weights.bin"
    with large.open("wb") as out:
        out.truncate(MOST_BYTES + 1)
    files = AgentFiles(tmp_path, tmp_path, agent=[large], score=[], others=[])
    before = files.now()
    assert "bytes of" in before["agent"]["weights.bin"]
    assert files.changed(before) == {}
    with large.open("ab") as out:
        out.write(b"x")
    assert files.changed(before) == {"agent": ["weights.bin"]}


def test_untracked_files_make_a_run_dirty_and_its_repository_is_known(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "remote", "add", "origin", "https://me:word@git.example.com/a/b.git")
    (tmp_path / "a.py").write_text("x = 1\n")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / ".osmosis" / "runs").mkdir(parents=True)
    (tmp_path / ".osmosis" / "runs" / "x").write_text("our own journal")
    clean = provenance(tmp_path)["git"]
    assert isinstance(clean, dict)
    assert clean["dirty"] is False
    assert clean["repository"] == "https://git.example.com/a/b.git"
    (tmp_path / "b.py").write_text("")
    dirty = provenance(tmp_path)["git"]
    assert isinstance(dirty, dict)
    assert (dirty["dirty"], dirty["untracked"]) == (True, ["b.py"])
