"""Projects written for `osmosis_ai` run unmodified: an agent loop with its server, a Git Sync folder, a workflow.

The projects here are ours, in the shape of the public ones: their imports, calls, folders and command lines.
"""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from osmosis.testing.mock_trainer import RolloutCompletionTracker, create_mock_trainer_app
from support.server import answering, running_app
from support.waiting import until

pytestmark = pytest.mark.slow

OSMOSIS = [sys.executable, "-m", "osmosis"]
ROWS = [("What is 12 + 30?", "42"), ("What is 50 - 8?", "42"), ("What is 6 * 7?", "42"), ("What is 84 / 2?", "42")]


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    rows = [{"system_prompt": "Calculate.", "user_prompt": q, "ground_truth": a} for q, a in ROWS]
    (folder / "test_data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(folder: Path, *command: str, environ: dict[str, str] | None = None, code: int = 0) -> str:
    base = {k: v for k, v in os.environ.items() if not k.startswith(("OSMOSIS_", "OPENAI_"))}
    base |= {"OSMOSIS_CACHE_DIR": str(folder / ".cache"), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "CI": "1"}
    done = subprocess.run(
        command, cwd=folder, env={**base, **(environ or {})}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


LOOP_PROJECT = {
    "server.py": """
        import os
        from osmosis_ai.rollout import RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult, create_app
        from rewards import compute_reward
        from tools import CALCULATOR_TOOLS, execute_calculator_calls

        class CalculatorAgentLoop(RolloutAgentLoop):
            name = "calculator"

            def get_tools(self, request: RolloutRequest):
                return CALCULATOR_TOOLS

            async def run(self, ctx: RolloutContext) -> RolloutResult:
                messages = list(ctx.request.messages)
                finish_reason, used = "max_turns", 0
                for turn in range(ctx.request.max_turns):
                    ctx.log_event("pre_llm", turn=turn, messages=len(messages))
                    result = await ctx.chat(messages, **ctx.request.completion_params)
                    messages.append(result.message)
                    ctx.log_event("llm_response", has_tool_calls=result.has_tool_calls)
                    used += result.usage.get("completion_tokens", 0)
                    if used >= ctx.request.max_tokens_total:
                        finish_reason = "max_tokens"
                        break
                    if not result.has_tool_calls:
                        finish_reason = result.finish_reason
                        break
                    results = await execute_calculator_calls(result.tool_calls)
                    for _ in results:
                        ctx.record_tool_call(latency_ms=1.0)
                    messages.extend(results)
                    ctx.log_event("tool_results", n=len(results))
                truth = ctx.request.metadata.get("ground_truth")
                last = [m for m in messages if m["role"] == "assistant"][-1]
                reward = compute_reward(last.get("content") or "", truth) if truth is not None else None
                ctx.log_event("rollout_complete", reward=reward)
                return ctx.complete(messages, finish_reason=finish_reason, reward=reward)

        agent_loop = CalculatorAgentLoop()
        app = create_app(agent_loop, debug_dir=os.environ.get("ROLLOUT_DEBUG_DIR"))
        """,
    "tools.py": """
        import asyncio
        from osmosis_ai.rollout.core.exceptions import ToolArgumentError
        from osmosis_ai.rollout.core.schemas import (
            OpenAIFunctionParametersSchema,
            OpenAIFunctionPropertySchema,
            OpenAIFunctionSchema,
            OpenAIFunctionToolSchema,
        )
        from osmosis_ai.rollout.tools import (
            create_tool_error_result, create_tool_result, execute_tool_calls, get_tool_call_info, serialize_tool_result,
        )

        def schema(name):
            number = lambda text: OpenAIFunctionPropertySchema(type="number", description=text)
            return OpenAIFunctionToolSchema(
                type="function",
                function=OpenAIFunctionSchema(
                    name=name,
                    description=f"{name} two numbers",
                    parameters=OpenAIFunctionParametersSchema(
                        type="object", properties={"a": number("first"), "b": number("second")}, required=["a", "b"]
                    ),
                ),
            )

        CALCULATOR_TOOLS = [schema(name) for name in ("add", "subtract", "multiply", "divide")]

        async def execute_calculator_calls(tool_calls):
            async def one(tool_call):
                try:
                    call_id, name, args = get_tool_call_info(tool_call)
                except ToolArgumentError as exc:
                    return create_tool_error_result(exc.tool_call_id, str(exc))
                await asyncio.sleep(0.001)
                a, b = float(args["a"]), float(args["b"])
                if name == "divide" and b == 0:
                    return create_tool_error_result(call_id, "division by zero")
                done = {"add": a + b, "subtract": a - b, "multiply": round(a * b, 4)}.get(name)
                return create_tool_result(call_id, serialize_tool_result(a / b if done is None else done))
            return await execute_tool_calls(tool_calls, one)
        """,
    "rewards.py": """
        import re
        from osmosis_ai import osmosis_reward

        @osmosis_reward
        def compute_reward(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:
            found = re.search(r"####\\s*(-?\\d+(?:\\.\\d+)?)", solution_str)
            return 1.0 if found and abs(float(found[1]) - float(ground_truth)) < 1e-7 else 0.0
        """,
}


@pytest.fixture
def loop_project(tmp_path: Path) -> Path:
    return write(tmp_path / "rr", LOOP_PROJECT)


def test_loop_project_on_the_command_line(loop_project: Path) -> None:
    assert json.loads(run(loop_project, *OSMOSIS, "--json", "validate", "-m", "server:agent_loop"))["data"]["valid"]
    model = ["-m", "server:agent_loop", "-d", "test_data.jsonl", "--model", "offline/calculator"]
    tested = json.loads(run(loop_project, *OSMOSIS, "--json", "test", *model))["data"]
    assert tested["summary"]["passed"] == 4
    assert all(one["reward"] is not None for one in tested["results"])
    words = ["--eval-fn", "rewards:compute_reward", "--n", "2", "-o", "results.json"]
    run(loop_project, *OSMOSIS, "eval", *model, *words)
    written = json.loads((loop_project / "results.json").read_text())
    assert 0 < written["summary"]["eval_fns"]["rewards:compute_reward"]["mean"] <= 1
    assert written["summary"]["total_runs"] == 8


async def test_loop_project_as_a_server(loop_project: Path, tmp_path: Path) -> None:
    """The app in a process of its own, a mock trainer here: init, model calls, one completion, a trace."""
    tracker = RolloutCompletionTracker()
    async with running_app(create_mock_trainer_app(tracker)) as trainer, served(loop_project, tmp_path) as url:
        request = {
            "rollout_id": "r-1",
            "server_url": trainer,
            "messages": [{"role": "user", "content": "please add 5 and 3"}],
            "completion_params": {"temperature": 0.5},
            "metadata": {"ground_truth": "8"},
        }
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/v1/rollout/init", json=request) as reply:
                assert reply.status == 202
                assert (await reply.json())["tools"][0]["function"]["name"] == "add"
            await until(lambda: tracker.responses, what="the completion")
        done = tracker.responses[0]
        assert (done["rollout_id"], done["status"], done["finish_reason"]) == ("r-1", "COMPLETED", "stop")
        assert done["final_messages"][-2]["content"] == "8.0"
        assert done["metrics"]["num_tool_calls"] == 1
        assert done["reward"] == 0.0
    traces = list((tmp_path / "traces").rglob("r-1.jsonl"))
    assert len(traces) == 1
    events = [json.loads(line)["event"] for line in traces[0].read_text().splitlines()]
    assert events[0] == "pre_llm"
    assert events[-1] == "rollout_complete"


@asynccontextmanager
async def served(folder: Path, tmp_path: Path) -> AsyncIterator[str]:
    """`uvicorn server:app` of a project, as its README starts it."""
    from osmosis.serve.server_process import free_port

    port = free_port()
    environ = {**os.environ, "ROLLOUT_DEBUG_DIR": str(tmp_path / "traces")}
    words = ["-m", "uvicorn", "server:app", "--port", str(port), "--log-level", "warning"]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=folder, env=environ)
    url = f"http://127.0.0.1:{port}"
    try:
        await healthy(url, process)
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 30)


