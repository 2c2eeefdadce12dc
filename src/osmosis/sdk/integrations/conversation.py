"""Keep the conversation of a framework's agent in a rollout, in chat-completions shape as the policy saw it."""

import copy
from typing import Any
from weakref import WeakKeyDictionary

from osmosis.records.run.rollout import Message
from osmosis.sdk.context import WorkflowRollout, get_rollout_context
from osmosis.sdk.types import RolloutSample

_conversations: "WeakKeyDictionary[WorkflowRollout, Conversation]" = WeakKeyDictionary()


class Conversation:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    def record(self, messages: list[Any]) -> None:
        """Replace the conversation; a shorter history is a side call of the framework and is ignored."""
        if len(messages) >= len(self.messages):
            self.messages = [copy.deepcopy(dict(message)) for message in messages]

    async def get_sample(self) -> RolloutSample:
        return RolloutSample(messages=self.messages)


def get_rollout() -> WorkflowRollout:
    rollout = get_rollout_context()
    if rollout is None:
        rollout = WorkflowRollout()
        if not rollout.chat_completions_url:
            raise RuntimeError("no rollout is running: this model works only inside AgentWorkflow.run")
    return rollout


def conversation_of(rollout: WorkflowRollout) -> Conversation:
    """Return the rollout's conversation, registered as its sample source unless the workflow has its own."""
    conversation = _conversations.get(rollout)
    if conversation is None:
        conversation = _conversations[rollout] = Conversation()
        try:
            rollout.set_sample_source(conversation)
        except ValueError:
            # The workflow registered a source of its own; that one decides what the sample is.
            pass
    return conversation
