"""The model of an agent loop on our server: the SDK's trainer client, its calls started in turns."""

from __future__ import annotations

from typing import Any

from osmosis.records.rollout import Message
from osmosis.sdk.agent_loop import CompletionsResult

from .trainer_client import OsmosisLLMClient
from .turns import Turns


class TrainerModel(OsmosisLLMClient):
    """`OsmosisLLMClient` that waits for its turn before each call."""

    def __init__(self, *args: Any, turns: Turns, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turns = turns

    async def chat_completions(self, messages: list[Message], **kwargs: Any) -> CompletionsResult:
        await self._turns.take()
        return await super().chat_completions(messages, **kwargs)