async def healthy(url: str, process: asyncio.subprocess.Process) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(600):
            assert process.returncode is None, "the server ended"
            try:
                async with session.get(f"{url}/health") as reply:
                    if reply.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)
    raise AssertionError("the server never became healthy")


SYNC_PROJECT = {
    "mcp/main.py": """
        import argparse
        from server import mcp
        from tools import *

        if __name__ == "__main__":
            mcp.run(transport="http", host="0.0.0.0", port=8080)
        """,
    "mcp/server/__init__.py": "from .mcp_server import mcp\n",
    "mcp/server/mcp_server.py": """
        from fastmcp import FastMCP
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse

        mcp = FastMCP("OsmosisTools")

        @mcp.custom_route("/health", methods=["GET"])
        async def health_check(request: Request) -> PlainTextResponse:
            return PlainTextResponse("OK")
        """,
    "mcp/tools/__init__.py": """
        import glob
        from os.path import basename, dirname, join
        modules = glob.glob(join(dirname(__file__), "*.py"))
        __all__ = [basename(f)[:-3] for f in modules if not f.endswith("__init__.py")]
        """,
    "mcp/tools/math.py": """
        import math
        from server import mcp

        print("a message of the tool's module on stdout")

        @mcp.tool()
        def multiply(first_val: float, second_val: float) -> float:
            \"\"\"Multiply two numbers.

            Args:
                first_val: The first number.
                second_val: The second number.
            \"\"\"
            print("called")
            return round(math.fsum([first_val * second_val]), 4)
        """,
    "reward_fn/compute_reward.py": """
        import re
        from osmosis_ai import osmosis_reward

        @osmosis_reward
        def numbers_match_reward(solution_str: str, ground_truth: str, extra_info: dict=None, **kwargs):
            try:
                found = re.findall(r"####\\s*([-\\d.]+)", solution_str)[0]
                return 1.0 if abs(float(found) - float(ground_truth)) < 1e-7 else 0.0
            except:
                return 0.0
        """,
    "reward_rubric/reward_rubric_openai.py": """
        import os
        from osmosis_ai import evaluate_rubric, osmosis_rubric

        API_KEY = os.getenv("OPENAI_API_KEY")

        @osmosis_rubric
        def compute_rubric_score_openai(solution_str: str, ground_truth: str, extra_info: dict, **kwargs) -> float:
            return evaluate_rubric(
                rubric="The answer is right.",
                solution_str=solution_str,
                model_info={"provider": "openai", "model": os.environ["JUDGE_MODEL"], "api_key": API_KEY},
                ground_truth=ground_truth,
                metadata=extra_info["metadata"],
                score_min=0.0,
                score_max=1.0,
                return_details=False,
            )

        if __name__ == "__main__":
            print("score:", compute_rubric_score_openai("It is 42.", "42", {"metadata": {"source": "test"}}))
        """,
}


