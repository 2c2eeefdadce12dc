"""Rollouts continued from a step: conversation and sandbox are as they were, and the step that lost it is found."""

import json
from pathlib import Path

import pytest

from osmosis.engine.journal import Journal
from osmosis.local.viewing.local_run import LocalRun
from osmosis.local.viewing.server import render
from osmosis.records.run.rollout import Rollout
from osmosis.viewer.page import QueryParams
from osmosis.viewer.rollout_page import rollout_page
from support.command_line import CommandRun, run_command

AGENT = """
import pathlib, re
from osmosis import AgentWorkflow, Grader

AMOUNTS = (12, 30, 7, 25, 41, 8)

class Ledger(AgentWorkflow):
    async def run(self, ctx):
        messages, total, self.notes = list(ctx.prompt), 0, []
        async with ctx.chat() as chat:
            for number, amount in enumerate(AMOUNTS, start=1):
                messages.append({"role": "user", "content": f"{ctx.prompts['ask']} {total} + {amount}?"})
                answer = (await chat.complete(messages)).message
                answered = int(re.findall(r"-?[0-9]+", answer["content"])[-1])
                total = answered if number == 4 else total + amount  # only the fourth is not checked
                noted = await self.note(ctx, total)
                broken = pathlib.Path("broken").exists() and number == 2
                messages += [answer, {"role": "tool", "content": "?" if broken else noted}]
        return messages

    async def note(self, ctx, total):
        self.notes.append(f"{total} ")
        return "".join(self.notes)

class Sandboxed(Ledger):
    async def note(self, ctx, total):
        done = await ctx.sandbox.run(["sh", "-c", f"echo {total} >> ledger; cat ledger"])
        return done.stdout.replace(chr(10), " ")

class Exact(Grader):
    async def grade(self, ctx):
        ledger = [message["content"] for message in ctx.sample.messages if message["role"] == "tool"][-1]
        ctx.set_reward(float(ledger.split()[-1] == str(sum(AMOUNTS))))
"""


EVAL = "eval -d rows.jsonl --model offline/calculator -q --rows 0,3,4"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "branched_agent.py").write_text(AGENT)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "ask.md").write_text("What is")
    rows = [{"system_prompt": "Keep the ledger.", "user_prompt": f"Month {n}", "ground_truth": ""} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    go(tmp_path, f"{EVAL} -m branched_agent:Ledger --name books")
    return tmp_path


def stored(folder: Path, run: str) -> dict[tuple[int, int], Rollout]:
    return {rollout.place: rollout for rollout in Journal(folder / ".osmosis" / "runs" / run).rollouts()}


def go(folder: Path, line: str) -> CommandRun:
    return run_command(*line.split(), cwd=folder)


def test_the_step_that_lost_it_is_found_and_stands_on_the_page(project: Path) -> None:
    found = go(project, "rollout branch books 3 --json")
    data = json.loads(found.out)["data"]
    assert data["fatal_step"] == 4
    assert data["chance"] > 0.9
    after = [branch for branch in data["branches"] if branch["branch"]["step"] > 4]
    assert after
    assert not any(branch["passed"] for branch in after)
    assert not any(branch["inexact"] for branch in data["branches"])
    assert sum(branch["continuations"] for branch in data["branches"]) <= 40

    again = go(project, "rollout branch books 3 --json")  # what is stored is enough
    assert json.loads(again.out)["data"] == data
    assert "passed" not in again.err

    run = LocalRun("books", project / ".osmosis" / "runs" / "books", project / "cache")
    page = render(rollout_page(run, 3, 0, QueryParams([])))
    assert "step 4" in page.lower()
    assert f'href="/runs/{after[0]["run"]}"' in page
    assert "step 6," in page  # at the last answer of the conversation
    assert "osmosis rollout branch books 4 --from-step" in render(rollout_page(run, 4, 0, QueryParams([])))
    assert "no step lost it" in go(project, "rollout branch books 0").err


def test_the_conversation_and_the_sandbox_are_as_they_were(project: Path) -> None:
    go(project, f"{EVAL} -m branched_agent:Sandboxed --name boxed")
    before = stored(project, "boxed")[3, 0]
    go(project, "rollout branch boxed 3 --from-step 5 -n 2")
    for rollout in stored(project, "boxed-3.0-step5").values():
        assert rollout.messages[:15] == before.messages[:15]
        assert rollout.messages[16]["content"] == "12 42 49 80 121 "  # what was in the folder, and one line more
        assert [call.cached for call in rollout.calls] == [True] * 4 + [False] * 2
        assert rollout.info["branch"] == {"step": 5, "differs": []}
    assert "of boxed 3/0, from step 5 on" in go(project, "eval show boxed-3.0-step5").out


def test_a_tool_that_answers_otherwise_is_reported(project: Path) -> None:
    (project / "broken").touch()
    branched = go(project, "rollout branch books 3 --from-step 4 -n 2")
    assert "2 are no true continuations: they differ at step 3" in branched.out
    assert "from step 30: it has 6 steps" in go(project, "rollout branch books 3 --from-step 30").err


def test_another_prompt_tool_result_and_model(project: Path) -> None:
    (project / "careful.md").write_text("Carefully: what is")
    changes = "--prompt ask=careful.md --prompt row.system=careful.md --tool-result @careful.md --model offline/echo"
    run = json.loads(go(project, f"rollout branch books 3 --from-step 3 -n 1 {changes} --json").out)["data"][
        "branches"
    ][0]
    (rollout,) = stored(project, run["run"]).values()
    assert rollout.messages[0] == {"role": "system", "content": "Carefully: what is"}
    answers = [message["content"] for message in rollout.messages if message["role"] == "assistant"]
    assert answers[1:3] == ["The result is 48.\n#### 48", "Carefully: what is 42 + 7?"]
    results = [message["content"] for message in rollout.messages if message["role"] == "tool"]
    assert results[:2] == ["12 ", "Carefully: what is"]
    assert run["inexact"] == 0  # what was changed on purpose is no difference
    refused = go(project, "rollout branch books 3 --from-step 1 --tool-result x")
    assert "no tool result comes between" in refused.err
    refused = go(project, "rollout branch books 3 --from-step 1 --prompt asks=careful.md")
    assert "there is no prompts/asks.md" in refused.err
