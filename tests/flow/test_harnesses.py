"""Agent programs and frameworks, unmodified, against a scripted model: what `make harnesses` installs and tries.

A program is looked for on the PATH, a framework in the Python that HARNESS_PYTHON names, then in ours; what is not
there is skipped. Frameworks of the development environment are tried in every run of the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.llm.model import ChatRequest, Completion, Piece
from osmosis.records.run.plan import EvalPlan, ModelSpec, ProgramSpec, RolloutLimits
from osmosis.records.run.rollout import Rollout, Usage
from osmosis.records.run.rows import Row
from osmosis.records.sandbox import SandboxChoice
from osmosis.sandbox import Level, probe
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.program_agent import ProgramAgent, find_harness, load_harnesses

PYTHONS = [path for path in (os.environ.get("HARNESS_PYTHON"), sys.executable) if path]
SHELL_TOOLS = ("Bash", "shell", "bash", "run_shell_command", "exec_command", "terminal")
COMMANDS = {"mini-swe-agent": "echo hello > made.txt; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}


class Scripted:
    """Calls the shell that a program offers once, to make a file; then says that it is done."""

    spec = ModelSpec(name="scripted-model", kind="offline")

    def __init__(self, command: str) -> None:
        self.command = command
        self.called: ChatRequest | None = None
        self.continued: ChatRequest | None = None

    async def complete(self, request: ChatRequest) -> Completion:
        names = {tool["function"]["name"]: tool["function"] for tool in request.tools or ()}
        shell = next((name for name in SHELL_TOOLS if name in names), None)
        message: dict[str, Any] = {"role": "assistant", "content": "hello: done"}
        has_result = any(message["role"] == "tool" for message in request.messages)
        if has_result:
            self.continued = self.continued or request
        elif shell:
            properties = names[shell]["parameters"].get("properties", {})
            key = "cmd" if "cmd" in properties else "command"
            is_list = properties.get(key, {}).get("type") == "array"
            arguments: dict[str, Any] = {key: ["/bin/sh", "-c", self.command] if is_list else self.command}
            if "description" in properties:
                arguments["description"] = "make a file"
            text = json.dumps(arguments)
            call = {"id": "call_1", "type": "function", "function": {"name": shell, "arguments": text}}
            message = {"role": "assistant", "content": "I make it.", "tool_calls": [call]}
            self.called, self.answer = request, message
        request.tell(Piece({"content": message["content"]}))
        finish = "tool_calls" if "tool_calls" in message else "stop"
        usage = Usage(prompt_tokens=100, completion_tokens=10)
        return Completion(message=message, finish_reason=finish, usage=usage, model="scripted-model")

    def is_continued(self) -> bool:
        """Whether the call with the result begins with the messages of the one before and its answer as it was sampled:
        then both are one sequence of tokens, and training has loss on all that the model wrote."""
        assert self.called is not None
        assert self.continued is not None
        before = self.called.messages
        after = self.continued.messages[: len(before) + 1]
        return after == [*before, self.answer]

    async def close(self) -> None:
        return None


async def run(
    command: str, base: Path, model: Scripted, *, kind: Any = "none", files: Any = None, program: Any = None
) -> Rollout:
    limits = RolloutLimits(max_turns=12, max_time_s=120)
    surroundings = {"limits": limits, "sandbox": SandboxChoice(kind=kind), "program": program or ProgramSpec()}
    plan = EvalPlan(name="p", agent=f"command:{command}", model=model.spec, dataset="d", **surroundings)
    row = Row(index=0, data={"user_prompt": "Create made.txt that says hello", "files": files or {}})
    async with ModelProxy(model) as proxy:
        agent = ProgramAgent(plan, proxy, base, os.environ)
        task = Task(row, 0, "r1")
        return await agent.run(task, RolloutModel(model, task, plan))


HARNESSES = load_harnesses()


@pytest.mark.soak
@pytest.mark.parametrize("name", [*HARNESSES, *(f"acp:{name}" for name, harness in HARNESSES.items() if harness.acp)])
async def test_program_makes_a_file(name: str, tmp_path: Path) -> None:
    program = find_harness(name).command.split()[0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on the PATH")
    model = Scripted(COMMANDS.get(name, "echo hello > made.txt"))
    rollout = await run(name, tmp_path, model, kind="auto")
    result = rollout.info["command"]
    assert rollout.failure is None, (rollout.failure, result["stderr"][-2000:])
    assert result["files"].get("made.txt") == "hello\n", result
    # The command itself ends mini-swe-agent, and its result is never sent.
    own_calls = 1 if name in COMMANDS else 2
    assert sum(call.purpose is None for call in rollout.calls) == own_calls, [call.purpose for call in rollout.calls]
    if name not in COMMANDS:
        assert "tool" in {message["role"] for message in rollout.messages}
        assert model.is_continued(), (model.called, model.continued)
    if name.startswith("acp:"):
        assert result["stop_reason"] == "end_turn"
        assert result["stdout"].endswith("hello: done")


SERVER = """
import json, sys
TOOL = {"name": "find_word", "description": "Find a word.", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    asked = json.loads(line)
    about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": ""}}
    result = {"initialize": about, "tools/list": {"tools": [TOOL]}}.get(asked["method"], {})
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
SERVERS = '{"mcpServers": {"words": {"command": "python3", "args": ["/home/agent/server.py"]}}}'
SKILL = "---\nname: greet-people\ndescription: How to greet people.\n---\nSay hello.\n"


@pytest.mark.soak
@pytest.mark.skipif(probe().level < Level.NAMESPACES, reason="no sandbox of level 1 here")
@pytest.mark.parametrize(
    ("name", "servers", "skill"),
    [
        ("claude-code", ".claude.json", ".claude/skills"),
        ("acp:claude-code", ".mcp.json", ".claude/skills"),
        ("acp:codex", ".mcp.json", ".codex/skills"),
        ("acp:opencode", ".mcp.json", ".config/opencode/skills"),
    ],
)
async def test_servers_and_skills_are_mounted(name: str, servers: str, skill: str, tmp_path: Path) -> None:
    """The model is offered the tool of a server, and told of a skill, that `[program] home` has."""
    if shutil.which(find_harness(name).command.split()[0]) is None:
        pytest.skip(f"{name} is not on the PATH")
    folder = tmp_path / "home" / skill / "greet-people"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    (tmp_path / "home" / "server.py").write_text(SERVER)
    (tmp_path / "home" / servers).write_text(SERVERS)
    model = Scripted("echo hello > made.txt")
    rollout = await run(name, tmp_path, model, kind="auto", program=ProgramSpec(home="home"))
    assert rollout.failure is None, (rollout.failure, rollout.info)
    assert model.called is not None
    tools = [tool["function"] for tool in model.called.tools or ()]
    told = json.dumps([tools, model.called.messages])  # some programs name tools first, and describe them when asked
    assert "find_word" in told, [tool["name"] for tool in tools]
    assert "greet-people" in told


PRINTS = {
    "claude-code": "-p hello --dangerously-skip-permissions",
    "codex": "exec --skip-git-repo-check hello </dev/null",
    "opencode": "run --title hello hello",
    "gemini-cli": "--skip-trust -p hello",
    "mini-swe-agent": "-y --exit-immediately -t hello",
    "vibe": "--auto-approve -p hello",
}


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(HARNESSES.keys() - {"openhands"}))
async def test_command_of_model_use(name: str, tmp_path: Path) -> None:
    """What `osmosis model use` prints for a program is enough; a rollout stands in for the deployment."""
    if shutil.which(HARNESSES[name].command.split()[0]) is None:
        pytest.skip(f"{name} is not on the PATH")
    rollout = await run(
        f"IS_SANDBOX=1\nexport IS_SANDBOX\n{HARNESSES[name].use} {PRINTS.get(name, '-p hello')}",
        tmp_path,
        Scripted(COMMANDS.get(name, "echo hello > made.txt")),
    )
    assert rollout.failure is None, rollout.info["command"]["stderr"][-2000:]
    assert any(call.error is None for call in rollout.calls)


