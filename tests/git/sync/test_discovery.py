"""What Git Sync finds in commits of real repositories, without running any of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from osmosis.base.git import Git, GitError, sealed_environ
from osmosis.platform.git.discovery import FoundItem, Tree, discover

BOMB = "raise SystemExit('this file must never be imported')\n"


def commit(root: Path, files: dict[str, str | bytes]) -> Tree:
    environ = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=root, env=environ, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("-c", "user.name=Ann", "-c", "user.email=ann@localhost", "commit", "-q", "--allow-empty", "-m", "x")
    return Tree(Git.bare(root / ".git", sealed_environ(os.environ)), git("rev-parse", "HEAD"))


def names(found: list[FoundItem], kind: str) -> list[str]:
    return [f.name for f in found if f.kind == kind]


def test_rollouts_with_their_descriptions(tmp_path: Path) -> None:
    tree = commit(
        tmp_path,
        {
            "rollouts/b/main.py": BOMB,
            "rollouts/b/pyproject.toml": '[project]\nname = "b"\ndescription = "from pyproject"\n',
            "rollouts/b/README.md": "# b\n\nfrom readme\n",
            "rollouts/a/main.py": BOMB,
            "rollouts/a/README.md": "# Title\n\n```\ncode\n```\n\nSays what\nit is for.\n\nMore.\n",
            "rollouts/bad/pyproject.toml": "not = = toml",
            "rollouts/notes/readme.txt": "no code here",
            "rollouts/_private/main.py": BOMB,
            "rollouts/.hidden/main.py": BOMB,
            "rollouts/deep/src/main.py": BOMB,
            "rollouts/main.py": BOMB,
        },
    )
    found = discover(tree)
    assert [(f.name, f.path, f.description) for f in found] == [
        ("a", "rollouts/a", "Says what it is for."),
        ("b", "rollouts/b", "from pyproject"),
        ("bad", "rollouts/bad", None),
    ]


def test_configs(tmp_path: Path) -> None:
    tree = commit(tmp_path, {"configs/eval/x.toml": "", "configs/training/deep/y.toml": "", "configs/a.md": ""})
    assert [(f.name, f.description) for f in discover(tree)] == [
        ("configs/eval/x.toml", "eval"),
        ("configs/training/deep/y.toml", "training"),
    ]


def test_functions_of_the_older_layout(tmp_path: Path) -> None:
    reward = '@osmosis_reward\ndef match(solution_str: str):\n    """Compare numbers."""\n\ndef helper(): ...\n'
    rubric = "import osmosis_ai\n@osmosis_ai.osmosis_rubric\ndef judged(): ...\n@other\ndef no(): ...\n"
    tools = "@mcp.tool()\nasync def multiply(a, b): ...\n@mcp.tool\ndef add(a, b): ...\n"
    tree = commit(
        tmp_path,
        {
            "reward_fn/compute.py": BOMB + reward,
            "reward_rubric/openai.py": BOMB + rubric,
            "mcp/main.py": tools,
            "mcp/tools/math.py": BOMB + tools,
            "reward_fn/broken.py": "def (:\n",
            "reward_fn/huge.py": reward + "#" * 300_000,
        },
    )
    found = discover(tree)
    assert names(found, "reward_fn") == ["reward_fn.compute:match"]
    assert [f.description for f in found if f.kind == "reward_fn"] == ["Compare numbers."]
    assert names(found, "reward_rubric") == ["reward_rubric.openai:judged"]
    assert names(found, "mcp") == ["mcp.tools.math:multiply", "mcp.tools.math:add"]


def test_links_and_submodules_are_no_rollouts(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "link").symlink_to("/etc")
    tree = commit(tmp_path, {"rollouts/ok/main.py": ""})
    assert names(discover(tree), "rollout") == ["ok"]


def test_names_that_are_not_plain(tmp_path: Path) -> None:
    tree = commit(tmp_path, {"rollouts/mit Umlaut ü/main.py": "", "rollouts/tab\tbed/main.py": ""})
    assert names(discover(tree), "rollout") == ["mit Umlaut ü", "tab\tbed"]


def test_an_empty_commit_holds_nothing(tmp_path: Path) -> None:
    assert discover(commit(tmp_path, {})) == []


def test_a_commit_that_does_not_exist(tmp_path: Path) -> None:
    tree = commit(tmp_path, {"a": ""})
    with pytest.raises(GitError, match="ls-tree"):
        discover(Tree(tree.git, "0" * 40))
