"""`osmosis.decide`: arms of Python objects, answered with few rollouts, gone on with, refused for other words."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from osmosis import RolloutAgentLoop, Run, decide, decide_async
from osmosis.errors import UsageError

ROWS = [{"id": str(i), "user_prompt": f"{i}?", "ground_truth": "yes"} for i in range(30)]


class Says(RolloutAgentLoop):
    name = "says"

    def __init__(self, answer: str) -> None:
        self.answer, self.calls = answer, 0

    def get_tools(self, request: Any) -> list[Any]:
        return []

    async def run(self, ctx: Any) -> Any:
        self.calls += 1
        return ctx.complete([*ctx.request.messages, {"role": "assistant", "content": self.answer}])


def exact(solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return float(solution_str == ground_truth)


def test_arms_of_python_are_decided_with_few_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    right, wrong = Says("yes"), Says("no")
    arms = {"right": {"agent": right}, "wrong": {"agent": wrong}}
    lines: list[str] = []

    def ask(question: str) -> Any:
        return decide(question, right, ROWS, scorers=exact, model="offline/echo", arms=arms, name="d", say=lines.append)

    decided = ask("wrong >= right - 0.1")
    assert [(q.text, q.answer, q.difference) for q in decided.questions] == [("wrong >= right - 0.1", "no", -1.0)]
    assert (decided.rollouts, decided.planned_rollouts, right.calls, wrong.calls) == (42, 60, 21, 21)
    assert str(decided).startswith("wrong >= right - 0.1: no, difference -1.000 (")
    assert lines[-2].startswith("  wrong >= right - 0.1: no")
    assert Run.open(decided.runs["wrong"]).report.primary.mean == 0.0  # type: ignore[union-attr]

    assert ask("wrong >= right - 0.1") == decided
    assert right.calls == 21
    with pytest.raises(UsageError, match="began with other values"):
        ask("wrong >= right")
    with pytest.raises(TypeError, match="'attempts'"):
        decide("a >= b", right, ROWS, attempts=2)


def test_names_that_are_no_arms_are_models_also_in_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    same = Says("yes")
    question = "offline/echo >= offline/calculator"
    decided = asyncio.run(decide_async(question, same, ROWS, scorers=exact, max_rollouts=8, api_key="secret-key"))
    assert [q.answer for q in decided.questions] == ["undecided"]
    assert same.calls == decided.rollouts == 8
    assert "secret-key" not in next((tmp_path / ".osmosis" / "decisions").iterdir()).read_text()
