"""Strands agents in a workflow: `OsmosisStrandsAgent` and `OsmosisRolloutModel`.

The model asks the running rollout's endpoint; the agent's conversation becomes the rollout's sample, so the
workflow may return None. Nothing is printed.
"""

# The framework is an extra: with it installed its types are checked here, without it everything is Any, and no
# annotation satisfies both.
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

try:
    from strands import Agent
    from strands.models.openai import OpenAIModel
except ImportError as exc:
    raise ImportError("Strands is not installed: pip install 'osmosis-ai[strands]'") from exc

from osmosis.sdk.chat import MODEL_ID

from .conversation import conversation_of, current_rollout

NO_KEY = "none-needed"
"""What the client is given when the endpoint wants no key: it insists on one."""


class OsmosisRolloutModel(OpenAIModel):
    """The rollout's model; `params` are sampling parameters. One object serves all rollouts."""

    def __init__(self, model_id: str = MODEL_ID, params: dict[str, Any] | None = None, **config: Any) -> None:
        super().__init__(model_id=model_id, **({"params": params} if params else {}), **config)

    @property
    def client_args(self) -> dict[str, Any]:
        """Read by Strands at every call: address and key of the rollout that is running then."""
        rollout = current_rollout()
        return {"base_url": rollout.chat_completions_url, "api_key": rollout.api_key or NO_KEY, "max_retries": 4}

    @client_args.setter
    def client_args(self, value: Any) -> None:
        if value:
            raise TypeError("client_args cannot be set: the rollout provides the model endpoint")

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Strands' own stream; what went out and what came back is kept as the rollout's conversation."""
        rollout = current_rollout()
        conversation = conversation_of(rollout)
        conversation.record(_plain(self.format_request_messages(messages, system_prompt)))
        async for event in super().stream(messages, tool_specs, system_prompt, **kwargs):
            yield event


class OsmosisStrandsAgent(Agent):
    """An `Agent` whose model is the rollout's (unless one is given) and whose conversation is its sample."""

    def __init__(self, model: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("callback_handler", None)
        super().__init__(model=model if model is not None else OsmosisRolloutModel(), **kwargs)

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Strands' own; every way of calling an agent passes here, and the final answer is recorded at its end."""
        conversation = conversation_of(current_rollout())
        async for event in super().stream_async(prompt, **kwargs):
            yield event
        format_messages = getattr(self.model, "format_request_messages", OpenAIModel.format_request_messages)
        conversation.record(_plain(format_messages(self.messages, self.system_prompt)))


def _plain(messages: list[Any]) -> list[dict[str, Any]]:
    """Contents that are only text as a string, as chat completions commonly have them."""
    plain = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
            text = "".join(str(part.get("text", "")) for part in content)
            message = {**message, "content": text or None}
        plain.append(dict(message))
    return plain
