"""Code that a model wrote, run where it can do no harm: the model has a tool that runs Python, the grader runs its
answer against the tests of the row in a fresh sandbox, which nothing of the agent has touched.

`osmosis eval -m main:backend -d data.jsonl --model offline/echo` tries it without an account: the stand-in repeats the
program in its prompt. One of the four is wrong, one never ends, and one reads this machine's files, or tries to.
"""

import re
import uuid

from osmosis import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ConcurrencyConfig,
    Grader,
    LocalBackend,
    get_sandbox,
    run_tool_calls,
    tool,
)


@tool(timeout_s=30)
async def run_python(code: str) -> str:
    """Run a Python program and return what it prints.

    Args:
        code: the program.
    """
    done = await get_sandbox().run(["python", "program.py"], files={"program.py": code}, timeout_s=10, memory_mb=256)
    return done.output or f"(no output; exit code {done.exit_code})"


class Coder(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx):
        messages = list(ctx.prompt)
        async with ctx.chat() as chat:
            for _ in range(8):
                answer = await chat.complete(messages, tools=[run_python])
                messages.append(answer.message)
                if not answer.tool_calls:
                    break
                messages.extend(await run_tool_calls(answer.tool_calls, [run_python]))
        return messages


class PassesTests(Grader):
    async def grade(self, ctx):
        found = re.findall(r"```python\n(.*?)```", str(ctx.sample.messages[-1].get("content")), re.DOTALL)
        program = found[-1] if found else ""
        async with ctx.sandbox.fresh() as sandbox:
            # An exit code proves little: the program may end the process itself, before any test.
            passed = f"passed {uuid.uuid4()}"
            files = {"answer.py": program, "tests.py": f"from answer import *\n{ctx.label}\nprint({passed!r})\n"}
            done = await sandbox.run(["python", "tests.py"], files=files, timeout_s=5, memory_mb=256)
        ctx.set_reward(1.0 if done.ok and passed in done.stdout else 0.0)


config = AgentWorkflowConfig(name="coder", concurrency=ConcurrencyConfig(max_concurrent=4))
backend = LocalBackend(Coder, config, PassesTests)
