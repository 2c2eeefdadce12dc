"""What a training submit says of the rollout's grader, from a process of its own."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from osmosis.cli.core.context import AppContext, GlobalOptions
from osmosis.cli.core.output import Mode, Output
from osmosis.cli.train import check_reward
from support.eval_project import write_rows
from support.git_workspace import EVAL, GitWorkspace

GRADER = """
from osmosis import AgentWorkflow, Grader, LocalBackend

class Work(AgentWorkflow):
    async def run(self, ctx):
        raise RuntimeError("never run")

class Judge(Grader):
    async def grade(self, ctx):
        said = ctx.sample.messages[-1]["content"]
        ctx.set_reward(float({rule}))

backend = LocalBackend(Work, grader=Judge)
"""


def checked(repo: GitWorkspace, rule: str) -> tuple[str, str]:
    """The plan's line, and what was warned of."""
    repo.write("rollouts/multiply/main.py", GRADER.replace("{rule}", rule))
    repo.write("configs/eval/multiply.toml", EVAL)
    write_rows(repo.root / "data" / "multiply.jsonl", 8)
    err = io.StringIO()
    ctx = AppContext({"PATH": "/usr/bin:/bin"}, repo.root, GlobalOptions(), Output(Mode.PLAIN, environ={}, stderr=err))
    return check_reward(ctx, repo.root, "multiply", {}), err.getvalue()


@pytest.mark.parametrize(
    ("rule", "line", "warned"),
    [
        ("said.split()[-1:] == [ctx.label]", "none earns anything", ""),
        ("False", "none earns anything", ""),
        ("ctx.label in said", ": osmosis reward test multiply", "many truths at once earns 100% of the reward"),
        ("1 / 0", ": osmosis reward test multiply", "nothing that was tried could be scored"),
    ],
)
def test_a_reward_is_tried_before_it_trains_anything(repo: GitWorkspace, rule: str, line: str, warned: str) -> None:
    said, warnings = checked(repo, rule)
    assert line in said
    assert warned in warnings
    assert bool(warned) == bool(warnings)


def test_code_that_does_not_load_here_is_no_obstacle(repo: GitWorkspace, tmp_path: Path) -> None:
    said, warnings = checked(repo, "True")
    repo.write("rollouts/multiply/main.py", "import a_library_that_is_not_here\n")
    ctx = AppContext({"PATH": "/usr/bin:/bin"}, repo.root, GlobalOptions(), Output(Mode.PLAIN, environ={}))
    assert check_reward(ctx, repo.root, "multiply", {}) == "could not be tried here: osmosis reward test multiply"
    assert "1 finding: osmosis reward test multiply" in said
    assert "the ground truth earns no more than a worthless answer" in warnings
