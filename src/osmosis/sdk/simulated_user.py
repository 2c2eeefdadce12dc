from collections.abc import Awaitable, Callable, Mapping, Sequence

from osmosis.base.redact import Redactor
from osmosis.errors import ModelError
from osmosis.llm import ChatRequest, open_model
from osmosis.records.run.rollout import Message, Usage
from osmosis.sdk.chat import ChatClient, text_of
from osmosis.sdk.judge import JUDGE_RETRY
from osmosis.sdk.judge_model import info_of, resolve_judge
from osmosis.sdk.workflow import get_rollout_context

Answer = Callable[[list[Message]], Awaitable[Sequence[Message]]]
"""Takes the conversation; returns the agent's new messages, calls and results of tools included."""
MOST_TURNS = 10
STOP = "###STOP###"
_GREETING: Message = {"role": "user", "content": "Hello, how can I help you?"}


class SimulatedUser:
    """A person who talks to an agent until their goal is reached.

    `model` is a name (`openai/gpt-5-mini`, `offline/echo`) or a judge's `model_info`; its key comes from the
    environment. Its calls are not the rollout's: they are never trained on, and count in the rollout's `user_usage`.
    `script` are the first turns, word for word; without a model there are no others. The conversation ends when the
    person says `stop`, when the agent calls the tool `stop_tool`, or after `max_turns` turns of the person (10, or the
    script's). Raise `TypeError`, `ValueError` or `MissingAPIKeyError`."""

    def __init__(
        self,
        model: str | Mapping[str, object] | None = None,
        *,
        persona: str = "",
        goal: str = "",
        script: Sequence[str] = (),
        stop: str = STOP,
        stop_tool: str = "",
        max_turns: int | None = None,
    ) -> None:
        if model is None and not script:
            raise ValueError("a simulated user needs a model, a script, or both")
        if isinstance(script, str):
            raise TypeError(f"script must be a list of turns, not one text: [{script!r}]")
        info = info_of(model) if isinstance(model, str) else model
        self._judge = None if info is None else resolve_judge(info)
        self._script, self._stop, self._stop_tool = list(script), stop, stop_tool
        self._max_turns = max(MOST_TURNS, len(script)) if max_turns is None else max_turns
        self._system = (
            "You are a person who talks to an assistant. Do not do the assistant's work, and never say that you are a "
            f"model.\nWho you are: {persona or 'a customer'}\nWhat you want: {goal or 'help with the request'}\nWrite "
            "your next message alone, as this person would: short, and one thing at a time. When you have what you "
            f"want, or cannot get it, write {stop} and nothing else."
        )
        self.turns = 0
        self.usage = Usage()  # tokens and cost of the person's model

    async def talk(self, prompt: Sequence[Message], answer: ChatClient | Answer) -> list[Message]:
        """Let agent and person talk until the person ends it; return the conversation. The person opens it where the
        prompt has no message of theirs."""
        messages = list(prompt)
        if not any(message.get("role") == "user" for message in messages):
            messages += filter(None, [await self.reply(messages)])
        while True:
            if isinstance(answer, ChatClient):
                messages.append((await answer.complete(messages)).message)
            else:
                messages += await answer(messages)
            reply = await self.reply(messages)
            if reply is None:
                return messages
            messages.append(reply)

    async def reply(self, messages: Sequence[Message]) -> Message | None:
        """Return the person's next message, None at the end; raise `ModelError` without an answer of their model."""
        if self.turns >= self._max_turns or (self._stop_tool and self._stop_tool in _last_tools(messages)):
            return None
        if self.turns < len(self._script):
            text = self._script[self.turns]
        elif self._judge is not None:
            text = await self._ask(messages)
        else:
            return None
        self.turns += 1
        return None if self._stop and self._stop in text else {"role": "user", "content": text}

    async def _ask(self, messages: Sequence[Message]) -> str:
        assert self._judge is not None
        judge = self._judge
        seen = [{"role": "system", "content": self._system}, _GREETING, *_exchange_roles(messages)]
        model = open_model(judge.spec, api_key=judge.api_key, retry=JUDGE_RETRY, timeout_s=judge.timeout_s)
        try:
            done = await model.complete(ChatRequest(seen))
        except ModelError as error:
            detail = Redactor(filter(None, [judge.api_key])).text(error.message)
            message = f"the simulated user's model {judge.provider}/{judge.model}: {detail}"
            raise ModelError(message, category=error.category, hint=error.hint) from error
        finally:
            await model.close()
        self.usage = self.usage + done.usage
        if (rollout := get_rollout_context()) is not None:
            rollout.user_usage = rollout.user_usage + done.usage
        return text_of(done.message)


def _exchange_roles(messages: Sequence[Message]) -> list[Message]:
    roles = {"user": "assistant", "assistant": "user"}
    heard = [(roles.get(message.get("role", "")), text_of(message)) for message in messages]
    return [{"role": role, "content": text} for role, text in heard if role and text.strip()]


def _last_tools(messages: Sequence[Message]) -> set[str]:
    last = max((i for i, message in enumerate(messages) if message.get("role") == "user"), default=-1)
    calls = [call for message in messages[last + 1 :] for call in message.get("tool_calls") or ()]
    return {str((call.get("function") or {}).get("name")) for call in calls}