MAKE = """
import subprocess
def bash(command: str) -> str:
    '''Run a shell command.

    Args:
        command: The command.
    '''
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout or "ok"
import os
PROMPT, MODEL = os.environ["PROMPT"], os.environ["MODEL"]
"""
FRAMEWORKS = {
    "pydantic-ai chat": """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
print(Agent(OpenAIChatModel(MODEL), tools=[bash]).run_sync(PROMPT).output)
""",
    "pydantic-ai responses": """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
print(Agent(OpenAIResponsesModel(MODEL), tools=[bash]).run_sync(PROMPT).output)
""",
    "pydantic-ai messages": """
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
print(Agent(AnthropicModel(MODEL), tools=[bash]).run_sync(PROMPT).output)
""",
    "langgraph chat": """
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
agent = create_react_agent(ChatOpenAI(model=MODEL), [bash])
print(agent.invoke({"messages": [("user", PROMPT)]})["messages"][-1].content)
""",
    "langgraph messages": """
from langchain_anthropic import ChatAnthropic
from langgraph.prebuilt import create_react_agent
agent = create_react_agent(ChatAnthropic(model=MODEL), [bash])
print(agent.invoke({"messages": [("user", PROMPT)]})["messages"][-1].content)
""",
    "smolagents": """
from smolagents import OpenAIServerModel, ToolCallingAgent, tool
model = OpenAIServerModel(MODEL, api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
ToolCallingAgent([tool(bash)], model, max_steps=2).run(PROMPT)
""",
    "openai-agents responses": """
from agents import Agent, Runner, function_tool, set_tracing_disabled
set_tracing_disabled(True)
agent = Agent("a", model=MODEL, tools=[function_tool(bash)])
print(Runner.run_sync(agent, PROMPT).final_output)
""",
    "strands": """
from strands import Agent, tool
from strands.models.openai import OpenAIModel
arguments = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
print(Agent(OpenAIModel(client_args=arguments, model_id=MODEL), tools=[tool(bash)])(PROMPT))
""",
}
MODULES = {"pydantic-ai": "pydantic_ai", "langgraph": "langgraph", "openai-agents": "agents"}
OURS = ("openai-agents responses", "strands")
"""Of the development environment."""


def find_python(name: str) -> str | None:
    """The first interpreter that has a module."""
    search = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return next((python for python in PYTHONS if not subprocess.run([python, "-c", search]).returncode), None)


@pytest.mark.parametrize(
    "name", [name if name in OURS else pytest.param(name, marks=pytest.mark.soak) for name in FRAMEWORKS]
)
async def test_framework_needs_the_base_url_alone(name: str, tmp_path: Path) -> None:
    module = MODULES.get(name.split()[0], name.split()[0])
    python = find_python(module)
    if python is None:
        pytest.skip(f"{module} is not in HARNESS_PYTHON")
    files = {"agent.py": MAKE + FRAMEWORKS[name]}
    model = Scripted("echo hello > made.txt")
    rollout = await run(f"{python} agent.py", tmp_path, model, files=files)
    result = rollout.info["command"]
    assert rollout.failure is None, result["stderr"][-2000:]
    assert result["files"].get("made.txt") == "hello\n", result
    if name != "smolagents":  # which asks for a tool always, and tells its model of results in words of its own
        assert "hello: done" in result["stdout"]
        assert model.is_continued(), (model.called, model.continued)
