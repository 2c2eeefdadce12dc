"""Workflows that the tests of HarborBackend send into sandboxes."""

import asyncio
import os
import sys
from pathlib import Path

from osmosis import AgentWorkflow, AgentWorkflowConfig


class Config(AgentWorkflowConfig):
    word: str = "none"
    objects: object = None


SPECIAL = Config(name="special", word="from the module", objects=object())


class Ask(AgentWorkflow[Config]):
    """One call; the answer goes where the task's verifier looks."""

    async def run(self, ctx):
        async with ctx.chat() as chat:
            answer = await chat.complete(ctx.prompt)
        text = str(answer.message["content"])
        Path("answer.txt").write_text(text.rpartition("#### ")[2])
        (ctx.artifacts_dir / "note.txt").write_text("left by the agent")
        link = ctx.artifacts_dir / "link.txt"
        link.unlink(missing_ok=True)
        link.symlink_to("/etc/hostname")
        return [*ctx.prompt, answer.message]


class LookAround(AgentWorkflow[Config]):
    """Says which files of the sandbox hold the word that only the verifier may know, and its config's word."""

    async def run(self, ctx):
        root = Path.cwd().parent
        word = "-".join(("the", "hidden", "label"))  # whole, this file would be found itself
        found = [p for p in root.rglob("*") if p.is_file() and word.encode() in p.read_bytes()]
        tests = [p for p in root.rglob("osmosis_row.json")]
        hidden = word in str(os.environ)
        return [*ctx.prompt, {"role": "assistant", "content": f"{len(found)} {len(tests)} {hidden} {self.config.word}"}]


class Crash(AgentWorkflow[Config]):
    async def run(self, ctx):
        sys.stderr.write(os.environ["OSMOSIS_API_KEY"])
        raise RuntimeError(f"no luck with {os.environ['OSMOSIS_API_KEY']}")


class Hang(AgentWorkflow[Config]):
    """Notes that it runs, then never ends."""

    async def run(self, ctx):
        Path(str(ctx.metadata["note"])).write_text(str(os.getpid()))
        await asyncio.Event().wait()
