"""`osmosis test --interactive`: one row, one model call at a time, with everything to look at in between.

The agent is untouched: the model it asks is wrapped, and the wrapper stops after every answer. Leaving is an
answer too, and never an error.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from typing import TextIO

from rich.console import Console
from rich.text import Text

from osmosis.base.json_types import JsonObject
from osmosis.cli.context import AppContext
from osmosis.cli.draw_rollout import draw_message
from osmosis.cli.output import Mode
from osmosis.cli.results import clean
from osmosis.engine.task import RolloutFn, Task
from osmosis.errors import InteractiveRequired, ModelError
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.local.prepared import Prepared
from osmosis.records.dataset import Row
from osmosis.records.rollout import Category, Message, Rollout

from .show import format_duration, format_tokens

STEP_HELP = "n next (Enter)   c continue to the end   m messages   t tools   q quit this row"
ROW_HELP = "a row number, r N, or q to leave"


class Aborted(Exception):
    """The person left the row."""


class Prompt:
    """Asks and draws. Lines come from the context's stdin, so that a script can answer too."""

    def __init__(self, ctx: AppContext) -> None:
        self._stdin = ctx.stdin
        self.console: Console = ctx.output.console()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(clean(text), style=style))

    async def ask(self, question: str) -> str | None:
        """The line typed, stripped; None at the end of input."""
        self.console.print(Text(f"{question} > ", style="bold"), end="")
        line = _read_line(self._stdin)
        return line.strip() if line else None

    def messages(self, messages: list[Message]) -> None:
        """The whole conversation."""
        for message in messages:
            self.message(message)

    def message(self, message: Message, title: str | None = None) -> None:
        """One message in a box, tool calls included."""
        draw_message(self.console, message, title)

    def tools(self, tools: list[JsonObject] | None) -> None:
        """The tools on offer, with their parameters."""
        if not tools:
            self.say("no tools are on offer", "dim")
        for tool in tools or []:
            function = tool.get("function") or {}
            properties = (function.get("parameters") or {}).get("properties") or {}
            listed = ", ".join(f"{name}: {json.dumps(sub.get('type'))}" for name, sub in properties.items())
            self.say(f"{function.get('name')}({listed})", "bold")
            if function.get("description"):
                self.say(f"  {function['description']}", "dim")


def _read_line(stdin: TextIO) -> str:
    """Blocks: nothing else has to go on while a person thinks. Ctrl-C is the end of input, at once."""
    if threading.current_thread() is not threading.main_thread():
        return stdin.readline()
    # asyncio's own handler would only mark the task as cancelled and let the read go on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return stdin.readline()
    except KeyboardInterrupt:
        return ""
    finally:
        signal.signal(signal.SIGINT, before)


class SteppedModel:
    """A model that stops after every answer and asks what to do. `--c` lets it run to the end."""

    def __init__(self, inner: Model, prompt: Prompt) -> None:
        self._inner = inner
        self._prompt = prompt
        self._running = False
        self.turn = 0
        self.aborted = False
        self.spec = inner.spec

    def restart(self) -> None:
        """Before another row."""
        self._running, self.turn, self.aborted = False, 0, False

    async def complete(self, request: ChatRequest) -> Completion:
        if self.aborted:
            raise _left()
        new = [m for m in request.messages[-8:] if m.get("role") == "tool"] if self.turn else request.messages
        for message in new:
            self._prompt.message(message)
        completion = await self._inner.complete(request)
        self.turn += 1
        title = f"turn {self.turn}, {completion.finish_reason or 'no finish reason'}"
        self._prompt.message(completion.message, title)
        if not self._running:
            await self._step(request, completion)
        return completion

    async def close(self) -> None:
        await self._inner.close()

    async def _step(self, request: ChatRequest, completion: Completion) -> None:
        while True:
            answer = await self._prompt.ask("n, c, m, t, q")
            key = "q" if answer is None else answer.lower()
            if key in ("", "n", "next"):
                return
            if key in ("c", "continue"):
                self._running = True
                return
            if key in ("m", "messages"):
                self._prompt.messages([*request.messages, completion.message])
            elif key in ("t", "tools"):
                self._prompt.tools(request.tools)
            elif key in ("q", "quit", "exit"):
                self.aborted = True
                raise _left()
            else:
                self._prompt.say(STEP_HELP, "dim")


def _left() -> ModelError:
    return ModelError("the row was left by the person stepping through it", category=Category.CANCELLED.value)


def step_through(ctx: AppContext, prepared: Prepared, label: str, row: int | None) -> int:
    """The session: rows one after another, `row` first, until the person leaves. Exit 0."""
    if ctx.mode is not Mode.RICH:
        raise InteractiveRequired("--interactive needs a terminal", hint="remove --json and --plain")
    try:
        asyncio.run(_session(ctx, prepared, label, row))
    except KeyboardInterrupt:
        ctx.output.say("left", style="dim")
    return 0


async def _session(ctx: AppContext, prepared: Prepared, label: str, wanted: int | None) -> None:
    rows = {row.index: row for row in prepared.rows()}
    prompt = Prompt(ctx)
    model = SteppedModel(prepared.open_model(), prompt)
    prompt.say(f"{label}, model {prepared.plan.model.name}; rows {min(rows)} to {max(rows)}", "bold")
    prompt.say(STEP_HELP, "dim")
    try:
        async with prepared.rollouts(model) as rollout_fn:
            while True:
                if wanted is None:
                    wanted = await _choose(prompt, rows)
                    if wanted is None:
                        return
                row = rows.get(wanted)
                if row is None:
                    prompt.say(f"there is no row {wanted}: rows {min(rows)} to {max(rows)} are loaded", "red")
                else:
                    await _one(prompt, model, rollout_fn, row)
                wanted = None
    finally:
        await model.close()


async def _choose(prompt: Prompt, rows: dict[int, Row]) -> int | None:
    while True:
        answer = await prompt.ask(f"row {min(rows)}-{max(rows)}, or q")
        if answer is None or answer.lower() in ("q", "quit", "exit"):
            return None
        words = answer.lower().split()
        if words and words[0] in ("r", "row"):
            words = words[1:]
        if len(words) == 1 and words[0].isdigit():
            return int(words[0])
        prompt.say(ROW_HELP, "dim")


async def _one(prompt: Prompt, model: SteppedModel, rollout_fn: RolloutFn, row: Row) -> None:
    model.restart()
    prompt.say(f"row {row.index}", "bold")
    rollout: Rollout = await rollout_fn(Task(row=row, attempt=0, rollout_id=f"test-{row.index}"))
    if model.aborted:
        prompt.say("left this row", "yellow")
        return
    good = rollout.failure is None
    took = f"{format_duration(rollout.duration_ms)}, {format_tokens(rollout.usage.total_tokens)} tokens"
    prompt.say(
        f"{'ended' if good else 'failed'}: {rollout.finish_reason or 'no finish reason'} ({took})",
        "green" if good else "red",
    )
    if rollout.failure is not None:
        prompt.say(f"  {rollout.failure.message}", "red")
    for score in rollout.scores.values():
        prompt.say(f"  {score.name}: {score.value if score.failure is None else score.failure.message}")
    answer = await prompt.ask("m for all messages, Enter to go on")
    if answer and answer.lower() in ("m", "messages"):
        prompt.messages(rollout.messages)