def test_sync_project_with_its_mcp_folder(tmp_path: Path) -> None:
    project = write(tmp_path / "gs", SYNC_PROJECT)
    words = ["--mcp", "./mcp", "-d", "test_data.jsonl", "--model", "offline/calculator"]
    found = json.loads(run(project, *OSMOSIS, "--json", "validate", "--mcp", "./mcp"))["data"]
    assert found["tools"] == ["multiply"]
    name = "reward_fn.compute_reward:numbers_match_reward"
    data = json.loads(run(project, *OSMOSIS, "--json", "eval", *words, "--eval-fn", name, "--n", "2"))["data"]
    assert data["summary"]["total_runs"] == 8
    assert data["summary"]["eval_fns"][name]["mean"] > 0
    assert json.loads(run(project, *OSMOSIS, "--json", "test", *words))["data"]["summary"]["passed"] == 4


@pytest.mark.parametrize("model", ["gpt-5-mini", "gpt-4o-mini"])
async def test_sync_project_with_its_judge(tmp_path: Path, model: str) -> None:
    """A server that OPENAI_BASE_URL names is asked by chat completions, the only route that all of them have."""
    project = write(tmp_path / "gs", SYNC_PROJECT)
    async with judge() as (url, asked):
        environ = {"OPENAI_API_KEY": "test-key", "OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "JUDGE_MODEL": model}
        command = [sys.executable, "-m", "reward_rubric.reward_rubric_openai"]
        out = await asyncio.to_thread(run, project, *command, environ=environ)
    assert out.strip().splitlines()[-1] == "score: 0.75"
    path, body = asked[0]
    assert path == "/v1/chat/completions"
    assert "It is 42." in json.dumps(body)


@asynccontextmanager
async def judge() -> AsyncIterator[tuple[str, list[Any]]]:
    verdict = '{"score": 0.75, "explanation": "close"}'
    asked: list[Any] = []

    async def completions(request: web.Request) -> web.Response:
        asked.append((request.path, await request.json()))
        message = {"role": "assistant", "content": verdict}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
        return web.json_response(body)

    async with answering(completions, "/v1/chat/completions") as url:
        yield f"{url}/v1", asked


WORKFLOW_MAIN = """
    import os
    import re
    from typing import Any

    import uvicorn
    from osmosis_ai.rollout.agent_workflow import AgentWorkflow
    from osmosis_ai.rollout.backend.local import LocalBackend
    from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext, get_rollout_context
    from osmosis_ai.rollout.grader import Grader
    from osmosis_ai.rollout.server import create_rollout_server
    from osmosis_ai.rollout.types import AgentWorkflowConfig, GraderConfig
    {imports}

    class MultiplyConfig(AgentWorkflowConfig):
        turns: int = 4

    class MultiplyWorkflow(AgentWorkflow[MultiplyConfig]):
        async def run(self, ctx: AgentWorkflowContext) -> Any:
            rollout = get_rollout_context()
            assert rollout.chat_completions_url and rollout.rollout_id
            {body}

    class MultiplyGrader(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            {grade}

    def main() -> None:
        backend = LocalBackend(
            workflow=MultiplyWorkflow,
            workflow_config=MultiplyConfig(name="multiply"),
            grader=MultiplyGrader,
            grader_config=GraderConfig(name="multiply"),
        )
        app = create_rollout_server(backend=backend)
        port = int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000"))
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")

    if __name__ == "__main__":
        main()
    """
PLAIN = """async with ctx.chat() as chat:
                return [*ctx.prompt, (await chat.complete(ctx.prompt)).message]"""
AGENTS = """agent = OsmosisAgent(name="multiply", instructions=ctx.prompt[0]["content"], tools=[],
                                 model=OsmosisRolloutModel(), model_settings=ModelSettings(temperature=1.0))
            await Runner.run(agent, input=ctx.prompt[1]["content"], session=OsmosisMemorySession(), max_turns=8)
            return None"""
STRANDS = """agent = OsmosisStrandsAgent(model=OsmosisRolloutModel(), system_prompt=ctx.prompt[0]["content"])
            await agent.invoke_async(ctx.prompt[1]["content"])
            return None"""
GRADE_03 = r"""text = str(ctx.sample.messages[-1]["content"])
            ctx.set_reward(1.0 if re.findall(r"####\s*([-\d.]+)", text)[-1:] == [ctx.label] else 0.0)"""
GRADE_02 = """for sample_id, sample in ctx.get_samples().items():
                text = str(sample.messages[-1]["content"])
                ctx.set_sample_reward(sample_id, 1.0 if text.endswith(ctx.label) else 0.0)"""
A, S = "osmosis_ai.rollout.integrations.agents.openai_agents", "osmosis_ai.rollout.integrations.agents.strands"
KINDS = {
    "plain": ("", PLAIN, GRADE_03, None),
    "older-grader": ("", PLAIN, GRADE_02, None),
    "openai-agents": (
        f"from agents import ModelSettings, Runner\n    from {A} import OsmosisAgent, OsmosisMemorySession, "
        "OsmosisRolloutModel",
        AGENTS,
        GRADE_03,
        "agents",
    ),
    "openai-agents-litellm": (
        f"from agents import ModelSettings, Runner\n    from {A} import OsmosisAgent, OsmosisMemorySession, "
        "OsmosisLitellmModel",
        AGENTS.replace("OsmosisRolloutModel", "OsmosisLitellmModel"),
        GRADE_03,
        "agents",
    ),
    "strands": (f"from {S} import OsmosisRolloutModel, OsmosisStrandsAgent", STRANDS, GRADE_03, "strands"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_workflow_project_as_a_server(tmp_path: Path, kind: str) -> None:
    imports, body, grade, library = KINDS[kind]
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    source = WORKFLOW_MAIN.replace("{imports}", imports).replace("{body}", body)
    project = write(tmp_path / "wt", {"main.py": source.replace("{grade}", grade)})
    from osmosis.serve.server_process import free_port

    port = free_port()
    environ = {**os.environ, "_OSMOSIS_ROLLOUT_PORT": str(port)}
    process = await asyncio.create_subprocess_exec(sys.executable, "main.py", cwd=project, env=environ)
    try:
        url = f"http://127.0.0.1:{port}"
        await healthy(url, process)
        words = ["--server", url, "-d", "test_data.jsonl", "--model", "offline/calculator", "--n", "2"]
        out = await asyncio.to_thread(run, project, *OSMOSIS, "--json", "eval", *words)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 30)
    summary = json.loads(out)["data"]["summary"]
    assert summary["total_runs"] == 8
    assert 0 < summary["reward"]["mean"] <= 1
