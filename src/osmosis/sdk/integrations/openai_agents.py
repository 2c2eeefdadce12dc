"""The OpenAI Agents SDK in a workflow. One agent object serves all rollouts."""

# The framework is an extra: with it installed its types are checked here, without it everything is Any, and no
# annotation satisfies both.
# mypy: ignore-errors

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from osmosis.base.installation import extra_command

try:
    import agents
    from agents import Agent, Model, ModelResponse, OpenAIChatCompletionsModel
    from agents.memory.session import SessionABC
    from agents.models.chatcmpl_converter import Converter
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient
except ImportError as exc:
    raise ImportError(f"the OpenAI Agents SDK is not installed: {extra_command('openai-agents')}") from exc

from osmosis.sdk.chat import MODEL_ID
from osmosis.sdk.types import RolloutSample
from osmosis.sdk.workflow import WorkflowRollout, conversation_of, get_rollout

agents.set_tracing_disabled(True)

NO_KEY = "none-needed"


class _RolloutModel(Model):
    def __init__(self, model: str = MODEL_ID) -> None:
        self.model = model
        self._inner: WeakKeyDictionary[WorkflowRollout, Model] = WeakKeyDictionary()

    def open(self, rollout: WorkflowRollout) -> Model:
        raise TypeError(f"{type(self).__name__} cannot open a model")

    async def get_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        rollout = get_rollout()
        response = await self._for(rollout).get_response(system_instructions, input, *args, **kwargs)
        _record(rollout, system_instructions, input, response.to_input_items())
        return response

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        rollout = get_rollout()
        async for event in self._for(rollout).stream_response(system_instructions, input, *args, **kwargs):
            if getattr(event, "type", "") == "response.completed":
                output = [item.model_dump(exclude_unset=True) for item in event.response.output]
                _record(rollout, system_instructions, input, output)
            yield event

    def _for(self, rollout: WorkflowRollout) -> Model:
        model = self._inner.get(rollout)
        if model is None:
            model = self._inner[rollout] = self.open(rollout)
        return model


class OsmosisRolloutModel(_RolloutModel):
    def open(self, rollout: WorkflowRollout) -> Model:
        client = AsyncOpenAI(
            base_url=rollout.chat_completions_url,
            api_key=rollout.api_key or NO_KEY,
            http_client=_http_client(),
            max_retries=4,
        )
        return OpenAIChatCompletionsModel(self.model, client)


class OsmosisLitellmModel(_RolloutModel):
    """The rollout's model through LiteLLM, for agents that rely on its conversions."""

    def open(self, rollout: WorkflowRollout) -> Model:
        # LiteLLM fetches a price map over the network while it is imported, unless told not to.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        from agents.extensions.models.litellm_model import LitellmModel

        return LitellmModel(self.model, base_url=rollout.chat_completions_url, api_key=rollout.api_key or NO_KEY)


@dataclass
class OsmosisAgent(Agent[Any]):
    """An `Agent` whose model is the rollout's, unless another one is given."""

    def __post_init__(self) -> None:
        if getattr(self, "model", None) is None:
            self.model = OsmosisRolloutModel()
        super().__post_init__()


class OsmosisMemorySession(SessionABC):
    """A session in memory for one rollout, so that several `Runner.run` calls continue one conversation.

    Made inside `run`, it also makes the conversation the rollout's sample: the workflow may then return None."""

    def __init__(self, session_id: str | None = None) -> None:
        rollout = get_rollout()
        self.session_id = session_id or rollout.rollout_id or "rollout"
        self.session_settings = None
        self._items: list[Any] = []
        self._conversation = conversation_of(rollout)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return list(self._items if limit is None else self._items[-limit:] if limit > 0 else [])

    async def add_items(self, items: list[Any]) -> None:
        self._items.extend(items)

    async def pop_item(self) -> Any | None:
        return self._items.pop() if self._items else None

    async def clear_session(self) -> None:
        self._items.clear()

    async def get_sample(self) -> RolloutSample:
        return await self._conversation.get_sample()


def _record(rollout: WorkflowRollout, system: str | None, input: Any, output: list[Any]) -> None:
    messages = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
    opening = [{"role": "system", "content": system}] if system else []
    conversation_of(rollout).record([*opening, *Converter.items_to_messages([*messages, *output])])


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, DefaultAsyncHttpxClient] = WeakKeyDictionary()


def _http_client() -> DefaultAsyncHttpxClient:
    loop = asyncio.get_running_loop()
    client = _clients.get(loop)
    if client is None or client.is_closed:
        client = _clients[loop] = DefaultAsyncHttpxClient()
    return client
