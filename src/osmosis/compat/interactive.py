from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from osmosis.base.jsonable import JsonObject
from osmosis.compat.console import Console
from osmosis.compat.runner import LocalRunResult, LocalTestRunner, close_client
from osmosis.records.protocol.v02 import RolloutMetrics
from osmosis.records.run.rollout import Message
from osmosis.sdk.agent_loop import CompletionsResult, RolloutAgentLoop
from osmosis.sdk.chat import text_of

HELP = "n/next/Enter: next   c/continue: run to the end   m/messages   t/tools   q/quit/exit: leave this row"


@dataclass
class InteractiveStep:
    turn: int
    step_type: str
    message: Message
    tool_calls: list[JsonObject]
    finish_reason: str


class InteractiveLLMClient:
    def __init__(
        self,
        wrapped_client: Any,
        on_step: Callable[[InteractiveStep], bool],
        on_messages_updated: Callable[[list[Message]], None] | None = None,
    ) -> None:
        self._client = wrapped_client
        self._on_step = on_step
        self._on_messages = on_messages_updated
        self._turn = 0
        self.tools: list[Any] = []

    def set_tools(self, tools: list[Any]) -> None:
        self.tools = list(tools)
        self._client.set_tools(tools)

    def clear_tools(self) -> None:
        self._client.clear_tools()

    def reset_metrics(self) -> None:
        self._turn = 0
        self._client.reset_metrics()

    def get_metrics(self) -> RolloutMetrics:
        metrics: RolloutMetrics = self._client.get_metrics()
        return metrics

    async def chat_completions(self, messages: list[Message], **kwargs: object) -> CompletionsResult:
        answer: CompletionsResult = await self._client.chat_completions(messages, **kwargs)
        self._turn += 1
        if self._on_messages is not None:
            self._on_messages([*messages, answer.message])
        step = InteractiveStep(self._turn, "llm_response", answer.message, answer.tool_calls, answer.finish_reason)
        if not self._on_step(step):
            raise InterruptedError("quit in the interactive session")
        return answer

    async def close(self) -> None:
        await close_client(self._client)


class InteractiveRunner:
    def __init__(
        self,
        agent_loop: RolloutAgentLoop,
        llm_client: object,
        debug: bool = False,
        *,
        ask: Callable[[str], str] = input,
        console: Console | None = None,
    ) -> None:
        self._ask = ask
        self._console = console or Console()
        self._client = InteractiveLLMClient(llm_client, self._step, self._remember)
        self._runner = LocalTestRunner(agent_loop, self._client, debug)
        self._messages: list[Message] = []
        self._going = False
        self._left = False

    async def run_single_interactive(
        self, row: JsonObject, row_index: int, max_turns: int = 10, completion_params: JsonObject | None = None
    ) -> LocalRunResult:
        self._going, self._left, self._messages = False, False, []
        result = await self._runner.run_single(row, row_index, max_turns, completion_params)
        word = "left" if self._left else "ended" if result.success else f"failed: {result.error}"
        self._console.print(f"row {row_index} {word}")
        if not self._left and self._answer("m for all messages, Enter to continue > ") in ("m", "messages"):
            self._show_messages()
        return result

    async def run_interactive_session(
        self,
        rows: list[JsonObject],
        max_turns: int = 10,
        completion_params: JsonObject | None = None,
        initial_row: int | None = None,
        row_offset: int = 0,
    ) -> None:
        index = initial_row
        while True:
            if index is None:
                answer = self._answer(f"row {row_offset}-{row_offset + len(rows) - 1}, or q > ")
                if answer in ("q", "quit", "exit"):
                    return
                text = answer.removeprefix("row").removeprefix("r").strip()
                index = int(text) if text.isdigit() else -1
            if row_offset <= index < row_offset + len(rows):
                await self.run_single_interactive(rows[index - row_offset], index, max_turns, completion_params)
            else:
                self._console.print(f"no such row: rows {row_offset} to {row_offset + len(rows) - 1} are loaded")
            index = None

    def _remember(self, messages: list[Message]) -> None:
        self._messages = messages

    def _step(self, step: InteractiveStep) -> bool:
        self._console.print(f"turn {step.turn}: {text_of(step.message) or '(no text)'}")
        for call in step.tool_calls:
            function = call.get("function") or {}
            self._console.print(f"  -> {function.get('name')}({function.get('arguments')})")
        while not self._going:
            answer = self._answer("n, c, m, t, q > ")
            if answer in ("", "n", "next"):
                break
            if answer in ("c", "continue"):
                self._going = True
            elif answer in ("m", "messages"):
                self._show_messages()
            elif answer in ("t", "tools"):
                for tool in self._client.tools:
                    self._console.print(str(tool))
            elif answer in ("q", "quit", "exit"):
                self._left = True
                return False
            else:
                self._console.print(HELP)
        return True

    def _show_messages(self) -> None:
        for message in self._messages:
            self._console.print(f"{message.get('role')}: {text_of(message)}")

    def _answer(self, question: str) -> str:
        try:
            return self._ask(question).strip().lower()
        except (EOFError, KeyboardInterrupt):
            return "q"
