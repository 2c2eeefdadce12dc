"""The conversation a framework's agent had in a rollout, kept in chat-completions shape as the policy saw it.

One per rollout: the first integration that speaks registers it as the rollout's sample source.
"""

from __future__ import annotations

import copy
from typing import Any
from weakref import WeakKeyDictionary

from osmosis.records.rollout import Message
from osmosis.sdk.context import WorkflowRollout, get_rollout_context
from osmosis.sdk.types import RolloutSample

_conversations: WeakKeyDictionary[WorkflowRollout, KeptConversation] = WeakKeyDictionary()


class KeptConversation:
    """The messages of the last model call with its answer, and what was added since."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def record(self, messages: list[Any]) -> None:
        """Replaces what is known; a shorter history (a side call of the framework) is not the conversation."""
        if len(messages) >= len(self.messages):
            self.messages = [copy.deepcopy(dict(message)) for message in messages]

    async def get_sample(self) -> RolloutSample:
        """The conversation as a sample."""
        return RolloutSample(messages=self.messages)


def current_rollout() -> WorkflowRollout:
    """The running rollout; `RuntimeError` outside of one and without `OSMOSIS_CHAT_COMPLETIONS_URL`."""
    found = get_rollout_context()
    if found is None:
        found = WorkflowRollout()
        if not found.chat_completions_url:
            raise RuntimeError("no rollout is running: this model works only inside AgentWorkflow.run")
    return found


def conversation_of(rollout: WorkflowRollout) -> KeptConversation:
    """The rollout's conversation, registered as its sample source unless the workflow has its own."""
    found = _conversations.get(rollout)
    if found is None:
        found = _conversations[rollout] = KeptConversation()
        try:
            rollout.set_sample_source(found)
        except ValueError:
            # The workflow registered a source of its own; that one decides what the sample is.
            pass
    return found
