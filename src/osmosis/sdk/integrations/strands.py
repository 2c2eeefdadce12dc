"""Strands agents in a workflow. Their conversation becomes the rollout's sample, so the workflow may return None."""

# The framework is an extra: with it installed its types are checked here, without it everything is Any, and no
# annotation satisfies both.
# mypy: ignore-errors

from collections.abc import AsyncIterator
from typing import Any

from osmosis.base.installation import extra_command

try:
    from strands import Agent
    from strands.models.openai import OpenAIModel
except ImportError as exc:
    raise ImportError(f"Strands is not installed: {extra_command('strands')}") from exc

from osmosis.sdk.chat import MODEL_ID
from osmosis.sdk.workflow import conversation_of, get_rollout

NO_KEY = "none-needed"


class OsmosisRolloutModel(OpenAIModel):
    """The rollout's model; `params` are sampling parameters. One object serves all rollouts."""

    def __init__(self, model_id: str = MODEL_ID, params: dict[str, Any] | None = None, **config: Any) -> None:
        super().__init__(model_id=model_id, **({"params": params} if params else {}), **config)

    @property
    def client_args(self) -> dict[str, Any]:
        """Return address and key of the running rollout; Strands reads them at every call."""
        rollout = get_rollout()
        return {"base_url": rollout.chat_completions_url, "api_key": rollout.api_key or NO_KEY, "max_retries": 4}

    @client_args.setter
    def client_args(self, value: Any) -> None:
        if value:
            raise TypeError("client_args cannot be set: the rollout provides the model endpoint")

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        conversation_of(get_rollout()).record(_plain(self.format_request_messages(messages, system_prompt)))
        async for event in super().stream(messages, tool_specs, system_prompt, **kwargs):
            yield event


class OsmosisStrandsAgent(Agent):
    """An `Agent` whose model is the rollout's (unless one is given) and whose conversation is its sample."""

    def __init__(self, model: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("callback_handler", None)
        super().__init__(model=model if model is not None else OsmosisRolloutModel(), **kwargs)

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Stream as Strands does and record the final answer; every way of calling an agent passes here."""
        conversation = conversation_of(get_rollout())
        async for event in super().stream_async(prompt, **kwargs):
            yield event
        format_messages = getattr(self.model, "format_request_messages", OpenAIModel.format_request_messages)
        conversation.record(_plain(format_messages(self.messages, self.system_prompt)))


def _plain(messages: list[Any]) -> list[dict[str, Any]]:
    plain = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
            text = "".join(str(part.get("text", "")) for part in content)
            message = {**message, "content": text or None}
        plain.append(dict(message))
    return plain
