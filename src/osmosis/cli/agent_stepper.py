import asyncio
import json
import signal
import threading
from typing import TextIO

from rich.console import Console
from rich.text import Text

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.context import AppContext
from osmosis.cli.core.output import Mode
from osmosis.cli.core.results import clean, format_duration, format_tokens
from osmosis.cli.eval.show import draw_message
from osmosis.engine.evaluate import Attempts
from osmosis.engine.task import Task
from osmosis.errors import InteractiveRequired, ModelError
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.local.prepared_run import PreparedRun
from osmosis.records.run.rollout import Category, Message, Rollout
from osmosis.records.run.rows import Row

STEP_HELP = "n next (Enter)   c continue to the end   m messages   t tools   q quit this row"


class Prompt:
    def __init__(self, ctx: AppContext) -> None:
        self._stdin = ctx.stdin
        self.console: Console = ctx.output.console()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(clean(text), style=style))

    async def ask(self, question: str) -> str | None:
        self.console.print(Text(f"{question} > ", style="bold"), end="")
        line = _read_line(self._stdin)
        return line.strip() if line else None

    def messages(self, messages: list[Message]) -> None:
        for message in messages:
            self.message(message)

    def message(self, message: Message, title: str | None = None) -> None:
        draw_message(self.console, message, title)

    def tools(self, tools: list[JsonObject] | None) -> None:
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
    """Read one line, blocking the event loop on purpose; Ctrl-C counts as the end of input."""
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
    def __init__(self, inner: Model, prompt: Prompt) -> None:
        self._inner = inner
        self._prompt = prompt
        self._running = False
        self.turn = 0
        self.aborted = False
        self.spec = inner.spec

    def restart(self) -> None:
        self._running, self.turn, self.aborted = False, 0, False

    async def complete(self, request: ChatRequest) -> Completion:
        if self.aborted:
            raise _left()
        new = [m for m in request.messages[-8:] if m.get("role") == "tool"] if self.turn else request.messages
        for message in new:
            self._prompt.message(message)
        completion = await self._inner.complete(request)
        self.turn += 1
        self._prompt.message(completion.message, f"turn {self.turn}, {completion.finish_reason or 'no finish reason'}")
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


def step_through(ctx: AppContext, prepared: PreparedRun, label: str, row: int | None) -> int:
    if ctx.mode is not Mode.RICH:
        raise InteractiveRequired("--interactive needs a terminal", hint="remove --json and --plain")
    try:
        asyncio.run(_session(ctx, prepared, label, row))
    except KeyboardInterrupt:
        ctx.output.say("left", style="dim")
    return 0


async def _session(ctx: AppContext, prepared: PreparedRun, label: str, row_index: int | None) -> None:
    rows = {row.index: row for row in prepared.rows()}
    prompt = Prompt(ctx)
    model = SteppedModel(prepared.open_model(), prompt)
    prompt.say(f"{label}, model {prepared.plan.model.name}; rows {min(rows)} to {max(rows)}", "bold")
    prompt.say(STEP_HELP, "dim")
    try:
        async with prepared.open_agent(model) as agent:
            attempts = Attempts(prepared.plan, agent, model, (), say=prompt.say)
            while True:
                if row_index is None:
                    row_index = await _choose(prompt, rows)
                    if row_index is None:
                        return
                row = rows.get(row_index)
                if row is None:
                    prompt.say(f"there is no row {row_index}: rows {min(rows)} to {max(rows)} are loaded", "red")
                else:
                    await _step_row(prompt, model, attempts, row)
                row_index = None
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
        prompt.say("a row number, r N, or q to leave", "dim")


async def _step_row(prompt: Prompt, model: SteppedModel, attempts: Attempts, row: Row) -> None:
    model.restart()
    prompt.say(f"row {row.index}", "bold")
    rollout: Rollout = await attempts.run(Task(row=row, attempt=0, rollout_id=f"test-{row.index}"))
    if model.aborted:
        prompt.say("left this row", "yellow")
        return
    good = rollout.failure is None
    took = f"{format_duration(rollout.duration_ms)}, {format_tokens(rollout.usage.total_tokens)} tokens"
    outcome = f"{'ended' if good else 'failed'}: {rollout.finish_reason or 'no finish reason'} ({took})"
    prompt.say(outcome, "green" if good else "red")
    if rollout.failure is not None:
        prompt.say(f"  {rollout.failure.message}", "red")
    for score in rollout.scores.values():
        prompt.say(f"  {score.name}: {score.value if score.failure is None else score.failure.message}")
    answer = await prompt.ask("m for all messages, Enter to go on")
    if answer and answer.lower() in ("m", "messages"):
        prompt.messages(rollout.messages)
